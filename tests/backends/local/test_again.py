"""A run that starts again: by itself, as often as its policy says, with the logs of every attempt."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from local_runs import attempts_said, events
from support import LIMIT_S, WAITS, full_only, until

import sdk

pytestmark = [pytest.mark.process, pytest.mark.spread, pytest.mark.usefixtures("warm_podlift")]

COUNTING = """
import os, signal, sys
attempt = int(os.environ["PODLIFT_ATTEMPT"])
print("attempt", attempt, os.environ["PODLIFT_TASK"], flush=True)
"""


def submit(text: str, *, retry: sdk.Retry, workers: int = 1, **limits: float) -> sdk.Run:
    Path("train.py").write_text(text)
    job = sdk.Job("train.py", retry=retry, resources=sdk.Resources(workers=workers), limits=sdk.Limits(**limits))
    return sdk.submit(job)


@pytest.mark.parametrize(
    ("ending", "retry", "attempts", "state", "reason"),
    [
        ("if attempt < 3: os.kill(os.getpid(), signal.SIGKILL)", {"infrastructure": 3}, 3, "SUCCEEDED", "done"),
        ("if attempt < 2: 1 / 0", {"user_errors": 1}, 2, "SUCCEEDED", "done"),
        full_only("1 / 0", {"user_errors": 1}, 2, "FAILED", "user_error"),
        ("os._exit(75)", {"preemptions": None}, 3, "CHECKPOINTED", "checkpointed"),
    ],
)
def test_an_attempt_that_ends_badly_is_followed_by_another_one(write, ending, retry, attempts, state, reason) -> None:
    run = submit(COUNTING + ending, retry=sdk.Retry(**{"infrastructure": 0, "preemptions": None, **retry}))
    status = run.wait(LIMIT_S)
    assert (status.attempts, status.state.value, status.reason.value) == (attempts, state, reason)
    assert attempts_said(run) == [f"attempt {number} chief-0" for number in range(1, attempts + 1)], (
        "every attempt keeps its logs"
    )
    assert len(events(run, "restarting")) == attempts - 1


# The worker leaves when the chief has begun.
LEAVING = (
    COUNTING
    + """
import pathlib, time
begun = pathlib.Path(os.environ["AIP_MODEL_DIR"], f"begun-{attempt}")
if os.environ["PODLIFT_TASK"] == "chief-0":
    begun.touch()
    while attempt == 1: time.sleep(1)
while not begun.exists(): time.sleep(0.01)
if attempt == 1: os._exit(75)
"""
)


@pytest.mark.fidelity("whole-job-restarts", "local")
def test_the_whole_gang_starts_again_when_one_of_it_is_gone(write) -> None:
    run = submit(LEAVING, retry=sdk.Retry(preemptions=None), workers=2)
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    assert sorted(attempts_said(run)) == sorted(
        f"attempt {n} {task}" for n in (1, 2) for task in ("chief-0", "worker-0")
    )


def test_a_crash_loop_stops_early_and_says_so(write) -> None:
    program = COUNTING + "import sdk\nsdk.context().report({'loss': 1.0}, step=7)\nos.kill(os.getpid(), signal.SIGKILL)"
    run = submit(program, retry=sdk.Retry(infrastructure=50))
    status = run.wait(LIMIT_S)
    assert (status.attempts, status.reason) == (3, sdk.Reason.KILLED)
    assert "3 consecutive attempts ended at step 7" in status.failure.message


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


HANGING = """
import os, time, sdk
ctx = sdk.context()
for step in range(1, 4):
    ctx.report({"loss": 1.0}, step=step)
    if ctx.task == "worker-0" and step == 2: break

def stuck_here():
    time.sleep(600)

stuck_here()
"""


def test_a_run_that_hangs_is_ended_with_every_tasks_stacks_and_the_slow_task_is_named(write) -> None:
    run = submit(HANGING, retry=sdk.Retry(infrastructure=0), workers=2, hang_s=1.5)
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason, status.failure.task) == (sdk.State.FAILED, sdk.Reason.HUNG, "worker-0")
    assert "chief-0 3, worker-0 2" in status.failure.message
    assert "The slowest task is worker-0" in status.failure.message
    for task in run.plan.tasks:
        assert any("in stuck_here" in line.text for line in run.logs(task=task)), task


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
