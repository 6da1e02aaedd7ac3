"""The agreements of containers when a task is restarted alone: the budgets, the task's container, the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdk.errors import MissingError, StoreError
from sdk.execution.agreement import LeaveError
from sdk.job.layout import RunPaths
from sdk.status import Reason
from sdk.storage.posix_store import PosixStore

from .cloud import lose_answers
from .test_shared_agreement import Service, ended

TASKS = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")
KEYS = RunPaths("")


class Job(Service):
    """The containers of a job with parameter servers, in its first attempt."""

    def __init__(self, store: PosixStore, **retry: int | None) -> None:
        super().__init__(store, TASKS, **retry)
        self.containers = self.all()
        self.form()

    def form(self) -> int:
        """Form the next attempt and return its number."""
        for task in reversed(TASKS[1:]):
            with pytest.raises(StoreError):
                self.containers[task].join(wait_s=0)
        [attempt] = {self.containers[task].join(wait_s=0).attempt for task in TASKS}
        return attempt

    def beat(self, **more: object) -> None:
        """Let the first task's container send a heartbeat."""
        try:
            known = self.store.stat(KEYS.heartbeat).generation
        except MissingError:
            known = None
        self.clock.time += 10
        self.store.swap(KEYS.heartbeat, [json.dumps({"now": self.clock.time, **more}).encode()], expected=known)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(PosixStore(str(tmp_path / "run")))


def test_tasks_that_are_restarted_alone_and_attempts_share_the_budgets(job: Job) -> None:
    first = job.containers["worker-0"].restart_alone(1, "worker-0", Reason.KILLED)
    assert first.restart
    assert first.why.startswith("Restarting worker-0 alone after an infrastructure failure (killed).")
    # One failure, and another one later.
    for task, left in {"worker-1": 1, "evaluator-0": 0}.items():
        why = job.containers[task].restart_alone(1, task, Reason.KILLED).why
        assert f"Restarts left after this one: {left}." in why
        job.clock.time += 60
    assert not job.containers["worker-1"].restart_alone(1, "worker-1", Reason.KILLED).restart
    # Preemptions have a separate budget, and a parameter server ends the attempt as always.
    assert job.containers["worker-1"].restart_alone(1, "worker-1", Reason.PREEMPTED).restart
    end = job.containers["ps-0"].conclude(1, ended(Reason.PREEMPTED), exit_code=134)
    assert end.restart
    # Too late to restart in an attempt that has ended.
    assert not job.containers["evaluator-0"].restart_alone(1, "evaluator-0", Reason.PREEMPTED).restart
    assert len(list(job.store.list(f"{KEYS.restarts(1)}/"))) == 4
    assert job.form() == 2
    assert not job.containers["worker-0"].restart_alone(2, "worker-0", Reason.KILLED).restart
    end = job.containers["worker-0"].conclude(2, ended(Reason.KILLED), exit_code=137)
    used_up = "2 of 2 restarts after an infrastructure failure are used up (retry_infrastructure)."
    assert (end.restart, end.why) == (False, f"Not restarted: {used_up}")


def test_a_task_that_always_ends_at_the_same_step_of_the_training_ends_the_run(tmp_path: Path) -> None:
    job = Job(PosixStore(str(tmp_path / "run")), infrastructure=9)
    worker = job.containers["worker-0"]
    assert worker.training_step() is None
    for seen in ({"progress": None}, {"progress": {"step": 7, "epoch": None}}):
        job.beat(**seen)
    assert worker.training_step() == 7
    decisions = [worker.restart_alone(1, "worker-0", Reason.KILLED, step=7) for _ in range(3)]
    assert [(each.restart, each.delay_s) for each in decisions] == [(True, 0), (True, 1), (False, 0)]
    end = worker.conclude(1, ended(Reason.KILLED), exit_code=137, step=7, not_restarted="worker-0")
    assert not end.restart and end.why.startswith("Not restarted: worker-0 ended 3 times at step 7")


def test_two_that_decide_at_the_same_time_do_not_both_take_the_last_restart(job: Job, monkeypatch) -> None:
    faster, slower, put_new = job.containers["worker-1"], job.containers["worker-0"], job.store.put_new
    job.containers["evaluator-0"].restart_alone(1, "evaluator-0", Reason.KILLED)
    job.clock.time += 60

    def interrupted(key: str, data: list[bytes]):
        monkeypatch.undo()
        job.clock.time += 60
        assert faster.restart_alone(1, "worker-0", Reason.KILLED).restart
        return put_new(key, data)

    monkeypatch.setattr(job.store, "put_new", interrupted)
    assert not slower.restart_alone(1, "worker-0", Reason.KILLED).restart


def test_a_decision_with_a_lost_answer_is_one_restart(job: Job, monkeypatch) -> None:
    lose_answers(monkeypatch, job.store)
    assert job.containers["worker-0"].restart_alone(1, "worker-0", Reason.KILLED).restart
    assert len(job.containers["worker-0"].restarts_of_task(1)) == 1


def test_a_new_container_of_such_a_task_joins_the_attempt_that_goes_on(job: Job) -> None:
    new = job.container("worker-0")
    job.beat()
    with pytest.raises(StoreError):
        new.join(wait_s=0)
    assert new.end_of(1) is None and not new.restarts_of_task(1), "all containers may be new"
    job.beat()
    joined = new.join(wait_s=0)
    assert (joined.attempt, joined.members["worker-0"]) == (1, new.nonce)
    [restart] = new.restarts_of_task(1)
    assert restart.reason is Reason.PREEMPTED
    # The old one, if it is still there, does not come back.
    with pytest.raises(LeaveError, match="replaced by a newer one"):
        job.containers["worker-0"].restart_alone(1, "worker-0", Reason.KILLED)
    # The next attempt has the new container.
    job.containers["ps-0"].conclude(1, ended(Reason.KILLED), exit_code=137)
    job.containers["worker-0"] = new
    assert job.form() == 2


def test_after_a_restart_of_the_whole_job_one_preemption_is_counted(job: Job) -> None:
    job.beat()
    new = {task: job.container(task) for task in TASKS}
    for task in ("worker-0", "worker-1", "evaluator-0", "chief-0"):
        with pytest.raises(StoreError):
            new[task].join(wait_s=0)
    end = new["worker-0"].end_of(1)
    assert end is not None and (end.reason, end.task, end.restart) == (Reason.PREEMPTED, "chief-0", True)
    job.containers = new
    assert job.form() == 2
    assert not list(job.store.list(f"{KEYS.restarts(1)}/"))


def test_a_new_container_that_the_budget_does_not_allow_ends_the_run(tmp_path: Path) -> None:
    job = Job(PosixStore(str(tmp_path / "run")), preemptions=0)
    new = job.container("worker-1")
    with pytest.raises(StoreError):
        new.join(wait_s=0)
    job.beat()
    with pytest.raises(LeaveError, match=r"the run has ended \(preempted\)"):
        new.join(wait_s=0)
