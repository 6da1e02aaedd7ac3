"""`podlift get` brings home the outputs of a run, and names the ones that it did not bring."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from support import LIMIT_S, holds

import sdk
from sdk.records.recorder import read_events

pytestmark = [pytest.mark.process]

LEAVE = """
    import os, sdk
    with open(os.path.join(sdk.context().dirs.model, "m.keras"), "w") as file:
        file.write("weights")
    with open("log.csv", "w") as file:
        file.write("x" * 20_000)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    folder = tmp_path_factory.mktemp("ended")
    (folder / "train.py").write_text(dedent(LEAVE))
    run = sdk.submit(str(folder / "train.py"), root=str(folder / "root"))
    run.result(LIMIT_S)
    return run


@pytest.fixture
def run(ended: sdk.Run, monkeypatch: pytest.MonkeyPatch) -> sdk.Run:
    """A run that has left two files, in the root of this test."""
    monkeypatch.setenv("PODLIFT_ROOT", ended.plan.root)
    return ended


def test_the_folder_is_the_answer_and_by_default_the_runs_name_here(run, here, tmp_path: Path, monkeypatch) -> None:
    home = str(tmp_path / "home")
    assert here("get", run.id, home) == (0, f"{home}\n", f"{run.id}: 2 files copied, 20.0 kB.\n")
    assert Path(home, "model/m.keras").read_text() == "weights"
    assert "all files were already there" in here("get", run.id, home).stderr
    monkeypatch.chdir(tmp_path)
    assert here("get", run.url).stdout == f"{tmp_path / run.id}\n"
    assert len((tmp_path / run.id / "work/log.csv").read_text()) == 20_000


def test_json_names_every_file_of_a_failed_run_and_the_uncollected_ones(write, here, tmp_path) -> None:
    write("train.py", "import os; open(b'caf\\xe9', 'w').close(); os.symlink('/etc/passwd', 'users'); 1/0")
    run = sdk.submit("train.py")
    run.wait(LIMIT_S)
    shown = here("get", run.id, str(tmp_path / "home"), "--json")
    said = json.loads(shown.stdout)
    assert (said["dest"], said["files"]) == (str(tmp_path / "home"), [f"{tmp_path}/home/work/caf\\xe9"])
    assert said["collected"]["skipped"] == [["work/users", "a link that leaves the folder"]]
    assert (said["id"], said["state"], said["exit_code"], shown.code) == (run.id, "FAILED", 1, 0)
    assert "not collected  work/users: a link that leaves the folder" in shown.stderr


def test_mistakes_are_bad_input_and_overwrite_nothing(run: sdk.Run, here: Callable, tmp_path: Path) -> None:
    (tmp_path / "home/work").mkdir(parents=True)
    (tmp_path / "home/work/log.csv").write_text("mine")
    shown = here("get", run.id, str(tmp_path / "home"), "--json")
    assert (shown.code, json.loads(shown.stdout)["reason"]) == (2, "bad_input")
    assert "different files of the same name: work/log.csv" in shown.stderr
    assert (tmp_path / "home/work/log.csv").read_text() == "mine"
    assert here("get", "nobody-aaaaaa").code == 2


def test_a_run_that_left_nothing_says_so(project, here: Callable, tmp_path: Path) -> None:
    run = sdk.submit("train.py")
    run.wait(LIMIT_S)
    shown = here("get", run.id, str(tmp_path / "home"))
    assert (shown.code, shown.stdout) == (0, "")
    assert "the program wrote no files to its working directory or to ctx.dirs.model" in shown.stderr
    assert not (tmp_path / "home").exists()


def test_a_run_with_a_killed_supervisor_says_where_its_files_are(write, here) -> None:
    write("train.py", LEAVE + "    print('ready', flush=True)\n    import time; time.sleep(600)\n")
    run = sdk.submit("train.py")
    assert any(line.text == "ready" for line in run.logs(follow=True))
    started = next(event for event in read_events(run.plan.paths) if event.kind == "started")
    os.kill(int(started.data["supervisor"].split(":")[1]), signal.SIGKILL)
    run.wait(LIMIT_S)
    shown = here("get", run.id)
    assert (shown.code, shown.stdout) == (0, "")
    holds(shown.stderr, run.plan.paths.work(1, "chief-0"), run.plan.paths.model)
    Path(run.plan.paths.outputs_work).mkdir(parents=True)
    Path(run.plan.paths.outputs_work, "log.csv").write_text("brought before the end")
    shown = here("get", run.id)
    holds(shown.stderr, "1 file copied", "Some files may be missing")
