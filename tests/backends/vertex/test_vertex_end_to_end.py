"""A new user's first job, by Google's own client on an emulated Vertex AI: from the submit to weights that are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import sdk
from sdk import api
from sdk.drill.comparison import compare_ends, end_of
from sdk.layout import RunPaths
from sdk.testing.vertex import Cloud

REPO = Path(__file__).resolve().parents[3]
DIGITS = REPO / "jobs" / "digits" / "train.py"
LIMIT_S = 300.0


def start(cloud: Cloud, *, workers: int, epochs: int, every_steps: int = 50) -> sdk.Run:
    """Submit the digits, with everything that is random decided: two of these are the same training."""
    job = sdk.Job(
        str(DIGITS),
        args=["--epochs", str(epochs)],
        resources=sdk.Resources(workers=workers),
        checkpoints=sdk.Checkpoints(every_steps=every_steps),
        retry=sdk.Retry(infrastructure=3, preemption=None),
    )
    plan = sdk.plan(job, backend=cloud.backend())
    return api.execute(replace(plan, drill={"seed": 7, "kills": []}))


def objects(cloud: Cloud, run: sdk.Run) -> set[str]:
    """Return the names of all objects of the bucket, those of the run without its directory."""
    place = run.url.partition("://")[2].partition("/")[2] + "/"
    return {blob.name.removeprefix(place) for blob in cloud.client().list_blobs(cloud.bucket)}


def test_digits_is_trained_and_everything_lies_in_the_bucket(podlift_vertex: Cloud, tmp_path: Path) -> None:
    run = start(podlift_vertex, workers=1, epochs=3)
    result = run.result(LIMIT_S)
    assert result.metrics["val_accuracy"] is not None
    assert len(run.metrics()) == 3
    assert [entry.step for entry in run.checkpoints()][-1] == 72
    there = objects(podlift_vertex, run)
    assert f"podlift/bundles/{run.plan.digest}.tar" in there
    assert {"plan.json", "jobs/0001.order.json", "jobs/0001.intent.json", "jobs/0001.made.json"} <= there
    assert {"attempts/0001/claim.json", "events/0001.chief-0.000001.entry.json", "model/digits.keras"} <= there
    (job,) = podlift_vertex.jobs().list_custom_jobs(parent=podlift_vertex.parent, timeout=30)
    assert job.labels["podlift-run"] == run.id
    assert (job.labels["podlift-job"], job.state.name) == ("1", "JOB_STATE_SUCCEEDED")
    run.download(tmp_path / "home")
    assert (tmp_path / "home" / "model" / "digits.keras").stat().st_size > 10_000
    podlift_vertex.forget_requests()
    again = start(podlift_vertex, workers=1, epochs=3)
    sent = [each["object"] for each in podlift_vertex.requests().recent if each["operation"] == "objects.insert"]
    assert again.plan.digest == run.plan.digest
    assert [name for name in sent if "/bundles/" in name] == [], "the same code is not uploaded again"
    again.cancel(grace_s=0)
    assert again.wait(LIMIT_S).state is sdk.State.CANCELLED


@pytest.mark.full
def test_a_preempted_cluster_ends_with_the_weights_of_an_undisturbed_one(podlift_vertex: Cloud) -> None:
    whole = start(podlift_vertex, workers=3, epochs=12)
    assert whole.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    taken = {"api": "vertex", "kind": "preempt", "replica": "workerpool1-0", "log": r"Epoch 3/12"}
    podlift_vertex.faults(taken)
    run = start(podlift_vertex, workers=3, epochs=12)
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED
    assert status.attempts == 2
    assert "Before that, attempt 1" in run.why()
    there = objects(podlift_vertex, run)
    assert {"attempts/0001/claim.json", "attempts/0002/claim.json"} <= there
    assert any(name.startswith("events/0002.worker-1.") for name in there)
    steps = [entry.step for entry in run.checkpoints()]
    assert steps[-1] == 288
    ends = [end_of(RunPaths(each.url)) for each in (whole, run)]
    assert compare_ends(ends[0], ends[1]) == ([], [])  # type: ignore[arg-type]
    second = [line.text for line in run.logs(task="chief-0", attempt=2)]
    assert not any("Epoch 1/12" in line for line in second), "it went on where it was"
