"""The plan warns of communication that would dominate, by what an earlier run of the program has shown."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from support import FakeClock

import sdk
from sdk import ids
from sdk.job.layout import RootPaths, RunPaths
from sdk.records.accounts import TaskAccount
from sdk.records.recorder import Recorder

pytestmark = pytest.mark.usefixtures("warm_podlift")

SIZE = 400_000_000


def ran(root: Path, plan: sdk.Plan, *, size: int | None = SIZE, step_s: float = 0.2, run: str = "") -> RunPaths:
    """Leave a run of a plan that made 101 steps."""
    paths = RootPaths(str(root)).run(run or plan.run_id)
    Path(paths.events).mkdir(parents=True)
    Path(paths.plan).write_text(json.dumps(json.loads(plan.to_json()) | {"run_id": paths.run_id}))
    first = plan.tasks[0]
    Recorder(paths, first, 1, FakeClock(1000.0)).record(
        "first_step", **({} if size is None else {"gradient_bytes": size})
    )
    account = TaskAccount(
        begun=1000.0, seen=1200.0, part="step", steps=101, reached=101, measures_input=True, compile=30.0,
        step=75 * step_s, input_wait=25 * step_s, evaluation=50.0,
    )  # fmt: skip
    Recorder(paths, "supervisor", 1, FakeClock(1200.0)).record("accounted", tasks={first: asdict(account)})
    return paths


def warnings(plan: sdk.Plan) -> list[str]:
    return [finding.message for finding in plan.findings if finding.message.startswith("Communication would")]


@pytest.fixture
def script(write) -> str:
    return str(write("train.py", "print(1)\n"))


def test_a_plan_for_more_workers_says_when_their_gradients_would_take_most_of_a_step(script: str, root: Path) -> None:
    assert warnings(sdk.plan(script, workers=4)) == []
    run = ran(root, sdk.plan(script))
    (said,) = warnings(sdk.plan(script, workers=4))
    assert "400 MB of gradients over 4 workers" in said
    assert "on this machine" in said
    assert f"the rest of a step took 0.2 s in the run {run.run_id} (cpu)" in said
    assert warnings(sdk.plan(script)) == [], "one worker exchanges nothing"


def test_a_plan_for_the_cloud_knows_the_bandwidth_of_its_machines(script: str, root: Path) -> None:
    ran(root, sdk.plan(script))
    cloud = sdk.Vertex(project="my-project", bucket="my-bucket", machine="n1-standard-8")
    (said,) = warnings(sdk.plan(script, workers=2, backend=cloud))
    assert "over 16 Gbit/s" in said


def test_gpus_on_several_machines_are_compared_by_the_wire_alone(script: str, root: Path) -> None:
    ran(root, sdk.plan(script))
    cloud = sdk.Vertex(project="my-project", bucket="my-bucket")
    (said,) = warnings(sdk.plan(script, workers=2, accelerator="l4", backend=cloud))
    assert "takes about 0.32 s over 10 Gbit/s" in said


@pytest.mark.parametrize("case", ["slow steps", "small", "unknown", "other program", "damaged", "servers"])
def test_nothing_is_said_without_a_reason(case: str, script: str, root: Path, write) -> None:
    plan, servers = sdk.plan(script), 1 if case == "servers" else 0
    if case == "other program":
        other = write("other.py", "print(2)\n")
        ran(root, sdk.plan(str(other), name=ids.name_of(plan.run_id)), run=plan.run_id)
    else:
        size = {"small": 4000, "unknown": None}.get(case, SIZE)
        paths = ran(root, plan, size=size, step_s=60.0 if case == "slow steps" else 0.2)
        if case == "damaged":
            next(Path(paths.events).iterdir()).write_text("{")
    assert warnings(sdk.plan(script, workers=4, ps=servers)) == []


def test_the_newest_run_that_has_shown_its_steps_counts(script: str, root: Path) -> None:
    plan = sdk.plan(script)
    name = ids.name_of(plan.run_id)
    ran(root, plan, run=f"{name}-aaaaaa", step_s=60.0)
    ran(root, plan, run=f"{name}-bbbbbb", step_s=0.2)
    ran(root, plan, run=f"{name}-cccccc", size=None)
    for number, letter in enumerate("abc"):
        os.utime(root / "runs" / f"{name}-{letter * 6}" / "plan.json", (1000 + number, 1000 + number))
    (said,) = warnings(sdk.plan(script, workers=4))
    assert f"{name}-bbbbbb" in said
