"""Cancelling: tasks that train leave their loops behind the same step, and have time to save what they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from local_runs import codes
from support import LIMIT_S, until

import sdk

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("warm_podlift")]

# Two tasks in lockstep, as training with collectives is: no step ends before both take part in it.
LOOP = """
import pathlib, time, sdk
ctx = sdk.context()
shared, step = pathlib.Path(ctx.dirs.checkpoints), 0
while not ctx.should_stop():
    step += 1
    (shared / f"{ctx.task}-{step}").touch()
    while not all((shared / f"{task}-{step}").exists() for task in ctx.tasks):
        time.sleep(0.001)
    if step == 5:
        print("training", flush=True)
print("saved after", step, flush=True)
"""


def texts(run: sdk.Run) -> list[str]:
    return [line.text for line in run.logs()]


@pytest.mark.shows("the run is cancelled")
def test_all_tasks_leave_their_loops_behind_the_same_step_and_end_by_themselves(write) -> None:
    write("train.py", LOOP)
    run = sdk.submit("train.py", workers=2)
    until(lambda: texts(run).count("training") == 2, run.why)
    run.cancel(grace_s=30)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    said = "\n".join(texts(run))
    steps = re.findall(r"leaves its loop after step (\d+)", said)
    assert len(steps) == 2 and len({*steps}) == 1 and said.count("saved after") == 2, said
    assert codes(run, 1) == [0, 0]


def test_without_any_grace_nobody_waits_for_a_step(write) -> None:
    write("train.py", "import sdk, time\nwhile True:\n    sdk.context().should_stop()\n    time.sleep(0.01)")
    run = sdk.submit("train.py")
    until(Path(run.plan.paths.progress(1, "chief-0")).exists, run.why)
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
