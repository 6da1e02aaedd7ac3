"""Parameter servers and an evaluator on Vertex AI: pools 2 and 3 of the emulator, told apart as Vertex AI tells them."""

from __future__ import annotations

from typing import Any

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import PROGRAMS

import sdk
from sdk.testing.vertex import Cloud


def succeeded(run: sdk.Run) -> sdk.Run:
    status = run.wait(timeout_s=LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, (status, [line.text for line in run.logs()][-40:])
    return run


def printed(run: sdk.Run, task: str) -> str:
    return "\n".join(line.text for line in run.logs(task=task))


@pytest.mark.full
def test_an_evaluator_goes_on_when_the_chief_is_preempted_and_ends_with_the_training(
    write: Any, podlift_vertex: Cloud
) -> None:
    write("train.py", (PROGRAMS / "evaluated.py").read_text())
    chief = "workerpool0-0"
    # Once: the chief prints it after its second step.
    fault = {"api": "vertex", "kind": "preempt", "replica": chief, "writer": chief, "log": '"sum"'}
    podlift_vertex.faults(fault)
    job = sdk.Job(
        "train.py",
        args=["loop", "0.2"],
        resources=sdk.Resources(evaluator=True),
        checkpoints=sdk.Checkpoints(every_steps=2, keep_last=20, on_busy="block"),
        retry=sdk.Retry(preemptions=None),
        limits=sdk.Limits(timeout_s=LIMIT_S, grace_s=30),
    )
    run = succeeded(sdk.submit(job, backend=podlift_vertex.backend()))
    assert run.status().attempts == 2
    steps = [record["step"] for record in run.metrics() if "val_sum" in record["metrics"]]
    assert steps == sorted(set(steps)) and {2, 4, 6, 8} <= set(steps), "each checkpoint once"
    assert "evaluator: the training has ended" in printed(run, "evaluator-0")
