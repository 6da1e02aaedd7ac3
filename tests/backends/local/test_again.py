"""A run that starts again: by itself, as often as its policy says, with the logs of every attempt."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from local_runs import attempts_said, events
from support import LIMIT_S, WAITS, until

import sdk

pytestmark = [pytest.mark.process, pytest.mark.spread]

COUNTING = """
import os, signal, sys
attempt = int(os.environ["PODLIFT_ATTEMPT"])
print("attempt", attempt, os.environ["PODLIFT_TASK"], flush=True)
"""


def submit(text: str, *, retry: sdk.Retry, workers: int = 1, **limits: float) -> sdk.Run:
    Path("train.py").write_text(text)
    job = sdk.Job("train.py", retry=retry, resources=sdk.Resources(workers=workers), limits=sdk.Limits(**limits))
    return sdk.submit(job)


def test_cancelling_ends_the_wait_for_a_restart(write) -> None:
    # Each attempt ends before the last one: that is no crash loop, and from the second on the delay doubles.
    ending = "import sdk\nsdk.context().report({'loss': 1.0}, step=9 - attempt)\nos.kill(os.getpid(), signal.SIGKILL)"
    run = submit(COUNTING + ending, retry=sdk.Retry(infrastructure=1000))
    until(lambda: len(events(run, "restarting")) == 5, run.why)
    assert events(run, "restarting")[-1].data["delay_s"] == 8
    asked = time.time()
    run.cancel()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert [begun for begun in events(run, "attempt_started") if begun.time > asked] == []
    assert run.status().created + run.status().timings["finished"] - asked < 8


def test_an_edited_source_changes_neither_a_run_nor_its_restart(write) -> None:
    write("helper.py", "WORD = 'of this program'")
    program = f"{COUNTING}{WAITS}import helper; print('attempt', helper.WORD)\nif attempt == 1: os._exit(75)"
    run = submit(program, retry=sdk.Retry(preemptions=None))
    Path("train.py").write_text("print('attempt of another program')")
    Path("helper.py").write_text("WORD = 'of another program'")
    Path(run.url, "go").touch()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert attempts_said(run)[::2] == ["attempt 1 chief-0", "attempt 2 chief-0"]
    assert attempts_said(run)[1::2] == ["attempt of this program"] * 2


@pytest.mark.full
def test_a_program_that_reports_nothing_lives_as_long_as_it_prints_or_works(write) -> None:
    busy = "import time\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: pass\nprint('done')"
    talking = "import time\nfor i in range(15): print(i, flush=True); time.sleep(0.2)"
    runs = [
        submit(program, retry=sdk.Retry(infrastructure=0), hang_s=1)
        for program in (busy, talking, "import time; time.sleep(600)")
    ]
    assert [run.wait(LIMIT_S).state for run in runs[:2]] == [sdk.State.SUCCEEDED] * 2
    status = runs[2].wait(LIMIT_S)
    assert (status.reason, "no step was ever reported" in status.failure.message) == (sdk.Reason.HUNG, True)
