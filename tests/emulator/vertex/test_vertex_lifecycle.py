"""The states of a job, without any process: exit codes, retries, preemptions, stockouts, time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdk.emulator.vertex.lifecycle import QUEUED, TERMINAL, Availability, JobStatus, JobTimings, Lifecycle
from sdk.emulator.vertex.lifecycle import SchedulingTerms as Terms

TIMINGS = JobTimings(queue_s=1.0, provision_s=2.0, stockout_s=3.0)
ROOM, STOCKOUT = Availability(), Availability(kind="stockout")
NAMES = ("workerpool0-0", "workerpool1-0", "workerpool1-1")


class Job:
    """A job with containers that obey at once."""

    def __init__(self, **terms) -> None:
        terms = Terms(replicas=NAMES, region="us-central1", logs_url="URL", **terms)
        self.life = Lifecycle(terms, TIMINGS, JobStatus(state=QUEUED, stage="queued", created=100.0, updated=100.0))
        self.said, self.actions = [], []
        self.take(self.life.enqueue)

    @property
    def status(self) -> JobStatus:
        return self.life.status

    @property
    def now(self) -> float:
        return self.life.now

    def take(self, step, *given) -> None:
        step(*given)
        actions, self.life.actions = self.life.actions, []
        assert JobStatus.from_dict(json.loads(json.dumps(self.status.to_dict()))) == self.status
        for act in actions:
            if act.kind == "log":
                self.said.append(act.text)
            else:
                self.actions.append(f"{act.kind} {act.replica}".strip())
        for act in actions:
            if act.kind == "start":
                self.take(self.life.replicas_started)
            if act.kind == "stop":
                self.take(self.life.replicas_stopped)

    def tick(self, market: Availability = ROOM, until: float | None = None) -> Job:
        self.life.now = self.status.due if until is None else until
        self.take(self.life.tick, market)
        return self

    def run(self) -> Job:
        while self.status.stage in ("queued", "provisioning"):
            self.tick()
        return self

    def exit(self, replica: str, code: int, **more) -> Job:
        self.run()
        self.take(lambda: self.life.replicas_exited({replica: code}, **more))
        return self

    def preempt(self, replica: str) -> Job:
        self.run()
        self.take(self.life.preempt, replica)
        return self.exit(replica, 143)

    @property
    def message(self) -> str:
        return self.status.outcome.message

    @property
    def state(self) -> str:
        return self.status.state.removeprefix("JOB_STATE_")


@pytest.mark.fidelity("states", "emulator")
def test_states_and_service_lines_come_in_googles_order() -> None:
    job = Job()
    states = [job.state]
    while job.status.stage in ("queued", "provisioning"):
        states.append(job.tick().state)
    assert states == ["QUEUED", "PENDING", "RUNNING"]
    job.exit("workerpool0-0", 0)
    assert job.said == [
        "Waiting for job to be provisioned.",
        "Vertex AI is provisioning job running framework. First time usage might take couple of minutes, and subsequent"
        " runs can be much faster.",
        "Vertex AI is setting up this job.",
        "Waiting for training program to start.",
        "Job is preparing.",
        "Job is running.",
        "Job completed successfully.",
    ]
    assert (job.status.created, job.status.started, job.status.ended) == (100.0, 103.0, 103.0)


@pytest.mark.fidelity("chief-decides", "emulator")
def test_the_chief_decides_about_success_alone() -> None:
    job = Job().exit("workerpool1-0", 0)
    assert job.state == "RUNNING"
    job.run()
    job.take(job.life.replicas_exited, {"workerpool1-1": 1, "workerpool0-0": 0})
    assert (job.state, job.actions) == ("SUCCEEDED", ["start", "stop", "close"])


@pytest.mark.parametrize("code", [1, 137, 255])
@pytest.mark.fidelity("permanent-errors", "emulator")
def test_codes_that_are_permanent(code) -> None:
    job = Job(restart_job=True).exit("workerpool1-0", code)
    assert (job.state, job.status.outcome.code) == ("FAILED", 3)
    assert job.message == (
        f"The replica workerpool1-0 exited with a non-zero status of {code}. Termination reason: Error. "
        "To find out more about why your job exited please check the logs: URL"
    )
    assert job.said[-2:] == ["Job failed.", job.message]


@pytest.mark.parametrize("code", [134, 139])
@pytest.mark.fidelity("container-restarts", "emulator")
def test_a_worker_that_crashes_is_restarted_five_times_and_the_job_three_times(code) -> None:
    job = Job()
    for retry in range(4):
        for _ in range(5):
            job.exit("workerpool1-0", code)
            assert job.state == "RUNNING"
        job.exit("workerpool1-0", code)
        assert job.state == ("FAILED" if retry == 3 else "PENDING")
    assert job.actions.count("start_one workerpool1-0") == 20
    assert job.actions.count("start") == 4
    assert f"status of {code}" in job.message


@pytest.mark.fidelity("whole-job-restarts", "emulator")
def test_with_restart_job_on_worker_restart_everything_restarts() -> None:
    job = Job(restart_job=True).exit("workerpool1-0", 134)
    assert (job.state, job.actions) == ("RUNNING", ["start", "stop", "start"])
    for _ in range(4):
        job.exit("workerpool1-0", 139)
    assert job.status.retries == 0
    assert job.exit("workerpool1-0", 139).state == "PENDING"


@pytest.mark.fidelity("memory", "emulator")
def test_out_of_memory_is_said_and_permanent() -> None:
    job = Job().exit("workerpool1-1", 137, killed={"workerpool1-1"})
    said = "The replica workerpool1-1 ran out of memory and exited with a non-zero status of 137."
    assert job.message.startswith(said)
    job = Job().run()
    job.take(job.life.out_of_memory, "workerpool0-0")
    assert job.state == "FAILED" and "ran out of memory" in job.message


@pytest.mark.fidelity("spot-preemption", "emulator")
def test_a_spot_job_survives_six_preemptions() -> None:
    job = Job(spot=True)
    for _ in range(6):
        job.preempt("workerpool1-0")
        assert job.state == "PENDING"
    job.preempt("workerpool0-0")
    assert (job.state, job.status.outcome.code) == ("FAILED", 8)
    assert job.message == (
        "Resources are insufficient in region: us-central1. Try a different region or use a different accelerator."
    )
    assert job.actions.count("start") == 7
    assert Job(spot=True, retries=False).preempt("workerpool0-0").state == "FAILED"


@pytest.mark.fidelity("machine-replaced", "emulator")
def test_maintenance_moves_one_worker_or_restarts_all_and_is_not_counted() -> None:
    job = Job()
    for _ in range(20):
        job.preempt("workerpool1-1")
    assert job.state == "RUNNING"
    assert job.actions[1:3] == ["preempt workerpool1-1", "start_one workerpool1-1"]
    assert Job(restart_job=True).preempt("workerpool1-1").state == "PENDING"


@pytest.mark.fidelity("stockout", "emulator")
@pytest.mark.fidelity("flex-start", "emulator")
def test_a_stockout_is_tried_three_times_and_flex_start_waits() -> None:
    job = Job().tick()
    assert [job.tick(STOCKOUT).state for _ in range(3)] == ["PENDING", "PENDING", "FAILED"]
    assert job.status.outcome.code == 8
    job = Job().tick().tick(STOCKOUT).tick(STOCKOUT).tick()
    assert job.state == "RUNNING"
    job = Job(flex=True, max_wait_s=3600.0).tick()
    while job.status.stage == "provisioning":
        job.tick(STOCKOUT)
    assert (job.state, job.now, job.status.started) == ("EXPIRED", 100.0 + 3600.0, None)
    patient = Job(flex=True).tick()
    for _ in range(300):
        patient.tick(STOCKOUT)
    assert patient.state == "PENDING"


@pytest.mark.fidelity("timeout", "emulator")
def test_the_timeout_is_for_running_time_and_survives_restarts() -> None:
    job = Job(timeout_s=1000.0, spot=True).preempt("workerpool1-0").run()
    began = job.status.started
    assert job.status.due == began + 1000.0
    job.tick()
    assert (job.state, job.status.outcome.code, job.now) == ("CANCELLED", 1, began + 1000.0)
    assert "exceeded its timeout of 1000 seconds" in job.message


@pytest.mark.fidelity("internal-errors", "emulator")
def test_internal_errors_are_restarted_twice() -> None:
    job = Job()
    for expected in ("PENDING", "PENDING", "FAILED"):
        job.run()
        job.take(job.life.internal_error)
        assert job.state == expected
    assert job.status.outcome.code == 13
    assert job.message == "Internal error occurred for the current attempt."


@pytest.mark.fidelity("cancel", "emulator")
def test_cancel_in_every_phase_ends_as_cancelled() -> None:
    job = Job()
    job.take(job.life.cancel)
    assert job.state == "CANCELLING"
    assert job.tick().state == "CANCELLED" and job.status.outcome.code == 1 and job.actions == ["close"]
    job = Job().run()
    job.take(job.life.cancel)
    assert (job.state, job.status.started, job.status.outcome.message) == ("CANCELLED", job.now, "CANCELED")
    done = Job().run()
    done.take(done.life.replicas_exited, {"workerpool0-0": 0})
    assert (job.state, done.state) == ("CANCELLED", "SUCCEEDED")
    for ended in (job, done):
        before = (ended.status, [*ended.actions], [*ended.said])
        ended.take(ended.life.cancel)
        assert (ended.status, ended.actions, ended.said) == before


def test_a_dead_servers_jobs() -> None:
    job = Job().run()
    running, job.life.now = job.status, 200.0
    job.life.recover()
    assert (job.state, job.status.outcome.code, job.status.ended) == ("FAILED", 13, 200.0)
    job.life.status = replace(running, stage="stopping", state="JOB_STATE_CANCELLING")
    job.life.recover()
    assert job.state == "CANCELLED"


STEPS = ["tick", "stockout", "held", "cancel", "internal", "began", "stopped"]
EVENTS = st.lists(
    st.tuples(st.just("exit"), st.sampled_from(NAMES), st.sampled_from([0, 1, 134, 137, 139, 143]))
    | st.tuples(st.sampled_from(["preempt", "oom"]), st.sampled_from((*NAMES, "nobody")), st.just(0))
    | st.tuples(st.sampled_from(STEPS), st.just(""), st.just(0)),
    max_size=60,
)


def happen(life: Lifecycle, what: str, replica: str, code: int) -> None:
    steps = {
        "exit": lambda: life.replicas_exited({replica: code}),
        "preempt": lambda: life.preempt(replica),
        "oom": lambda: life.out_of_memory(replica),
        "tick": lambda: life.tick(ROOM),
        "stockout": lambda: life.tick(STOCKOUT),
        "held": lambda: life.tick(Availability(kind="held")),
        "cancel": life.cancel,
        "internal": life.internal_error,
        "began": life.replicas_started,
        "stopped": life.replicas_stopped,
    }
    steps[what]()


@settings(max_examples=80, deadline=None)
@given(EVENTS, st.sampled_from(["", "spot", "flex"]), st.booleans(), st.booleans())
def test_any_order_of_events_keeps_the_rules_of_a_life(events, kind, restart_job, retries) -> None:
    kinds = {"": {}, "spot": {"spot": True}, "flex": {"flex": True, "max_wait_s": 60.0}}
    life = Job(**kinds[kind], restart_job=restart_job, retries=retries).life
    for what, name, code in events:
        before = life.status
        life.now += 1.0
        life.actions.clear()
        happen(life, what, name, code)
        status, actions = life.status, life.actions
        assert (status.stage == "over") == (status.state in TERMINAL) == (status.ended is not None)
        assert status.outcome is not None or status.stage != "over"
        if before.stage == "over":
            assert (status, actions) == (before, [])
        if before.state == "JOB_STATE_CANCELLING":
            assert status.state in ("JOB_STATE_CANCELLING", *TERMINAL)
        if before.started is not None:
            assert status.started == before.started
        assert sum(act.kind == "close" for act in actions) == (status.stage == "over" and before.stage != "over")
        assert JobStatus.from_dict(json.loads(json.dumps(status.to_dict()))) == status
