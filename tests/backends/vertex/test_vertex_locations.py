"""A run that moves to a place in another region, and one with a next job that would cost more than it may."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, made

import sdk
from sdk import Reason, State
from sdk.hardware import accelerators, pricing
from sdk.job.plan import Plan
from sdk.testing.vertex import Cloud

NO_MACHINES = {"api": "vertex", "kind": "stockout", "times": 3}
PREEMPTED = {"api": "vertex", "kind": "preempt", "times": 7, "after_s": 0.3}
WHERE = "import os, sdk; print(os.environ['AIP_MODEL_DIR'], os.environ['AIP_CHECKPOINT_DIR'], sdk.context().dirs.tensorboard)"
PRICE = pricing.price(pricing.Rental(pools=accelerators.pools()))


def job_in(cloud: Cloud, region: str) -> Any:
    (found,) = cloud.jobs().list_custom_jobs(parent=f"projects/{cloud.project}/locations/{region}", timeout=30)
    return found


@pytest.mark.full
def test_a_job_in_another_region_uses_the_runs_directory_without_an_output_directory(cloud, start) -> None:
    cloud.faults(NO_MACHINES)
    places = ("us-central1:spot", "europe-west4")
    run = start(WHERE, retry={"infrastructure": 3}, regions=places)
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert [line.text for line in run.logs()] == [f"{run.url}/model/ {run.url}/checkpoints/ {run.url}/logs"]
    first, second = (job_in(cloud, region).job_spec.base_output_directory for region in ("us-central1", "europe-west4"))
    assert first.output_uri_prefix == f"{run.url}/"
    assert second.output_uri_prefix == ""


@pytest.mark.full
def test_no_job_is_made_above_the_remaining_budget_and_the_run_reports_its_cost(cloud, start, monkeypatch) -> None:
    """On the emulator nothing is billed: a price of 1 USD a second in the first place, and of 2 in the next, stands in."""

    def priced(plan: Plan, place: int) -> pricing.Price:
        return replace(PRICE, own=3600.0 * (place + 1), at_least=3600.0 * (place + 1))

    monkeypatch.setattr("sdk.backends.vertex.wait.resubmit.price", priced)
    cloud.faults(PREEMPTED)
    limits = {"timeout_s": 100.0, "max_cost_usd": 150.0}
    run = start(
        "import time; time.sleep(600)",
        limits=limits,
        retry={"preemptions": None},
        regions=("us-central1:spot", "us-central1"),
    )
    status = run.wait(LIMIT_S)
    assert (status.state, status.reason, status.exit_code) == (State.FAILED, Reason.BUDGET, 1)
    assert status.spent_usd is not None and status.spent_s is not None
    assert 0 < status.spent_usd == pytest.approx(status.spent_s)
    assert len(made(cloud)) == 1
    why = " ".join(run.why().split())
    assert f"The run has spent {status.spent_usd:.2f} USD in" in why
    assert "another job in us-central1:standard may cost" in why and "left of max_cost_usd=150." in why
    assert f"Spent: {status.spent_usd:.2f} USD in" in why
    assert "Another job was not made, because it could exceed the limit on the cost" in why
    assert "podlift resume" in why and "--code current" not in why
    (info,) = sdk.runs(root=f"gs://{cloud.bucket}/podlift")
    assert info.status is not None and info.status.spent_usd == status.spent_usd
    record = next(path for path in Path(run.plan.paths.events).iterdir() if ".final." in path.name)
    assert json.loads(record.read_text())["data"]["spent"]["usd"] == status.spent_usd
