"""Another user of this machine writes records below a root that both share: they end and remove nothing of the reader's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import other_user
import psutil
import pytest
from other_user import NEEDS_ROOT, UID, Victim
from support import LIMIT_S, WAITS, has_ended, until

import sdk
from sdk.clock import SystemClock
from sdk.job.layout import RunPaths
from sdk.process import spawn
from sdk.records.recorder import Recorder, read_events
from sdk.storage import own_folders
from sdk.testing import tasks

pytestmark = [NEEDS_ROOT, pytest.mark.process]


# The process would not end with its task.
LEAVES = """
import subprocess, time
process = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(process.pid, flush=True)
time.sleep(600)
"""


def gone() -> str:
    """Return the name of a process of this machine that has ended."""
    process = subprocess.Popen(["sleep", "600"])
    name = spawn.identity(process.pid)
    process.kill()
    process.wait()
    assert name is not None
    return name


@dataclass(frozen=True)
class Trap:
    """A run of the other user below the shared root, with records of his choice."""

    root: Path
    run: Path
    live: sdk.Run  # the reader's own training
    temporary: str  # of that
    victim: Victim

    def says(self, temporary: str, supervisor: str) -> None:
        """Let its records name a folder for temporary files and a supervisor."""

        def write() -> None:
            recorder = Recorder(RunPaths(str(self.run)), "supervisor", 0, SystemClock())
            recorder.record("started", supervisor=supervisor, temporary=temporary)
            recorder.record("placed", host_names=True, isolated=False, temporary=temporary)

        other_user.does(write)


@pytest.fixture
def trap(write, monkeypatch) -> Iterator[Trap]:
    with other_user.victim() as victim:
        write("train.py", WAITS)
        live = sdk.submit(sdk.Job("train.py"))
        until(lambda: live.status().state is sdk.State.RUNNING and read_events(live.plan.paths, ("entry",)))
        (placed,) = read_events(live.plan.paths, ("placed",))
        root = victim.open / "root"
        run = root / "runs" / "theirs-aaaaaa"
        plan = Path(live.plan.paths.plan).read_text().replace(live.url, str(run)).replace(live.id, run.name)
        plan = plan.replace(live.plan.root, str(root))

        def publish() -> None:
            (run / "events").mkdir(parents=True)
            (run / "plan.json").write_text(plan)
            Recorder(RunPaths(str(run)), "client", 0, SystemClock()).record("submitted")

        other_user.does(publish)
        assert run.stat().st_uid == UID
        yield Trap(root, run, live, str(placed.data["temporary"]), victim)
        assert live.status().state is sdk.State.RUNNING, "the reader's training goes on"
        assert victim.is_whole()
        Path(live.url, "go").touch()
        assert live.wait(LIMIT_S).state is sdk.State.SUCCEEDED


def read_status(trap: Trap) -> None:
    assert sdk.attach(trap.run).status().state is sdk.State.LOST


def runs(trap: Trap) -> None:
    (info,) = sdk.runs(root=trap.root)
    assert info.status is not None and info.status.state is sdk.State.LOST


def test_a_folder_or_run_that_another_user_names_stays_with_its_training(trap) -> None:
    trap.says(trap.temporary, gone())
    runs(trap)
    read_status(trap)
    run = sdk.attach(trap.run)
    assert run.wait(LIMIT_S).state is sdk.State.LOST and run.why() and list(run.logs(follow=True)) == []
    assert Path(trap.temporary).is_dir()
    run.cancel()
    # A run's directory that is a link to the reader's run.
    other_user.does(lambda: (trap.root / "runs" / "link-aaaaaa").symlink_to(trap.live.url))
    assert "link-aaaaaa" in [info.id for info in sdk.runs(root=trap.root, limit=None)]
    assert Path(trap.temporary).is_dir()


@pytest.mark.parametrize("whose", ["nobody's", "a link", "a pipe as its note", "a note of another run"])
def test_a_folder_that_does_not_name_its_owner_itself_stays(trap, whose) -> None:
    found = Path(f"/tmp/podlift-{os.urandom(6).hex()}")
    if whose == "a link":
        other_user.does(lambda: found.symlink_to(trap.victim.precious / "thesis"))
    else:
        found.mkdir(mode=0o700)
    if whose == "a pipe as its note":
        os.mkfifo(found / ".podlift-run")
    if whose == "a note of another run":
        own_folders.claim(str(found), f"{trap.run}x")
    trap.says(str(found), gone())
    try:
        read_status(trap)
        runs(trap)
        assert os.path.lexists(found)
    finally:
        found.unlink() if found.is_symlink() else shutil.rmtree(found)


@pytest.mark.parametrize("pid", ["the reader's", "of the reader's training", "all"])
def test_a_process_that_another_users_record_names_as_a_task_gets_no_signal(trap, pid) -> None:
    (started,) = read_events(trap.live.plan.paths, ("attempt_started",))
    named = {"the reader's": trap.victim.pid, "all": -1}.get(pid) or started.data["pids"]["chief-0"]
    supervisor = spawn.identity(os.getpid())

    def write() -> None:
        recorder = Recorder(RunPaths(str(trap.run)), "supervisor", 0, SystemClock())
        recorder.record("started", supervisor=supervisor, temporary="/tmp")
        recorder = Recorder(RunPaths(str(trap.run)), "supervisor", 1, SystemClock())
        recorder.record("attempt_started", addresses={}, pids={"chief-0": named}, why_fresh="")

    other_user.does(write)
    for signals in (tasks.kill, tasks.preempt):
        with pytest.raises(sdk.InputError, match="is not running"):
            signals(sdk.attach(trap.run), "chief-0")


def test_a_run_directory_of_another_user_is_no_mark_of_processes(trap) -> None:
    """Its copy of /etc/hosts is the machine's own, which every process sees."""

    def link() -> None:
        (trap.run / "tmp").mkdir()
        os.link("/etc/hosts", trap.run / "tmp" / "hosts")

    other_user.try_to(link)
    trap.says(str(trap.run / "tmp"), gone())
    read_status(trap)


def left_behind(root: str | None = None) -> tuple[sdk.Run, int, Path]:
    """Kill the supervisor of a run and its janitor; return the run, its living process and its temporary folder."""
    run = sdk.submit("train.py", root=root)
    child = int(next(line.text for line in run.logs(follow=True) if line.text.isdecimal()))
    (started,) = read_events(run.plan.paths, ("started",))
    supervisor = psutil.Process(int(started.data["supervisor"].split(":")[1]))
    killed = [supervisor.parent(), supervisor]
    supervisor.suspend()  # it would start another janitor
    for each in killed:
        each.kill()
    return run, child, Path(started.data["temporary"])


@pytest.mark.parametrize("shared", ["by a group", "on a file system that shows another owner"])
def test_remains_of_killed_supervisors_in_the_users_own_run_are_ended_and_removed(write, monkeypatch, shared) -> None:
    write("train.py", LEAVES)
    with tempfile.TemporaryDirectory() as root:  # short enough for temporary files in the run
        run, child, temporary = left_behind(root)
        assert temporary == Path(run.plan.paths.temporary)
        if shared == "by a group":
            temporary.chmod(0o2770)
        else:
            # Not the user of this process for the file system.
            monkeypatch.setattr(os, "geteuid", lambda: UID)
        until(lambda: run.status().state is sdk.State.LOST)
        until(lambda: has_ended(child))
        assert not temporary.exists()


def test_root_removes_temporary_files_in_another_users_run_and_none_elsewhere() -> None:
    with other_user.victim() as victim:
        run, outside = victim.open / "run", victim.open / "podlift-0"
        other_user.does(lambda: (run / "tmp" / "1-chief-0").mkdir(parents=True))
        other_user.does(outside.mkdir)
        assert own_folders.discard_temporary(str(run), str(run / "tmp")) == ""
        assert not (run / "tmp").exists()
        assert f"belongs to user {UID}" in own_folders.discard_temporary(str(run), str(outside))
        assert outside.is_dir()


def test_a_status_and_not_a_list_ends_processes_that_a_killed_supervisor_has_left(write) -> None:
    write("train.py", LEAVES)
    run, child, temporary = left_behind()
    until(lambda: sdk.runs()[0].status.state is sdk.State.LOST)
    assert not has_ended(child) and temporary.is_dir()
    assert run.status().state is sdk.State.LOST
    until(lambda: has_ended(child))
    assert not temporary.exists()
