"""A project in which files come, go and grow while it is packaged: none of that is a reason to refuse."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sdk
from sdk import launch
from sdk.cli import app
from sdk.emulator.server import prepared
from sdk.packaging import bundle
from sdk.packaging import tree as trees
from sdk.planning.pack import packaged
from sdk.planning.prepare import make_plan
from sdk.planning.settings.merge import Destination
from sdk.run import Run

pytestmark = [pytest.mark.process]

PODLIFT = f"{sys.executable} -m sdk"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    repo = str(Path(sdk.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": repo}
    return subprocess.run(["/bin/bash", "-c", line], env=env, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def at_the_same_time(work: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def again() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_submit_with_output_in_a_busy_project_runs_and_leaves_its_own_files_out(write, root: Path) -> None:
    folder = write("train.py", "print('trained')").parent
    write(".train.py.swp", "not saved yet")
    write(".ipynb_checkpoints/train-checkpoint.py", "")
    os.mkfifo(folder / "pipe")
    log = (folder / "grows.log").open("wb")

    def busy() -> None:
        log.write(b"x" * 100_000)
        log.flush()
        (folder / "4913").write_text("")
        (folder / "4913").unlink()
        time.sleep(0.01)

    with socket.socket(socket.AF_UNIX) as ear, log, at_the_same_time(busy):
        ear.bind("ear")
        # Not in a task's words, but in its folder: a pipe into tee is another program's file.
        shown = shell(f"{PODLIFT} submit train.py --json 2> err.log 1> out.json; echo $?")
    assert shown.stdout == "0\n", (folder / "err.log").read_text()
    run = sdk.attach(json.loads((folder / "out.json").read_text())["id"])
    assert [line.text for line in run.logs()] == ["trained"]
    packaged = {file.path for file in run.plan.code.files}
    assert {"train.py", "grows.log"} <= packaged <= {"train.py", "grows.log", "4913"}
    assert {
        ".train.py.swp (an editor's swap file)",
        ".ipynb_checkpoints/ (never packaged)",
        "ear (not a regular file)",
        "err.log (this command writes to it)",
        "out.json (this command writes to it)",
        "pipe (not a regular file)",
    } <= set(run.plan.code.left_out)
    archive = Path(run.plan.bundle).read_bytes()
    assert hashlib.sha256(archive).hexdigest() == run.plan.code.digest
    with tarfile.open(run.plan.bundle) as tar:
        held = {path: tar.extractfile(path).read() for path in packaged}  # type: ignore[union-attr]
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in held.items()}
    assert digests == {file.path: file.sha256 for file in run.plan.code.files}


def plan_of(entry: str) -> sdk.Plan:
    return make_plan(entry, {}, Destination(), os.environ, verb="submit")


def test_one_call_takes_files_as_they_are_when_it_packages_them(write) -> None:
    folder = write("train.py", "print(open('log').read())").parent
    write("log", "old")
    write("goes", "")
    made = plan_of("train.py")
    (folder / "log").write_text("new")
    (folder / "goes").unlink()
    said = r"changed since the plan was made: goes \(removed\), log\. Next: plan again"
    with pytest.raises(sdk.InputError, match=said):
        launch.execute(made)
    run = Run(launch.submit(made))
    run.result(60)
    assert [line.text for line in run.logs()] == ["new"]
    assert run.plan.code.digest != made.code.digest
    assert "goes (removed while the project was read)" in run.plan.code.left_out
    finding = run.plan.findings[-1]
    assert finding.level == "note" and finding.message.endswith("packaged with the later content: goes, log.")


def test_an_entry_that_goes_meanwhile_is_named_and_nothing_is_left_behind(write, root: Path) -> None:
    folder = write("train.py").parent
    made = plan_of("train.py")
    (folder / "train.py").unlink()
    with pytest.raises(sdk.InputError, match=r"The entry was removed while the project was read: 'train\.py'"):
        launch.submit(made)
    assert not root.exists()


def test_a_file_that_becomes_a_secret_or_leaves_the_project_meanwhile_is_left_out(write, tmp_path: Path) -> None:
    folder = write("train.py", "print(1)").parent
    write("notes.txt", "old")
    write("data.py", "old")
    made = plan_of("train.py")
    (folder / "notes.txt").write_text("-----BEGIN PRIVATE KEY-----\nabc\n")
    (folder / "data.py").unlink()
    (outside := tmp_path / "outside.py").write_text("private")
    (folder / "data.py").symlink_to(outside)
    packed = packaged(made)
    assert [file.path for file in packed.code.files] == ["train.py"]
    assert packed.code.left_out == ["data.py (a link that leaves the folder)", "notes.txt (looks like a secret)"]
    assert packed.findings[-1].message.endswith("packaged with the later content: data.py, notes.txt.")


def test_a_disk_without_space_for_the_later_files_is_named(write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("train.py", "print(1)").parent
    write("log", "old")
    made = plan_of("train.py")
    (folder / "log").write_text("new")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle, "take", full)
    with pytest.raises(sdk.PodliftError, match=r"The run could not be started: .*No space left on device"):
        launch.submit(made)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(write, monkeypatch) -> None:
    folder = write("train.py").parent
    write("data.txt", "1")
    real = trees.read

    def racing(*args, **options):
        content = real(*args, **options)
        if (folder / "data.txt").is_file():
            (folder / "data.txt").unlink()
            os.mkfifo(folder / "data.txt")
        return content

    monkeypatch.setattr(trees, "read", racing)
    plan = sdk.plan("train.py")
    assert [file.path for file in plan.code.files] == ["train.py"]
    assert plan.code.left_out == ["data.txt (not a regular file)"]


NO_FILES = {"pipe": os.mkfifo, "folder": Path.mkdir, "link to nothing": lambda rules: rules.symlink_to("nothing")}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_rules_that_are_no_file_leave_nothing_out_and_are_not_waited_for(write, make: Callable) -> None:
    make(write("train.py").with_name(".gitignore"))
    assert "train.py" in [file.path for file in sdk.plan("train.py").code.files]


def test_podlifts_own_files_in_a_project_are_no_part_of_the_program(write, tmp_path: Path) -> None:
    folder = write("train.py", "open('weights', 'w').write('w')").parent
    with prepared(folder / "cloud", port=0):
        pass
    run = sdk.submit("train.py", root=folder / "earlier")
    run.result(60)
    # Into a separate folder, and among the project's files.
    assert run.download("results") == [str(folder / "results" / "work" / "weights")]
    assert run.download(folder) == [str(folder / "work" / "weights")]
    for name in ("results", "."):
        assert run.download(name) == [], "the same again finds everything there"
    plan = sdk.plan("train.py")
    assert [file.path for file in plan.code.files] == ["train.py"]
    assert set(plan.code.left_out) == {
        "cloud/ (the data of podlift emulator)",
        "earlier/bundles/ (the code of earlier runs)",
        f"earlier/runs/{run.id}/ (a run of podlift)",
        "results/ (results of podlift get)",
        "work/ (results of podlift get)",
    }
    named = sdk.plan(sdk.Job("train.py", code=sdk.Code(include=("results/work/weights",)))).code.files
    assert [file.path for file in named] == ["results/work/weights", "train.py"], "an include brings them back"


def test_a_plan_that_replaces_an_earlier_one_in_the_project_can_be_executed(write) -> None:
    write("train.py", "print(1)")
    for words in (["plan", "train.py", "-o", "plan.json"],) * 2 + (["submit", "plan.json"],):
        assert app.run(words) == 0
