"""The agreements of a job's containers, and of the agent of all tasks: an attempt, its end, restarts of one task."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path

import pytest
from support import FakeClock, heard, until

import sdk
from sdk.errors import CorruptRunError, MissingError, StoreError
from sdk.execution import shared_agreement
from sdk.execution.agreement import LeaveError, Membership, OwnAgreement
from sdk.execution.shared_agreement import SharedAgreement
from sdk.job.layout import RunPaths
from sdk.job.payload import Payload
from sdk.job.policies import Retry
from sdk.records.sync import index
from sdk.records.verdicts import CANCELLED, AttemptEnd, failed, final
from sdk.status import EXIT_CANCELLED, EXIT_INFRASTRUCTURE, EXIT_USER, Failure, Reason, State
from sdk.storage.posix_store import PosixStore

from .cloud import lose_answers

TASKS = ("chief-0", "worker-0", "worker-1")
KEYS = RunPaths("")


def ended(reason: Reason) -> AttemptEnd:
    return AttemptEnd(state=State.SUCCEEDED if reason is Reason.DONE else State.FAILED, reason=reason)


class Service:
    """Starts containers, one after the other."""

    def __init__(self, store: PosixStore, tasks: tuple[str, ...] = TASKS, **retry: int | None) -> None:
        self.store, self.tasks, self.clock = store, tasks, FakeClock()
        self.retry = Retry(**{"infrastructure": 2, **retry})

    def container(self, task: str, *, job: int = 1, **more) -> SharedAgreement:
        self.clock.time += 1
        more = {"retry": self.retry, **more}
        return SharedAgreement(self.store, task, self.tasks, job, self.clock, **more)

    def all(self, **more) -> dict[str, SharedAgreement]:
        return {task: self.container(task, **more) for task in reversed(self.tasks)}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(PosixStore(str(tmp_path / "run")))


def waits(container: SharedAgreement, why: str | None = None) -> None:
    """The container joins no attempt now."""
    with pytest.raises(StoreError, match=why):
        container.join(wait_s=0)


def leaves(container: SharedAgreement, why: str) -> int | None:
    """Return the code with which the container leaves instead of joining an attempt."""
    with pytest.raises(LeaveError, match=why) as left:
        container.join(wait_s=0)
    return left.value.code


def joined(containers: dict[str, SharedAgreement]) -> Membership:
    """Return the attempt that all of these join, the first task's container last."""
    for task, container in containers.items():
        if task != TASKS[0]:
            waits(container)
    found = [container.join(wait_s=0) for container in reversed(containers.values())]
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.fixture
def containers(service: Service) -> dict[str, SharedAgreement]:
    """The containers of a job in its first attempt."""
    found = service.all()
    joined(found)
    return found


def test_the_same_containers_take_part_in_attempt_after_attempt(service: Service) -> None:
    containers = service.all()
    first = joined(containers)
    assert (first.attempt, first.members) == (1, {task: containers[task].nonce for task in TASKS})
    end = containers["worker-0"].conclude(1, ended(Reason.KILLED), exit_code=137, step=5)
    assert end.restart and "Restarts left after this one: 1" in end.why
    second = joined(containers)
    assert (second.attempt, second.members) == (2, first.members)


def test_a_container_does_not_join_an_attempt_that_it_has_left(service: Service, containers) -> None:
    containers["chief-0"].conclude(1, ended(Reason.KILLED), exit_code=137)
    waits(containers["chief-0"], "worker-0, worker-1 did not start within 0 s")
    assert len(list(service.store.list("attempts/0002/ready/"))) == 1


def test_a_container_of_an_earlier_job_that_waited_is_no_member(service: Service) -> None:
    earlier = service.all()
    joined(earlier)
    earlier["worker-1"].conclude(1, ended(Reason.KILLED), exit_code=137)
    waits(earlier["worker-0"])
    chief = service.container("chief-0", job=2)
    waits(service.container("worker-1", job=2))
    waits(chief, "worker-0 did not start within 0 s")


def test_members_that_do_not_come_are_named(service: Service) -> None:
    said = heard()
    waits(service.container("worker-1"), "chief-0 did not start an attempt with this container within 0 s")
    waits(service.container("chief-0"), "worker-0 did not start within 0 s, and no attempt was started")
    assert said == ["waiting for chief-0", "waiting for worker-0"]


@pytest.mark.parametrize("data", [b'{"job": ', b'{"job": "1"}', b"[]"])
def test_an_attempt_whose_object_is_damaged_is_named(service: Service, containers, data: bytes) -> None:
    service.store.put_new(KEYS.membership(2), [data])
    with pytest.raises(CorruptRunError, match=r"/attempts/0002/membership\.json is damaged"):
        containers["chief-0"].join(wait_s=0)


def test_a_run_is_idle_once_all_its_tasks_are_and_no_longer_than_that(service: Service) -> None:
    containers = service.all()

    def chief(*, idle: bool = True) -> bool:
        service.clock.time += 60
        return containers["chief-0"].is_idle(1, idle=idle)

    assert not chief()
    assert not containers["worker-0"].is_idle(1, idle=True)
    assert not chief()
    assert not containers["worker-1"].is_idle(1, idle=True)
    assert chief()
    # It is not asked for at each look.
    assert not containers["chief-0"].is_idle(1, idle=True)
    service.clock.time += 2
    assert not containers["worker-1"].is_idle(1, idle=False)
    assert not chief()


@pytest.mark.parametrize("order", list(itertools.permutations(TASKS)), ids="-".join)
def test_of_several_that_see_the_end_one_decides_and_all_read_the_same(service: Service, containers, order) -> None:
    reasons = dict(zip(TASKS, (Reason.USER_ERROR, Reason.KILLED, Reason.PREEMPTED), strict=True))
    ends = [containers[task].conclude(1, ended(reasons[task]), exit_code=1) for task in order]
    assert all(end == ends[0] for end in ends)
    assert (ends[0].task, ends[0].reason) == (order[0], reasons[order[0]])
    assert [containers[task].end_of(1) for task in TASKS] == ends
    assert service.container("worker-0").end_of(1) == ends[0]


def test_a_decision_with_a_lost_answer_is_the_one_that_holds(service: Service, containers, monkeypatch) -> None:
    lose_answers(monkeypatch, service.store)
    assert containers["worker-0"].conclude(1, ended(Reason.KILLED), exit_code=137).nonce == containers["worker-0"].nonce


def test_attempts_of_a_job_share_one_budget_and_an_exhausted_one_makes_the_end_final(service) -> None:
    containers = service.all(retry=Retry(infrastructure=2))
    for attempt in (1, 2, 3):
        assert joined(containers).attempt == attempt
        # Decided by another container each time.
        end = containers[TASKS[attempt - 1]].conclude(attempt, ended(Reason.KILLED), exit_code=137, step=10 * attempt)
        assert end.restart is (attempt < 3)
    used_up = "2 of 2 restarts after an infrastructure failure are used up (retry_infrastructure)."
    assert end.why == f"Not restarted: {used_up}"
    assert end.exit_code == 137
    # A container that the service starts again all the same leaves at once, with the same code.
    assert leaves(service.container("worker-0"), "the run has ended") == 137
    # A job that continues the run by itself shares its budgets, and one after a resume has new budgets.
    for job, since, restarts in ((2, 0, False), (3, 2, True)):
        containers = service.all(job=job, resumes_by_users=since)
        attempt = joined(containers).attempt
        assert containers["chief-0"].conclude(attempt, ended(Reason.KILLED), exit_code=137, step=90).restart is restarts


def test_a_container_that_replaces_a_member_ends_its_attempt_once_and_joins_the_next(service, containers) -> None:
    new = {"worker-0": service.container("worker-0"), "worker-1": service.container("worker-1")}
    for container in new.values():
        waits(container)
    end = containers["chief-0"].end_of(1)
    assert (end.restart, end.reason, end.nonce) == (True, Reason.PREEMPTED, new["worker-0"].nonce)
    assert joined({**new, "chief-0": containers["chief-0"]}).members["worker-1"] == new["worker-1"].nonce
    # The old ones are still there, and do not come back.
    for task in new:
        leaves(containers[task], "replaced by a newer one")


def test_a_chief_that_is_replaced_and_not_dead_neither_makes_an_attempt_nor_ends_one(service, containers) -> None:
    chief = service.container("chief-0")
    waits(chief)
    leaves(containers["chief-0"], "replaced by a newer one")
    again = {**{task: containers[task] for task in ("worker-1", "worker-0")}, "chief-0": chief}
    assert joined(again).members["chief-0"] == chief.nonce
    assert chief.end_of(2) is None


def test_a_container_that_is_lost_between_two_attempts_is_waited_for_and_replaced(service: Service, containers) -> None:
    containers["chief-0"].conclude(1, ended(Reason.KILLED), exit_code=137)
    # It announced itself for the next attempt, and disappeared.
    waits(containers["worker-0"])
    new = service.container("worker-0")
    assert joined({"worker-1": containers["worker-1"], "worker-0": new, "chief-0": containers["chief-0"]}).attempt == 2
    assert containers["chief-0"].end_of(2) is None


def test_new_containers_of_the_whole_job_and_of_a_later_job_are_the_next_attempt(service: Service, containers) -> None:
    new = service.all()
    assert joined(new).members == {task: new[task].nonce for task in TASKS}
    leaves(containers["worker-0"], "replaced by a newer one")
    joined(service.all(job=2))
    leaves(new["chief-0"], "a later job of this run has begun")


def test_between_two_attempts_a_cancel_request_or_a_signal_starts_nothing_more(service: Service) -> None:
    stopped: list[bool] = []
    containers = service.all(stop=lambda: bool(stopped))
    joined(containers)
    containers["worker-0"].conclude(1, ended(Reason.KILLED), exit_code=137)
    service.store.put_new(KEYS.remote_cancel_request(0, 1), [b"{}"])
    for container in containers.values():
        assert leaves(container, "the run was cancelled") == EXIT_CANCELLED
    stopped.append(True)
    assert leaves(containers["chief-0"], "stopped") is None
    assert not list(service.store.list("attempts/0002/membership"))


def test_an_attempt_that_fails_after_a_cancel_request_is_not_restarted(service: Service, containers) -> None:
    service.store.put_new(KEYS.remote_cancel_request(0, 1), [b"{}"])
    end = containers["chief-0"].conclude(1, ended(Reason.KILLED), exit_code=137)
    assert (end.restart, end.why) == (False, "")


def test_a_job_that_its_service_has_lost_begins_no_attempt_after_its_final_record(service: Service, containers) -> None:
    assert containers["chief-0"].conclude(1, ended(Reason.KILLED), exit_code=137).restart
    lost = failed(Reason.JOB_LOST, Failure(task="", message="The service has no such job."))
    index.write_final(service.store, 1, 9.0, final(lost))
    for task in TASKS[1:]:
        waits(containers[task], "did not start an attempt")
    for task in TASKS:
        assert leaves(containers[task], "without this job") == EXIT_INFRASTRUCTURE
    # A resume is another job.
    assert joined(service.all(job=2)).attempt == 3


def test_the_next_attempt_begins_after_its_delay_and_none_after_a_success(service: Service) -> None:
    alone = Service(service.store, ("chief-0",))
    container = alone.container("chief-0")
    assert container.join(wait_s=0).attempt == 1
    end = container.conclude(1, ended(Reason.KILLED), exit_code=137)
    assert end.delay_s == 0.0, "the first restart is at once"
    assert container.join(end.delay_s, wait_s=0).attempt == 2
    end = container.conclude(2, ended(Reason.KILLED), exit_code=137)
    before = alone.clock.time
    assert container.join(end.delay_s, wait_s=0).attempt == 3
    assert end.delay_s == 1.0
    assert 1.0 <= alone.clock.time - before < 2.0
    assert alone.container("chief-0").succeeded() == 0
    end = container.conclude(3, ended(Reason.DONE))
    assert (end.state, end.restart, end.why, end.exit_code) == (State.SUCCEEDED, False, "", 0)
    assert alone.container("chief-0", job=2).succeeded() == 3, "which only repeats the last phase"


def test_the_latest_report_of_each_task_that_hangs_counts(service: Service) -> None:
    containers = service.all()
    for batches in (9, 120, 120):
        assert containers["worker-0"].hang(1, {"worker-0": batches}) is None, "the first task's container decides"
    containers["worker-1"].hang(1, {"worker-1": 119})
    hang = containers["chief-0"].hang(1, {"chief-0": 120})
    assert (hang.task, "chief-0 120, worker-0 120, worker-1 119" in hang.message) == ("worker-1", True)


def test_a_hang_of_a_later_attempt_waits_for_the_others_as_long_as_in_the_first_one(service: Service) -> None:
    chief = service.container("chief-0", hang_s=60.0)
    for attempt in (1, 2):
        over = chief.follow(attempt, lambda: True)
        assert chief.hang(attempt, {"chief-0": 5}) is None
        service.clock.time += 61
        hang = chief.hang(attempt, {"chief-0": 5})
        assert hang is not None and "worker-0, worker-1 does not report" in hang.message
        over()


@pytest.mark.parametrize("trains", [False, True])
def test_a_container_learns_of_an_end_while_training_or_not(service, containers, monkeypatch, trains: bool) -> None:
    looks, get = [0], service.store.get
    said = heard()

    def look() -> bool:
        looks[0] += 1
        return trains

    def unreachable(key: str) -> bytes:
        raise StoreError("no network")

    monkeypatch.setattr(shared_agreement, "_FOLLOW_S", 0.001)
    monkeypatch.setattr(service.store, "get", unreachable)
    over = containers["chief-0"].follow(1, look)
    # A process that ends does not wait for it.
    assert all(each.daemon for each in threading.enumerate() if each.name == "podlift-follow")
    until(lambda: said and looks[0] > 8)
    assert said[0] == "cannot check now whether the attempt has ended: no network"
    monkeypatch.setattr(service.store, "get", get)
    seen = looks[0]
    until(lambda: looks[0] > seen + 8)
    assert containers["chief-0"].known_end(1) is None
    end = containers["worker-0"].conclude(1, ended(Reason.KILLED), exit_code=137)
    until(lambda: containers["chief-0"].known_end(1) == end)
    over()


# Tenths of a second: a step takes so many, the last one ends at this one, looks for the end are at these.
PAUSES = [
    (1, 100, range(19, 100, 20), "while tasks step, every two seconds"),
    (10, 100, [1, 3, 5, 7, 9, *range(29, 100, 20)], "slow steps are as usual once there was one"),
    (1, 50, [19, 39, *range(52, 71, 2), 75, 80, 85, 90, 95], "a pause after fast steps shows within half a second"),
    (10, 50, [1, 3, 5, 7, 9, 29, 49, *range(63, 82, 2), 86, 91, 96], "after slow ones within a step and a half"),
    (0, 0, [*range(1, 21, 2), 24, 29, 34], "without steps, twice a second"),
]


@pytest.mark.parametrize(("every", "last", "looks", "why"), PAUSES)
def test_the_end_is_looked_for_soon_when_steps_pause_for_longer_than_usual(every, last, looks, why) -> None:
    pauses, due = shared_agreement.StepPauses(), []
    for call in range(100):
        now = round(10 * call * shared_agreement._FOLLOW_S)
        steps = [min(now, last) // every] if every else []
        due += [now] if pauses.look_due(steps) else []
    assert (due[: len([*looks])], why) == ([*looks], why)


def test_a_jobs_time_limit_counts_from_its_first_attempt_and_the_chief_enforces_it(service: Service) -> None:
    containers = service.all(limit_s=60.0)
    service.clock.time += 1000.0
    joined(containers)
    service.clock.time += 59.0
    assert not containers["chief-0"].is_overdue()
    service.clock.time += 1.0
    assert {task: each.is_overdue() for task, each in containers.items()} == {
        "chief-0": True, "worker-0": False, "worker-1": False,
    }  # fmt: skip
    assert not service.container("chief-0").is_overdue()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_ends_at_its_time_limit_while_a_task_is_missing(service: Service, *, replaced: bool) -> None:
    limit = {"limit_s": 60.0, "age_s": lambda key: 50.0 if replaced and key == KEYS.membership(1) else 0.0}
    containers = service.all(**limit)
    joined(containers)
    containers["worker-0"].conclude(1, ended(Reason.KILLED), exit_code=137, step=5)
    # Its machine has another clock.
    service.clock.time += 5000.0 if replaced else 0.0
    chief = service.container("chief-0", **limit) if replaced else containers["chief-0"]
    waits(chief, "did not start within 0 s")
    service.clock.time += 10.0 if replaced else 60.0
    with pytest.raises(LeaveError) as left:
        chief.join(wait_s=0)
    assert left.value.code == EXIT_USER
    assert (left.value.ended[0], left.value.ended[1].reason) == (1, Reason.TIMEOUT)


SERVED = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")


class Job(Service):
    """The containers of a job with parameter servers, in its first attempt."""

    def __init__(self, store: PosixStore, **retry: int | None) -> None:
        super().__init__(store, SERVED, **retry)
        self.containers = self.all()
        self.form()

    def form(self) -> int:
        """Form the next attempt and return its number."""
        for task in reversed(SERVED[1:]):
            waits(self.containers[task])
        [attempt] = {self.containers[task].join(wait_s=0).attempt for task in SERVED}
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
    keys = [stat.key for stat in job.store.list(f"{KEYS.restarts(1)}/")]
    assert keys == [KEYS.restart(1, number) for number in range(1, 5)], "numbered without gaps, whoever decides"
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
    waits(new)
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
    new = {task: job.container(task) for task in SERVED}
    for task in ("worker-0", "worker-1", "evaluator-0", "chief-0"):
        waits(new[task])
    end = new["worker-0"].end_of(1)
    assert end is not None and (end.reason, end.task, end.restart) == (Reason.PREEMPTED, "chief-0", True)
    job.containers = new
    assert job.form() == 2
    assert not list(job.store.list(f"{KEYS.restarts(1)}/"))


def test_a_new_container_that_the_budget_does_not_allow_ends_the_run(tmp_path: Path) -> None:
    job = Job(PosixStore(str(tmp_path / "run")), preemptions=0)
    new = job.container("worker-1")
    waits(new)
    job.beat()
    leaves(new, r"the run has ended \(preempted\)")


class Own(OwnAgreement):
    """Asked to stop at `stop`, for a run of one task that may restart twice."""

    def __init__(self, folder: Path, *, earlier: int = 0, stop: float = 9e9) -> None:
        payload = Payload(
            run_id="r", run_url="/r", attempt=1, kind="script", target="t.py", function="", argv=[], kwargs={},
            bundle="b", digest="d", roots=[], tasks=["chief-0", "worker-0"], writes="chief",
            limits=sdk.Limits(hang_s=60.0), checkpoints=sdk.Checkpoints(),
        )  # fmt: skip
        self.clock, self._stop = FakeClock(), stop
        super().__init__(RunPaths(str(folder)), payload, Retry(infrastructure=2), self, self.clock, earlier=earlier)

    def stop_requested(self) -> tuple[AttemptEnd, float] | None:
        return (CANCELLED, 0.0) if self.clock.time >= self._stop else None

    def cancel_grace_s(self) -> float | None:
        return None


@pytest.mark.parametrize(("earlier", "folders", "number"), [(0, [], 1), (2, [], 3), (2, ["0004", "notes"], 5)])
def test_an_attempt_has_the_number_after_the_last_with_a_record_or_a_file(tmp_path, earlier, folders, number) -> None:
    for folder in folders:
        os.makedirs(tmp_path / "attempts" / folder)
    own = Own(tmp_path, earlier=earlier)
    assert [own.join().attempt, own.join().attempt] == [number, number + 1]


def test_a_run_that_is_asked_to_stop_waits_for_no_attempt(tmp_path: Path) -> None:
    own = Own(tmp_path, stop=1005.0)
    own.join(2.0)
    assert 1002 <= own.clock.time < 1003
    with pytest.raises(LeaveError):
        own.join(60.0)
    assert own.clock.time < 1006


def test_tasks_that_restart_alone_and_attempts_share_the_budgets_of_one_agent(tmp_path: Path) -> None:
    own, killed = Own(tmp_path), failed(Reason.KILLED, Failure(task="worker-0", message=""))
    assert own.restart_alone(1, "worker-0", Reason.KILLED).restart
    own.clock.time += 60
    assert own.conclude(1, killed, step=5).restart
    end = own.conclude(2, killed, step=9)
    assert (end.restart, end.step) == (False, 9)
    assert own.is_own(end) and own.known_end(2) is None and own.finished(2) == set()


def test_the_agent_of_all_tasks_knows_at_once_that_they_hang_or_are_idle(tmp_path: Path) -> None:
    own = Own(tmp_path)
    hang = own.hang(1, {"chief-0": 7, "worker-0": 5})
    assert hang is not None and hang.task == "worker-0"
    assert [own.is_idle(1, idle=idle) for idle in (True, False)] == [True, False]
