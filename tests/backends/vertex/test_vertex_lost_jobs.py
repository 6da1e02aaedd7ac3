"""A job that the service no longer knows, and replies and requests that are lost: one run, one job, one message."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from support import LIMIT_S, FakeClock, full_only, made, until
from vertex_faults import HOLD, only_run, vertex

import sdk
from sdk import Reason, State, api
from sdk.backends.containers import upload_archives
from sdk.backends.vertex.client import JobClient, OutcomeUnknownError
from sdk.backends.vertex.job import start_run
from sdk.backends.vertex.job.create_job import JobNotCreatedError
from sdk.backends.vertex.wait.waiting import WaitingLease
from sdk.clock import SystemClock
from sdk.errors import PodliftError
from sdk.records.sync.cancels import request_cancel
from sdk.storage.gcs.store import GcsStore
from sdk.storage.retry import RetryPolicy

GET = vertex("status_before", "customJobs.get", status=404)


def test_a_lost_job_is_followed_by_another_and_a_single_answer_is_no_proof_of_loss(cloud, start) -> None:
    cloud.faults(HOLD)
    run = start(retry=sdk.Retry(infrastructure=1))
    cloud.faults(HOLD, {**GET, "times": 2})
    with pytest.raises(sdk.WaitTimeoutError):
        run.wait(1.0)
    (job,), jobs = made(cloud), cloud.jobs()
    jobs.cancel_custom_job(name=job.name, timeout=30)
    until(lambda: made(cloud)[0].end_time)
    jobs.delete_custom_job(name=job.name, timeout=30)
    cloud.faults()
    # Its tasks have agreed on no end.
    status, why = api.attach(run.url).status(), api.attach(run.url).why()
    assert (status.state, status.reason, status.exit_code) == (State.LOST, Reason.JOB_LOST, 3)
    assert f"no longer has the job {job.name}" in why and "supervisor" not in why
    assert why.endswith(f"podlift resume {run.url}")
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert "job 1 ended (job_lost)" in " ".join(run.why().split())


def test_a_cancelled_job_missing_at_the_service_is_cancelled_before_the_run_ends(cloud, start, monkeypatch) -> None:
    cloud.faults(HOLD)
    run = start()
    (job,) = made(cloud)
    monkeypatch.setattr("sdk.backends.vertex.job.create_job.find_labelled", lambda *_: [])
    # As by another client that lost its own cancel of the job.
    request_cancel(GcsStore(f"{cloud.bucket}/podlift/runs/{run.id}"), 0, b'{"grace_s": 60}')
    cloud.faults(HOLD, GET)
    with monkeypatch.context() as patch:
        patch.setattr(JobClient, "cancel", Mock(side_effect=OutcomeUnknownError("no answer")))
        assert run.status().state is State.LOST, "nobody knows whether the service has heard of it"
    until(lambda: run.status().state is State.CANCELLED)
    cloud.faults()
    # It was there all the time, and would have run until its time limit.
    assert [found.name for found in made(cloud)] == [job.name]
    until(lambda: made(cloud)[0].state.name == "JOB_STATE_CANCELLED")


def test_a_resume_prevents_the_job_that_counts_as_lost(cloud, start, monkeypatch) -> None:
    cloud.faults(HOLD)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(JobClient, "create", Mock(side_effect=KeyboardInterrupt))
        start()
    monkeypatch.setattr("sdk.backends.vertex.job.latest_job._START_LIMIT_S", 0.0)
    run = only_run(cloud)
    assert run.status().state is State.LOST
    run.resume()
    # Another process had begun to wait before, and asks for the first job now.
    late = start_run.creation(run.plan, 1, SystemClock(), upload_archives(run.plan))
    with pytest.raises(JobNotCreatedError):
        late.attempt()
    assert [job.labels["podlift-job"] for job in made(cloud)] == ["2"]


def test_one_of_two_waiting_processes_may_leave_and_the_other_one_is_still_seen(cloud) -> None:
    place, clock = f"{cloud.bucket}/podlift/runs/r-aaaaaa", FakeClock()
    store = GcsStore(place)
    first, second = (WaitingLease(f"gs://{place}", store, clock) for _ in range(2))
    first.renew()
    second.renew()
    second.release()
    assert first.is_held()
    # Alone, it leaves at once.
    clock.sleep(20.0)
    first.renew()
    clock.sleep(200.0)
    first.renew()
    first.release()
    assert not first.is_held()


@pytest.fixture
def submit(cloud, start, monkeypatch) -> Callable[..., sdk.Run]:
    """Submit a trivial program to an empty cloud with these faults. Its job stays in the queue."""
    monkeypatch.setattr("sdk.backends.vertex.job.create_job.SEARCH_DELAYS_S", (0.0, 0.05))

    def act(*faults: dict[str, Any]) -> sdk.Run:
        cloud.reset()
        cloud.make_bucket()
        cloud.forget_requests()
        cloud.faults(HOLD, *faults)
        return start()

    return act


# The default run takes each ninth call.
@pytest.mark.parametrize("every", [9, full_only(1)])
@pytest.mark.parametrize("kind", ["drop_after", "drop_before"])
def test_whichever_call_of_a_submit_is_lost_there_is_one_run_with_one_job(cloud, submit, kind, every) -> None:
    # The first one fills caches, and the second one is counted.
    for _ in range(2):
        submit()
    operations = [entry["operation"] for entry in cloud.requests().recent]
    # A request is recorded after its answer: that for the bucket perhaps after the others were forgotten.
    services = ["vertex" if each.startswith("customJobs") else "gcs" for each in operations if each != "buckets.insert"]
    counts = Counter(services)
    assert counts["vertex"] == 1 and counts["gcs"] > 10, operations
    lost = []
    for service, number in [(each, at) for each in counts for at in range(1, counts[each] + 1, every)]:
        run = submit({"api": service, "kind": kind, "nth": number})
        (failed,) = [entry for entry in cloud.requests().recent if kind in entry["faults"]]
        lost.append(failed["operation"])
        assert [job.labels["podlift-run"] for job in made(cloud)] == [run.id], failed
        runs = api.runs(root=f"gs://{cloud.bucket}/podlift")
        assert [(info.id, info.status and info.status.reason) for info in runs] == [(run.id, Reason.QUEUED)], failed
    assert {"customJobs.create", "objects.insert"} <= set(lost)


@pytest.mark.parametrize("operation", ["buckets.get", "objects.insert", "customJobs.create"])
def test_a_call_that_is_lost_every_time_is_an_error_with_the_known_facts(cloud, submit, monkeypatch, operation) -> None:
    of_vertex, hasty = operation.startswith("customJobs"), RetryPolicy(total_s=0.3, first_s=0.3)
    retries = ["backends.vertex.job.start_run.INTERACTIVE", "backends.vertex.job.start_run.SYNC_RETRY"]
    retries += [f"records.sync.{name}" for name in ("index.SYNC_RETRY", "index.FILES_RETRY", "push.FILES_RETRY")]
    # A call to the bucket that succeeds may take longer on a busy machine.
    for name in [] if of_vertex else retries:
        monkeypatch.setattr(f"sdk.{name}", hasty)
    with pytest.raises(PodliftError) as caught:
        submit({"api": "vertex" if of_vertex else "gcs", "kind": "drop_before", "operation": operation})
    text = str(caught.value)
    assert f"emulator at 127.0.0.1:{cloud.port} cannot be reached" in text
    expected = "If it created a job, podlift will find it by its label. Next: podlift status" if of_vertex else "gs://"
    assert expected in text and cloud.url.rpartition("/")[2] not in text, "the token is a secret"
    assert cloud.requests().operations.get("customJobs.create", 0) == (3 if of_vertex else 0)
