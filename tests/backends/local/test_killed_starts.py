"""A supervisor that is killed while it starts an attempt: whatever it had created, the run can be resumed and succeeds.

A hook in the supervisor's interpreter sees each file and folder that it creates, and kills it directly after one of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support import LIMIT_S, full_only, said, until

import sdk
from sdk.records.recorder import read_events

pytestmark = [
    pytest.mark.process,
    pytest.mark.cold,
    pytest.mark.skipif(sys.platform != "linux", reason="the hook finds the supervisor in /proc"),
]

HOOK = """
import os, re, signal, sys

def install(out, last):
    pending = []

    def path_of(event, args):
        if event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT:
            return args[0]
        return {"os.mkdir": args[:1], "os.link": args[1:2]}.get(event, [None])[0]

    def hook(event, args):
        # A folder is tried before its parents.
        if pending and os.path.lexists(path := pending.pop()):
            os.write(out, path.encode() + b"\\n")
            if re.fullmatch(last, path):
                os.kill(os.getpid(), signal.SIGKILL)
        path = path_of(event, args)
        if isinstance(path, (str, os.PathLike)):
            pending.append(os.fspath(path))

    sys.addaudithook(hook)

if "sdk.backends.local.supervisor" in open("/proc/self/cmdline").read().split("\\0"):
    install(os.open(os.environ["CREATED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT), os.environ["LAST"])
"""
# Files that a supervisor creates for an attempt before its record of it. A new row belongs here before a new file does there.
CREATED = (
    "reserves/0001.supervisor",
    "attempts",
    "attempts/0001",
    "attempts/0001/.payload.json.*.part",
    "attempts/0001/payload.json",
    "model",
    "checkpoints",
    "logs",
    "attempts/0001/tasks",
    "attempts/0001/tasks/chief-0",
    "*/1-chief-0",
    "attempts/0001/logs",
    "attempts/0001/logs/chief-0.log",
    "events/.0001.supervisor.000001.attempt_started.json.*.part",
)
ALWAYS = ("attempts/0001/payload.json",)


class Starts:
    """Submits and resumes, with supervisors that are killed once they have created a file with this name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._log = monkeypatch, folder / "created"
        hook = folder / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(HOOK)
        monkeypatch.setenv("PYTHONPATH", str(hook))
        monkeypatch.setenv("CREATED", str(self._log))
        self.kill_after("nothing")

    def kill_after(self, name: str) -> None:
        self._monkeypatch.setenv("LAST", ".*/" + re.escape(name).replace(r"\*", "[^/]+"))

    def created(self, run: sdk.Run) -> list[str]:
        """Return the created files, as names in the run's directory."""
        (started,) = read_events(run.plan.paths, ("started",))
        temporary = str(started.data["temporary"])
        names = self._log.read_text().replace(f"{run.url}/", "").replace(f"{temporary}/", "*/").splitlines()
        return [re.sub("[0-9a-f]{32}", "*", name) for name in names]


@pytest.fixture
def starts(write, monkeypatch, tmp_path) -> Starts:
    write("train.py", "import os\nprint('attempt', os.environ['PODLIFT_ATTEMPT'])\n")
    return Starts(monkeypatch, tmp_path)


def lost(run: sdk.Run) -> None:
    until(lambda: run.status().state is sdk.State.LOST, run.status)


def test_the_table_names_all_that_is_created_before_the_record_of_an_attempt(starts) -> None:
    run = sdk.submit("train.py")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    found = starts.created(run)
    begun = next(i for i, name in enumerate(found) if name.startswith("reserves/0001."))
    recorded = next(i for i, name in enumerate(found) if name.endswith("attempt_started.json"))
    assert tuple(dict.fromkeys(found[begun:recorded])) == CREATED


@pytest.mark.parametrize("last", [name if name in ALWAYS else full_only(name) for name in CREATED])
def test_a_supervisor_that_was_killed_after_any_of_them_leaves_a_run_that_goes_on(starts, last) -> None:
    starts.kill_after(last)
    run = sdk.submit("train.py")
    lost(run)
    assert last in starts.created(run)
    starts.kill_after("nothing")
    run.resume()
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    assert said(run)[-1] == f"attempt {status.attempts}"


@pytest.mark.full
def test_each_of_several_resumes_may_be_killed_while_it_starts_its_attempt(starts) -> None:
    starts.kill_after("payload.json")
    run = sdk.submit("train.py")
    lost(run)
    for _ in range(2):
        run.resume()
        lost(run)
    starts.kill_after("nothing")
    run.resume()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    assert [info.status.state for info in sdk.runs()] == [sdk.State.SUCCEEDED]
