"""The outputs of a program outlive it, however it ends; nothing else comes along, and nothing of yours is overwritten."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest
from support import LIMIT_S, REPO, command, full_only, holds, until

import sdk
from sdk.records.recorder import read_events

pytestmark = [pytest.mark.process]

LEAVE = """\
import os, sys, time
import sdk

ctx = sdk.context()
with open("log.csv", "w") as file:
    file.write("epoch,loss")
with open(os.path.join(ctx.dirs.model, "m.keras"), "w") as file:
    file.write("weights")
print("ready", flush=True)
"""
LEFT = {"work/log.csv": b"epoch,loss", "model/m.keras": b"weights"}


def files(folder: str | Path) -> dict[str, bytes]:
    """Content of every file below a folder, by path, less the one that names the owner of the folder."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in set(names) - {".podlift-folder"}:
            path = os.path.join(here, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def ended(run: sdk.Run) -> dict[str, bytes]:
    assert run.wait(LIMIT_S).state.terminal
    return files(run.plan.paths.outputs)


def skipped(run: sdk.Run) -> dict[str, str]:
    collected = run.collected()
    assert collected is not None
    return dict(collected["skipped"])


def leave_alone(run: sdk.Run) -> None: ...


def cancel(run: sdk.Run) -> None:
    until(lambda: any(line.text == "ready" for line in run.logs()))
    run.cancel(grace_s=0)


def end_supervisor(run: sdk.Run, number: signal.Signals = signal.SIGTERM) -> None:
    until(lambda: any(line.text == "ready" for line in run.logs()))
    started = next(event for event in read_events(run.plan.paths) if event.kind == "started")
    os.kill(int(started.data["supervisor"].split(":")[1]), number)


@pytest.mark.parametrize(
    ("way", "act", "state"),
    [
        full_only("sys.exit(0)", leave_alone, "SUCCEEDED"),
        ("raise KeyError('column')", leave_alone, "FAILED"),
        ("sys.exit(75)", leave_alone, "CHECKPOINTED"),
        full_only("os.kill(os.getpid(), 9)", leave_alone, "FAILED"),
        ("os.abort()", leave_alone, "FAILED"),
        ("time.sleep(600)", cancel, "CANCELLED"),
        ("time.sleep(600)", end_supervisor, "FAILED"),
    ],
)
def test_outputs_are_there_after_every_way_out(write, way: str, act: Callable, state: str) -> None:
    write("train.py", LEAVE + way)
    run = sdk.submit("train.py")
    act(run)
    assert ended(run) == LEFT
    assert (run.status().state.value, skipped(run)) == (state, {})


def test_when_another_task_fails_only_the_chiefs_outputs_are_kept(write) -> None:
    way = """
        if os.environ["PODLIFT_TASK"] == "chief-0":
            open("done", "w").close()
            time.sleep(600)
        while not os.path.exists("../../chief-0/code/done"):
            time.sleep(0.01)
        raise KeyError("column")
    """
    write("train.py", LEAVE + dedent(way))
    run = sdk.submit("train.py", workers=2)
    assert ended(run) == {**LEFT, "work/done": b""}
    failure = run.status().failure
    assert failure is not None
    assert failure.task == "worker-0"


def test_a_killed_supervisor_collects_nothing_and_the_command_says_where_files_are(write, capsys) -> None:
    write("train.py", LEAVE + "time.sleep(600)")
    run = sdk.submit("train.py")
    end_supervisor(run, signal.SIGKILL)
    assert run.wait(LIMIT_S).state is sdk.State.LOST
    assert (run.download("home"), run.collected()) == ([], None)
    shown = command(capsys, "get", run.id)
    assert (shown.code, shown.stdout) == (0, "")
    holds(shown.stderr, run.plan.paths.work(1, "chief-0"), run.plan.paths.model)
    Path(run.plan.paths.outputs_work).mkdir(parents=True)
    Path(run.plan.paths.outputs_work, "log.csv").write_text("brought before the end")
    holds(command(capsys, "get", run.id).stderr, "1 file copied", "Some files may be missing")


def test_a_program_that_leaves_nothing_has_no_outputs(write, capsys) -> None:
    write("helper.py", "WORD = 1")
    write("data/a.csv", "1")
    write("train.py", "import helper, os; os.utime('data/a.csv'); os.chmod('train.py', 0o700); os.makedirs('empty')")
    run = sdk.submit("train.py")
    assert not Path(run.result(LIMIT_S).outputs_dir).exists()
    assert run.collected() == {"files": 0, "bytes": 0, "skipped": [], "skipped_count": 0}
    assert run.download("home") == []
    shown = command(capsys, "get", run.id, "home")
    assert (shown.code, shown.stdout) == (0, "")
    assert "the program wrote no files to its working directory or to ctx.dirs.model" in shown.stderr
    assert not Path("home").exists()


def test_new_and_changed_files_are_outputs_however_well_the_change_is_hidden(write) -> None:
    text = """
        import os, pathlib
        pathlib.Path("grown.txt").write_text("longer than before")
        old = os.stat("same_size.txt")
        pathlib.Path("same_size.txt").write_text("after!")
        os.utime("same_size.txt", ns=(old.st_atime_ns, old.st_mtime_ns))
        pathlib.Path("moved.txt").rename("elsewhere.txt")
        pathlib.Path("removed.txt").unlink()
        pathlib.Path("rewritten.txt").write_text("before")
        pathlib.Path("deep/er").mkdir(parents=True)
        pathlib.Path("deep/er/new.txt").write_text("new")
    """
    write("train.py", text)
    for name in ("grown", "same_size", "moved", "removed", "rewritten", "untouched"):
        write(f"{name}.txt", "before")
    changed = {"grown.txt": b"longer than before", "same_size.txt": b"after!", "elsewhere.txt": b"before"}
    expected = {f"work/{name}": data for name, data in {**changed, "deep/er/new.txt": b"new"}.items()}
    assert ended(sdk.submit("train.py")) == expected


def test_no_file_from_outside_is_collected_others_are_named_and_links_are_downloaded(write, tmp_path: Path) -> None:
    text = """
        import os, socket
        os.remove("config.ini"); os.symlink("/etc/passwd", "config.ini")
        os.symlink("/etc", "folder")
        os.symlink("../../..", "above")
        os.symlink(".", "itself")
        os.symlink("nowhere", "dangling")
        os.symlink("loop", "loop")
        os.symlink("unchanged.txt", "to_the_bundle")
        os.makedirs("steps/2")
        open("steps/2/weights", "w").write("w")
        os.chmod("steps/2/weights", 0o444)
        os.symlink("2", "steps/latest")
        os.symlink(os.path.abspath("steps/2/weights"), "best")
        os.mkfifo("pipe")
        socket.socket(socket.AF_UNIX).bind("socket")
        open(b"caf\\xe9.txt", "w").write("c")
        open("n" * 250, "w").write("n")
    """
    write("train.py", text)
    write("config.ini")
    write("unchanged.txt")
    run = sdk.submit("train.py")
    found = ended(run)
    assert found.pop(f"work/{'n' * 250}") == b"n"
    assert found == {"work/steps/2/weights": b"w", "work/best": b"w", "work/caf\udce9.txt": b"c"}
    assert (run.collected()["files"], run.collected()["bytes"], run.collected()["skipped_count"]) == (5, 3, 9)
    run.download(tmp_path / "home")
    assert files(tmp_path / "home") == files(run.plan.paths.outputs)
    for work in (Path(run.plan.paths.outputs_work), tmp_path / "home/work"):
        assert [os.readlink(work / name) for name in ("best", "steps/latest")] == ["steps/2/weights", "2"]
        assert (work / "steps/2/weights").stat().st_mode & 0o777 == 0o444
    leaves, nothing = "a link that leaves the folder", "a link to nothing"
    assert skipped(run) == {
        **dict.fromkeys(("work/above", "work/config.ini", "work/folder"), leaves),
        **dict.fromkeys(("work/dangling", "work/loop"), nothing),
        **dict.fromkeys(("work/pipe", "work/socket"), "neither file nor folder"),
        "work/itself": "a link to one of its own parent folders",
        "work/to_the_bundle": "a link to a file that is not collected",
    }


@pytest.mark.parametrize(
    ("deed", "left", "said"),
    [
        ("shutil.rmtree(os.getcwd())", {"model/m.keras": b"weights"}, {"work/": "the program removed this folder"}),
        (
            "shutil.rmtree(ctx.dirs.model); os.symlink('/etc', ctx.dirs.model)",
            {"work/log.csv": b"epoch,loss"},
            {"model/": "the program replaced this folder"},
        ),
        ("os.chmod(here, 0o500); os.chmod(ctx.dirs.model, 0o500)", LEFT, {}),
        full_only("os.symlink(elsewhere, run + '/outputs')", LEFT, {}),
        ("os.makedirs(run + '/outputs/work/log.csv/old')", LEFT, {}),
        ("os.makedirs(run + '/outputs'); os.symlink(elsewhere, run + '/outputs/model')", LEFT, {}),
    ],
)
def test_a_program_that_tampers_with_its_folders_fails_no_run_and_leads_no_one_out(
    write, tmp_path: Path, deed: str, left: dict[str, bytes], said: dict[str, str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    names = f"here = os.getcwd(); run = os.environ['PODLIFT_RUN']; elsewhere = {str(tmp_path / 'elsewhere')!r}"
    write("train.py", f"{LEAVE}import shutil; {names}; {deed}")
    run = sdk.submit("train.py")
    assert ended(run) == left
    assert run.status().state is sdk.State.SUCCEEDED
    assert {path: said[path] in reason for path, reason in skipped(run).items()} == dict.fromkeys(said, True)
    assert files(tmp_path / "elsewhere") == {}


def test_a_path_too_long_for_the_system_is_named_and_the_rest_is_there(write) -> None:
    text = """
        import os
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        open("unreachable", "w").close()
    """
    write("train.py", LEAVE + dedent(text))
    run = sdk.submit("train.py")
    assert ended(run) == LEFT
    assert list(skipped(run).values()) == ["file name too long"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_output_is_named_and_the_rest_is_there(write) -> None:
    write("train.py", LEAVE + "open('x', 'w').close(); os.chmod('x', 0); os.mkdir('y'); os.chmod('y', 0)")
    run = sdk.submit("train.py")
    assert ended(run) == LEFT
    assert skipped(run) == {"work/x": "permission denied", "work/y/": "permission denied"}


def test_bytecode_is_nobodys_output(write) -> None:
    write("pkg/__init__.py")
    compiles = "import sys; sys.dont_write_bytecode = False; import pkg, py_compile; py_compile.compile('train.py')"
    write("train.py", compiles)
    run = sdk.submit("train.py")
    assert ended(run) == {}
    assert list(Path(run.plan.paths.work(1, "chief-0")).rglob("*.pyc")), "there was some"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    """A run that has ended and left its two files, for all tests that download them."""
    folder = tmp_path_factory.mktemp("left")
    (folder / "train.py").write_text(LEAVE)
    run = sdk.submit(str(folder / "train.py"), root=str(folder / "root"))
    run.result(LIMIT_S)
    return run


def test_download_copies_the_outputs_and_names_the_written_files(left: sdk.Run, tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    assert left.download(home) == [str(home / "model/m.keras"), str(home / "work/log.csv")]
    assert files(home) == LEFT
    (home / "work/log.csv").write_text("mine now")
    assert ended(left) == LEFT, "a copy is no second name"
    (home / "work/log.csv").unlink()
    assert [left.download(home), left.download(home)] == [[str(home / "work/log.csv")], []], "only what is missing"


def test_the_answer_of_the_command_is_the_folder_by_default_the_runs_name(left, tmp_path, capsys, monkeypatch) -> None:
    home = str(tmp_path / "home")
    assert command(capsys, "get", left.url, home) == (0, f"{home}\n", f"{left.id}: 2 files copied, 17 bytes.\n")
    assert files(home) == LEFT
    assert "all files were already there" in command(capsys, "get", left.url, home).stderr
    monkeypatch.setenv("PODLIFT_ROOT", left.plan.root)
    monkeypatch.chdir(tmp_path)
    assert command(capsys, "get", left.id).stdout == f"{tmp_path / left.id}\n"
    assert files(tmp_path / left.id) == LEFT
    assert command(capsys, "get", "nobody-aaaaaa").code == 2


def test_json_names_every_file_of_a_failed_run_and_the_uncollected_ones(write, capsys, tmp_path: Path) -> None:
    write("train.py", "import os; open(b'caf\\xe9', 'w').close(); os.symlink('/etc/passwd', 'users'); 1/0")
    run = sdk.submit("train.py")
    run.wait(LIMIT_S)
    shown = command(capsys, "get", run.id, str(tmp_path / "home"), "--json")
    said = json.loads(shown.stdout)
    assert (said["dest"], said["files"]) == (str(tmp_path / "home"), [f"{tmp_path}/home/work/caf\\xe9"])
    assert said["collected"]["skipped"] == [["work/users", "a link that leaves the folder"]]
    assert (said["id"], said["state"], said["exit_code"], shown.code) == (run.id, "FAILED", 1, 0)
    assert "not collected  work/users: a link that leaves the folder" in shown.stderr


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"work/log.csv": "mine", "model/m.keras": "mine"}, "model/m.keras, work/log.csv"),
        ({"work": "a file"}, ": work."),
        ({"model/m.keras/x": "below a folder"}, ": model/m.keras."),
    ],
)
def test_nothing_is_overwritten_and_nothing_is_written_beside_it(left, capsys, tmp_path: Path, there, said) -> None:
    home = tmp_path / "home"
    for path, text in there.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    with pytest.raises(sdk.InputError, match="contains different files of the same name") as caught:
        left.download(home)
    assert said in str(caught.value)
    shown = command(capsys, "get", left.url, str(home), "--json")
    assert (shown.code, json.loads(shown.stdout)["reason"], said in shown.stderr) == (2, "bad_input", True)
    assert files(home) == {path: text.encode() for path, text in there.items()}


def test_a_destination_that_can_take_no_files_is_refused(left: sdk.Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for dest, said in [
        (tmp_path / "file", "is a file"),
        (f"{left.url}/home", "in the folder of runs"),
        (Path(left.url).parent, "in the folder of runs"),
        ("", "not a folder"),
        ("gs://bucket/home", "not a folder"),
        ("x\0", "not a usable path"),
    ]:
        with pytest.raises(sdk.InputError, match=said):
            left.download(dest)
    assert files(left.plan.paths.outputs) == LEFT


def test_a_run_that_is_going_on_has_nothing_to_download_yet(write, tmp_path: Path) -> None:
    write("train.py", LEAVE + "time.sleep(600)")
    run = sdk.submit("train.py")
    with pytest.raises(sdk.InputError, match=f"Next: podlift wait {run.id}"):
        run.download(tmp_path / "home")
    run.cancel(grace_s=0)
    run.wait(LIMIT_S)


def test_outputs_that_cannot_be_copied_are_named_before_any_copy(left: sdk.Run, tmp_path: Path) -> None:
    passwords = Path(left.plan.paths.outputs, "work/passwords")
    passwords.symlink_to("/etc/passwd")
    try:
        with pytest.raises(sdk.InputError, match=r"work/passwords \(a link that leaves the folder\)"):
            left.download(tmp_path / "home")
    finally:
        passwords.unlink()
    assert not (tmp_path / "home").exists()


def test_a_copy_that_is_cut_short_leaves_no_half_file(write, tmp_path: Path) -> None:
    write("train.py", "open('a', 'w').write('small'); open('b', 'w').write('x' * 100_000)")
    run = sdk.submit("train.py")
    run.result(LIMIT_S)
    home = tmp_path / "home"
    code = f"import sdk; sdk.attach({run.url!r}).download({str(home)!r})"
    line, env = [sys.executable, "-B", "-c", code], {**os.environ, "PYTHONPATH": str(REPO)}
    # The kernel refuses to make any longer file, as a full disk would: also bytecode, which would stay cut short.
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (50_000, 50_000))
    done = subprocess.run(line, env=env, preexec_fn=limit, capture_output=True, text=True)
    holds(done.stderr, "PodliftError: Not all files could be copied: [Errno 27] File too large", "1 of 2 are in")
    assert files(home) == {"work/a": b"small"}
    assert run.download(home) == [str(home / "work/b")]
