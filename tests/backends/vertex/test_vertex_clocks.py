"""Clients with wrong clocks: their decisions about a run depend only on the clocks of the bucket and of the service."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from support import LIMIT_S, made, until
from vertex_faults import HOLD

import sdk
from sdk import State
from sdk.backends.vertex.client import OutcomeUnknownError
from sdk.backends.vertex.job.create_job import JOB, CreatedJob
from sdk.backends.vertex.job.latest_job import LatestJob
from sdk.clock import SystemClock
from sdk.errors import MissingError
from sdk.run import Run

HOUR, DAY = 3600.0, 86400.0


class WrongClock(SystemClock):
    def __init__(self, by_s: float) -> None:
        self.by_s = by_s

    def now(self) -> float:
        return super().now() + self.by_s


@pytest.fixture
def start(start) -> Callable[..., sdk.Run]:
    return partial(start, retry=sdk.Retry(infrastructure=1))


def test_the_grace_of_a_cancellation_is_the_same_for_every_reader(cloud, start, monkeypatch) -> None:
    cloud.faults(HOLD)
    run = start()
    wrong = Run(run.plan, WrongClock(HOUR))
    # It writes the request, and is gone.
    wrong._handle._copy.request_cancel(0, 600.0)  # type: ignore[attr-defined]
    for each in (run, wrong, Run(run.plan, WrongClock(-HOUR))):
        assert each.status().state is State.PENDING
        assert made(cloud)[0].state.name == "JOB_STATE_QUEUED"
    # Ten minutes and more later.
    monkeypatch.setattr("sdk.backends.vertex.job.run._CANCEL_MARGIN_S", -602.0)
    Run(run.plan, WrongClock(HOUR)).status()
    until(lambda: made(cloud)[0].state.name == "JOB_STATE_CANCELLED", run.why)


def test_an_emulator_with_a_moved_clock_is_asked_for_its_time_and_google_is_not(cloud, start, monkeypatch) -> None:
    cloud.advance(3 * DAY)
    began, run = time.time(), start("print('its only line')")
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    lasted_s = time.time() - began
    status = run.status()
    assert 0.0 <= status.timings["started"] <= status.timings["finished"] <= lasted_s
    (line,) = [line for line in run.logs() if line.text == "its only line"]
    assert began <= line.time <= began + lasted_s and line.attempt == 1
    moments = [moment.time for moment in run.timeline()]
    assert began - 1.0 <= min(moments) and max(moments) <= time.time() + 1.0, run.why()

    job = LatestJob(run.plan, run._handle._store, SystemClock())  # type: ignore[attr-defined]
    cloud.faults({"api": "vertex", "kind": "status_before", "operation": "customJobs.get"})
    looks = cloud.requests().operations.get("customJobs.get", 0)
    with pytest.raises(OutcomeUnknownError):
        job.ahead_s(1)
    assert cloud.requests().operations["customJobs.get"] == looks + 1, "one that is silent is asked once"
    with monkeypatch.context() as patched:
        patched.delenv("PODLIFT_EMULATOR")
        assert job.ahead_s(1) == 0.0

    # A job that only the list has is looked for by its own number.
    cloud.faults()
    first = job.created(1)
    second = replace(job.client.get(first.name), name=f"{first.name}2", labels={JOB: "2"})

    monkeypatch.setattr(job.client, "get", Mock(side_effect=MissingError("The service has no such job.")))
    monkeypatch.setattr(job.client, "list", lambda *_: [second])
    monkeypatch.setattr(job, "created", lambda number: CreatedJob(name=second.name))
    assert job.ahead_s(2) == pytest.approx(3 * DAY, abs=1.0)
