"""The process with TensorFlow that waits for the next attempt: it is used, replaced and ended.

The tests import a fake `tensorflow`, which notes each import.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from local_runs import left_alive, why_fresh
from support import LIMIT_S, full_only, said

import sdk
from sdk.execution.standby import Launch
from sdk.job.job import FromCaller

pytestmark = [pytest.mark.process, pytest.mark.cold]

# The attempts after the first one end well.
ENDS = """
    import os, sys, tensorflow
    print("attempt", os.environ["PODLIFT_ATTEMPT"], flush=True)
    {}
    sys.exit(75 if int(os.environ["PODLIFT_ATTEMPT"]) < 3 else 0)
    """


@pytest.fixture
def importers(fake: Callable[..., dict], tmp_path: Path) -> Callable[[], list[int]]:
    """Return a function that returns the processes that have imported TensorFlow; the tasks find the fake."""
    notes = tmp_path / "notes"
    fake(f"import os; print('importing', flush=True); open({str(notes)!r}, 'a').write(f'{{os.getpid()}}\\n')")
    return lambda: [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def submit(workers: int = 2, **settings) -> sdk.Run:
    return sdk.submit("train.py", env={"PYTHONPATH": FromCaller()}, workers=workers, retry_preemptions=None, **settings)


@pytest.mark.parametrize(("start", "imports"), [("auto", 1), full_only("anew", 3)])
def test_all_attempts_are_forked_from_the_process_that_stayed(write, importers, start: str, imports: int) -> None:
    write("train.py", ENDS.format(""))
    run = submit(local_start=start)
    run.result(LIMIT_S)
    assert why_fresh(run) == ["", "", ""]
    assert len(importers()) == imports
    for number in (1, 2, 3):
        assert said(run, "chief-0", number) == ["importing", f"attempt {number}"]
    assert left_alive(run) == []


@pytest.mark.full
def test_a_single_task_has_one_on_request_that_imports_while_it_trains(write, importers, tmp_path: Path) -> None:
    write("train.py", f"""
        import os, sys, time, tensorflow
        import sdk
        notes, attempt = {str(tmp_path / "notes")!r}, os.environ["PODLIFT_ATTEMPT"]
        print("attempt", attempt, os.getpriority(os.PRIO_PROCESS, 0), flush=True)
        until = time.monotonic() + 60
        while attempt == "1" and len(open(notes).read().split()) < 2 and time.monotonic() < until:
            sdk.context().should_stop()
            time.sleep(0.02)
        sys.exit(75 if attempt == "1" else 0)
        """)  # fmt: skip
    run = submit(workers=1, local_start="standby")
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    run.result(LIMIT_S)
    assert why_fresh(run) == ["a single task has no imports to share", ""]
    assert len(importers()) == 2
    assert said(run, "chief-0", 2) == ["importing", f"attempt 2 {usual}"], "the next task has the usual priority"
    assert "stands by for restarts" in str(run.plan)


def test_a_process_taken_for_an_attempt_that_never_starts_is_ended() -> None:
    closed: list[bool] = []
    taken = SimpleNamespace(close=lambda: closed.append(True))
    forks = SimpleNamespace(why_not_first="")
    standby = SimpleNamespace(take=lambda starts: taken, why_not=lambda starts: "", forks=forks)
    with pytest.raises(OSError, match="full"), closing(Launch([], standby)):
        raise OSError("full")
    assert closed == [True]
