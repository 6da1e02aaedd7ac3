"""Each fault of the emulated service: the message to the user, the repeated requests, and the single job."""

from __future__ import annotations

import pytest
from support import LIMIT_S, full_only, heard, made, until
from vertex_faults import HOLD, asked, vertex

from sdk import State, api
from sdk.backends.vertex.client import VertexRejectedError
from sdk.status import Progress


@pytest.fixture(autouse=True)
def _lost_jobs_are_searched_for_at_once(monkeypatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.job.create_job.SEARCH_DELAYS_S", (0.0, 0.05))


def test_a_denied_cancel_is_reported_and_the_run_can_still_be_read(cloud, start, monkeypatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.job.run._CANCEL_MARGIN_S", 0.0)
    cloud.faults(HOLD, vertex("deny", "customJobs.cancel"))
    run, lines = start(), heard("backends")
    with pytest.raises(VertexRejectedError, match=r"refuses to cancel the job.*roles/aiplatform\.user"):
        run.cancel(grace_s=0)
    assert [run.status().state for _ in range(2)] == [State.PENDING] * 2
    (line,) = lines
    assert line.startswith("The time to stop by itself is over for the job. The emulator at ")
    assert asked(cloud, "customJobs.cancel") == 2
    cloud.faults(HOLD)
    assert api.attach(run.url).wait(LIMIT_S).state is State.CANCELLED, "any client that may cancels it"


@pytest.mark.parametrize(
    ("kind", "requests"), [full_only("status_before", 2), ("silent_before", 2), ("silent_after", 1)]
)
def test_whatever_becomes_of_the_create_request_there_is_one_job(cloud, start, monkeypatch, kind, requests) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._WRITE_S", 0.3)
    cloud.faults(HOLD, vertex(kind, "customJobs.create", nth=1))
    lines = heard("backends")
    run = start()
    until(lambda: asked(cloud, "customJobs.create") == requests)
    (job,) = made(cloud)
    assert (job.labels["podlift-run"], run.status().state) == (run.id, State.PENDING)
    assert lines[0].startswith("Request 1 for a job in us-central1 got no answer:")
    if kind.startswith("silent"):
        assert "has accepted the request, but did not answer within 0.3 s." in lines[0]


@pytest.mark.full
def test_a_replica_is_preempted_once_the_run_reports_a_step(cloud, start, monkeypatch) -> None:
    run = start("import time; print('started', flush=True); time.sleep(600)", provisioning="spot")
    until(lambda: any(line.text == "started" for line in run.logs()), run.status)
    reports = iter([None, Progress(step=3), Progress(step=12)])
    monkeypatch.setattr(run, "progress", lambda: next(reports))
    assert cloud.preempt_at_step(run, 12)
    assert next(reports, "all were read") == "all were read"
    (job,) = made(cloud)
    said = [entry["textPayload"] for entry in cloud.entries(job.name, "service")]
    assert "The machine of workerpool0-0 is being taken away." in said
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is State.CANCELLED
    assert not cloud.preempt_at_step(run, 12), "it has ended"
