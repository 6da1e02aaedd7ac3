"""Clients whose clocks are wrong: what they decide about a run depends on the clocks of the bucket and of the service alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from support import LIMIT_S, made, until
from vertex_faults import Start

import sdk
from sdk import State
from sdk.backends.vertex.client import OutcomeUnknownError
from sdk.backends.vertex.create_job import JOB, CreatedJob
from sdk.backends.vertex.latest_job import LatestJob
from sdk.clock import SystemClock
from sdk.errors import MissingError
from sdk.records.recorder import read_events
from sdk.run import Run
from sdk.testing.vertex import Cloud

HOUR, DAY = 3600.0, 86400.0
HOLD = {"api": "vertex", "kind": "hold"}


class WrongClock(SystemClock):
    def __init__(self, by_s: float) -> None:
        self.by_s = by_s

    def now(self) -> float:
        return super().now() + self.by_s


@pytest.fixture
def start(start: Start) -> Callable[..., sdk.Run]:
    return partial(start, retry=sdk.Retry(infrastructure=1))


def job_of(cloud: Cloud) -> tuple[str, str]:
    """Return the name and the state of the first job."""
    first = made(cloud)[0]
    return first.name, first.state.name


@pytest.mark.parametrize("by_s", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_the_grace_of_a_cancellation_is_the_same_for_everyone_who_looks(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    podlift_vertex.faults(HOLD)
    run = start()
    wrong = Run(run.plan, WrongClock(by_s))
    # It writes the request, and is gone.
    wrong._handle._copy.request_cancel(0, 600.0)  # type: ignore[attr-defined]
    for each in (run, wrong, Run(run.plan, WrongClock(-by_s))):
        assert each.status().state is State.PENDING
        assert job_of(podlift_vertex)[1] == "JOB_STATE_QUEUED"
    # Ten minutes and more later.
    monkeypatch.setattr("sdk.backends.vertex.run._CANCEL_MARGIN_S", -602.0)
    Run(run.plan, WrongClock(by_s)).status()
    until(lambda: job_of(podlift_vertex)[1] == "JOB_STATE_CANCELLED", run.why)


def test_times_of_a_run_on_an_emulator_whose_clock_was_moved_are_those_of_this_machine(
    podlift_vertex: Cloud, start: Start
) -> None:
    podlift_vertex.advance(3 * DAY)
    began, run = time.time(), start("print('its only line')")
    podlift_vertex.advance(30 * DAY)
    status = run.wait(LIMIT_S)
    lasted_s = time.time() - began
    assert status.state is State.SUCCEEDED
    assert 0.0 <= status.timings["started"] <= status.timings["finished"] <= lasted_s
    (line,) = [line for line in run.logs() if line.text == "its only line"]
    assert began <= line.time <= began + lasted_s and line.attempt == 1
    moments = [moment.time for moment in run.timeline()]
    assert began - 1.0 <= min(moments) and max(moments) <= time.time() + 1.0, run.why()


def test_the_clock_of_google_is_not_asked_for_and_an_emulator_that_is_silent_is_asked_once(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    podlift_vertex.faults({"api": "vertex", "kind": "status_before", "operation": "customJobs.get"})
    looks = podlift_vertex.requests().operations.get("customJobs.get", 0)
    job = LatestJob(run.plan, run._handle._store, SystemClock())  # type: ignore[attr-defined]
    with pytest.raises(OutcomeUnknownError):
        job.ahead_s(1)
    assert podlift_vertex.requests().operations["customJobs.get"] == looks + 1
    monkeypatch.delenv("PODLIFT_EMULATOR")
    assert job.ahead_s(1) == 0.0


def test_a_job_that_only_the_list_has_is_looked_for_by_its_own_number(
    podlift_vertex: Cloud, start: Callable[..., sdk.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    podlift_vertex.advance(3 * DAY)
    run = start()
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    job = LatestJob(run.plan, run._handle._store, SystemClock())  # type: ignore[attr-defined]
    first = job.created(1)
    assert first is not None
    second = replace(job.client.get(first.name), name=f"{first.name}2", labels={JOB: "2"})

    def forgotten(*_: object, **__: object) -> None:
        raise MissingError("The service has no such job.")

    monkeypatch.setattr(job.client, "get", forgotten)
    monkeypatch.setattr(job.client, "list", lambda *_: [second])
    monkeypatch.setattr(job, "created", lambda number: CreatedJob(name=second.name))
    assert job.ahead_s(2) == pytest.approx(3 * DAY, abs=1.0)


@pytest.mark.full
def test_a_lost_job_is_booked_from_its_first_attempt_until_it_is_missed(podlift_vertex: Cloud, start: Start) -> None:
    run = start("import os, time; time.sleep(600 * (os.environ['PODLIFT_ATTEMPT'] == '1'))")
    run.status()
    until(lambda: run.status().attempts == 1, run.why)
    begun = read_events(run.plan.paths, ("attempt_started",))[0].time
    name, _ = job_of(podlift_vertex)
    podlift_vertex.jobs().cancel_custom_job(name=name, timeout=30)
    until(lambda: job_of(podlift_vertex)[1] == "JOB_STATE_CANCELLED", run.why)
    podlift_vertex.jobs().delete_custom_job(name=name, timeout=30)
    again = Run(run.plan, WrongClock(HOUR))
    assert again.wait(LIMIT_S).state is State.SUCCEEDED
    lost = next(event for event in read_events(run.plan.paths, ("final",)) if event.data["reason"] == "job_lost")
    # The service's Date has whole seconds.
    assert -1.0 <= lost.time - begun < LIMIT_S
    assert lost.data["spent"]["seconds"] == pytest.approx(max(0.0, lost.time - begun), abs=1.5)


@pytest.mark.full
def test_an_end_that_the_service_has_not_explained_yet_is_waited_for_by_the_clock_of_the_bucket(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.backends.vertex.states.is_explained", lambda _: False)
    monkeypatch.setattr("sdk.backends.vertex.run._ERROR_TEXT_S", 60.0)
    run = start("raise SystemExit(3)")
    until(lambda: job_of(podlift_vertex)[1] == "JOB_STATE_FAILED", run.why)
    assert Run(run.plan, WrongClock(HOUR)).status().state is State.RUNNING, "the explanation may still come"
    monkeypatch.setattr("sdk.backends.vertex.run._ERROR_TEXT_S", -2.0)
    assert Run(run.plan, WrongClock(-HOUR)).status().state is State.FAILED
