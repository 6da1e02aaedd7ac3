"""A job that the service no longer knows is followed by another one; one answer alone does not make it lost."""

from __future__ import annotations

import pytest
from support import LIMIT_S, FakeClock, made, until
from vertex_faults import HOLD, only_run

import sdk
from sdk import Reason, State, api
from sdk.backends.containers import upload_archives
from sdk.backends.vertex.client import JobClient, OutcomeUnknownError
from sdk.backends.vertex.job import start_run
from sdk.backends.vertex.job.create_job import JobNotCreatedError
from sdk.backends.vertex.wait.waiting import WaitingLease
from sdk.clock import SystemClock
from sdk.records.sync.cancels import request_cancel
from sdk.storage.gcs.store import GcsStore

GET = {"api": "vertex", "kind": "status_before", "operation": "customJobs.get", "status": 404}


def test_a_lost_job_is_followed_by_another_and_a_single_answer_is_no_proof_of_loss(cloud, start) -> None:
    cloud.faults(HOLD)
    run = start(retry=sdk.Retry(infrastructure=1))
    cloud.faults(HOLD, {**GET, "times": 2})
    with pytest.raises(sdk.WaitTimeoutError):
        run.wait(1.0)
    (job,) = made(cloud)
    cloud.jobs().cancel_custom_job(name=job.name, timeout=30)
    until(lambda: made(cloud)[0].end_time)
    cloud.jobs().delete_custom_job(name=job.name, timeout=30)
    cloud.faults()
    # Its tasks have agreed on no end.
    status, why = api.attach(run.url).status(), api.attach(run.url).why()
    assert (status.state, status.reason, status.exit_code) == (State.LOST, Reason.JOB_LOST, 3)
    assert f"no longer has the job {job.name}" in why and "supervisor" not in why
    assert why.endswith(f"podlift resume {run.url}")
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert "job 1 ended (job_lost)" in " ".join(run.why().split())


def unanswered(*_: object) -> None:
    raise OutcomeUnknownError("no answer")


def test_a_cancelled_job_missing_at_the_service_is_cancelled_before_the_run_ends(cloud, start, monkeypatch) -> None:
    cloud.faults(HOLD)
    run = start()
    (job,) = made(cloud)
    monkeypatch.setattr("sdk.backends.vertex.job.create_job.find_labelled", lambda *_: [])
    # As by another client that lost its own cancel of the job.
    request_cancel(GcsStore(f"{cloud.bucket}/podlift/runs/{run.id}"), 0, b'{"grace_s": 60}')
    cloud.faults(HOLD, GET)
    with monkeypatch.context() as patch:
        patch.setattr(JobClient, "cancel", unanswered)
        assert run.status().state is State.LOST, "nobody knows whether the service has heard of it"
    until(lambda: run.status().state is State.CANCELLED)
    cloud.faults()
    # It was there all the time, and would have run until its time limit.
    assert [found.name for found in made(cloud)] == [job.name]
    until(lambda: made(cloud)[0].state.name == "JOB_STATE_CANCELLED")


def test_a_resume_prevents_the_job_that_counts_as_lost(cloud, start, monkeypatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    cloud.faults(HOLD)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(JobClient, "create", killed)
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
