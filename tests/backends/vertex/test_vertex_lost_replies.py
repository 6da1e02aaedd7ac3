"""A submit that loses one answer, or one request, at a time, whichever it is: one run, one job, and no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import full_only, made
from vertex_faults import HOLD

import sdk
from sdk import Reason, api
from sdk.errors import PodliftError
from sdk.storage.retry import RetryPolicy
from sdk.testing.vertex import Cloud

# The default run takes each ninth call.
EVERY = [9, full_only(1)]


@pytest.fixture
def submit(cloud, project, monkeypatch) -> Callable[..., sdk.Run]:
    """Submit a trivial program to an empty cloud with these faults. Its job stays in the queue."""
    monkeypatch.setattr("sdk.backends.vertex.job.create_job.SEARCH_DELAYS_S", (0.0, 0.05))
    Path("program.py").write_text("print('here')")

    def act(*faults: dict[str, Any]) -> sdk.Run:
        cloud.reset()
        cloud.make_bucket()
        cloud.forget_requests()
        cloud.faults(HOLD, *faults)
        return sdk.submit("program.py", backend=cloud.backend())

    return act


def calls(cloud: Cloud) -> dict[str, list[str]]:
    """Return the operations that were called, in their order, of each service."""
    found: dict[str, list[str]] = {"gcs": [], "vertex": []}
    for entry in cloud.requests().recent:
        # A request is recorded after its answer: that for the bucket perhaps after the others were forgotten.
        if entry["operation"] == "buckets.insert":
            continue
        found["vertex" if entry["operation"].startswith("customJobs") else "gcs"].append(entry["operation"])
    return found


def one_at_a_time(cloud: Cloud, submit: Callable[..., sdk.Run], kind: str, every: int) -> Iterator[tuple[str, sdk.Run]]:
    """Yield the run of a submit for each call, and which call failed."""
    # The first one measures the machine and fills caches.
    for _ in range(2):
        submit()
    counts = {service: len(operations) for service, operations in calls(cloud).items()}
    assert counts["vertex"] == 1 and counts["gcs"] > 10, counts
    for service, count in counts.items():
        for number in range(1, count + 1, every):
            run = submit({"api": service, "kind": kind, "nth": number})
            (failed,) = [entry for entry in cloud.requests().recent if kind in entry["faults"]]
            yield f"{kind} of call {number}, {failed['operation']} {failed['object']}", run


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", ["drop_after", "drop_before"])
def test_whichever_call_of_a_submit_is_lost_there_is_one_run_with_one_job(cloud, submit, kind, every) -> None:
    lost = []
    for call, run in one_at_a_time(cloud, submit, kind, every):
        jobs = made(cloud)
        assert [job.labels["podlift-run"] for job in jobs] == [run.id], call
        runs = api.runs(root=f"gs://{cloud.bucket}/podlift")
        assert [(info.id, info.status and info.status.reason) for info in runs] == [(run.id, Reason.QUEUED)], call
        lost.append(call)
    assert any("customJobs.create" in call for call in lost) and any("objects.insert" in call for call in lost)


OPERATIONS = ("buckets.get", "objects.insert", "customJobs.create")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_call_that_is_lost_every_time_is_an_error_with_the_known_facts(cloud, submit, monkeypatch, operation) -> None:
    hasty = RetryPolicy(total_s=0.3, first_s=0.3)
    for name in ("job.start_run.INTERACTIVE", "job.start_run.SYNC_RETRY"):
        monkeypatch.setattr(f"sdk.backends.vertex.{name}", hasty)
    for name in ("index.SYNC_RETRY", "index.FILES_RETRY", "push.FILES_RETRY"):
        monkeypatch.setattr(f"sdk.records.sync.{name}", hasty)
    of_vertex = operation.startswith("customJobs")
    with pytest.raises(PodliftError) as caught:
        submit({"api": "vertex" if of_vertex else "gcs", "kind": "drop_before", "operation": operation})
    text = str(caught.value)
    assert f"emulator at 127.0.0.1:{cloud.port} cannot be reached" in text
    expected = "If it created a job, podlift will find it by its label. Next: podlift status" if of_vertex else "gs://"
    assert expected in text and cloud.url.rpartition("/")[2] not in text, "the token is a secret"
    assert cloud.requests().operations.get("customJobs.create", 0) == (3 if of_vertex else 0)
