"""All tasks do the same after the same step, however late they see each other's files, and wait for no task that is done."""

import errno
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from support import FakeClock

from sdk.errors import StoreError
from sdk.job.layout import RunPaths
from sdk.runtime import rendezvous
from sdk.runtime.rendezvous import FolderBoard, StepCoordinator
from sdk.runtime.store_board import StoreBoard
from sdk.storage import posix
from sdk.storage.posix_store import PosixStore

TASKS = ("chief-0", "worker-0", "worker-1")


@dataclass
class Files:
    """What all boards of one attempt hold, with the time at which each task sees it."""

    content: dict[str, Mapping[str, object]] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def agreed(self) -> list[tuple[object, object]]:
        names = sorted(name for name in self.content if name.endswith(".agreed.json"))
        return [(self.content[name]["step"], self.content[name]["action"]) for name in names]


@dataclass
class Paper:
    """One task's view of them: it sees a file some time after it was written."""

    files: Files
    is_instant: bool = True
    delay: Callable[[], float] = lambda: 0.0
    is_stopped: bool = False
    broken: bool = False

    def create(self, name: str, content: Mapping[str, object]) -> bool:
        self._check()
        with self.files.lock:
            if name in self.files.content:
                return False
            self.files.content[name] = dict(content)
            self.files.since[name] = time.monotonic()
            return True

    def read(self, name: str) -> Mapping[str, object] | None:
        self._check()
        return self.files.content.get(name) if self._is_seen(name) else None

    def names(self, folder: str) -> list[str]:
        self._check()
        with self.files.lock:
            names = [name for name in self.files.content if name.startswith(f"{folder}/")]
        return [name.rpartition("/")[2] for name in names if self._is_seen(name)]

    def is_stop_requested(self) -> bool:
        return self.is_stopped

    def _is_seen(self, name: str) -> bool:
        return time.monotonic() >= self.files.since.get(name, 0.0) + self.delay()

    def _check(self) -> None:
        if self.broken:
            raise StoreError("the bucket does not answer")


class Clock(FakeClock):
    """When somebody waits, the others have their turn."""

    turn: Callable[[], None] = staticmethod(lambda: None)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.turn()


class Gang:
    """Tasks with threads that the test drives."""

    def __init__(self, *, instant: bool, tasks: tuple[str, ...] = TASKS) -> None:
        self.files, self.clock = Files(), Clock(0.0)
        self.papers = {task: Paper(self.files, is_instant=instant) for task in tasks}
        self.tasks = {task: StepCoordinator(self.papers[task], task, tasks, clock=self.clock) for task in tasks}
        self.clock.turn = self.look
        for coordinator in self.tasks.values():
            coordinator.begin = lambda: None
        self.done: dict[str, list[tuple[int, str]]] = {task: [] for task in tasks}
        self.count = 0

    def look(self) -> None:
        for task in self.tasks.values():
            task.look()

    def save(self, *counts: int) -> None:
        """Let a save be due at some steps of the first task."""
        self.tasks["chief-0"].save_due = saves_at(*counts)

    def ask(self, action: str) -> None:
        """Let a save be due, or a task be preempted."""
        if action == "save":
            self.save(1)
        else:
            self.tasks["worker-1"].request_preemption()

    def steps(self, count: int, seconds: float = 0.0, *, order: tuple[str, ...] = (), looks: bool = False) -> None:
        """Let tasks take some steps; with `looks`, their threads look after each."""
        for _ in range(count):
            self.step(seconds, order=order)
            if looks:
                self.look()

    def step(self, seconds: float = 0.0, *, order: tuple[str, ...] = ()) -> None:
        """Let every task take a step, which lasts some seconds."""
        self.clock.time += seconds
        self.count += 1
        for name in order or self.tasks:
            action = self.tasks[name].step()
            if action is not None:
                self.done[name].append((self.count, action))

    @property
    def same(self) -> list[tuple[int, str]]:
        first, *others = self.done.values()
        assert all(other == first for other in others), self.done
        return first


def save_without_worker_1(gang: Gang) -> None:
    gang.save(1)
    gang.steps(20, 1.0, order=TASKS[:2], looks=True)
    assert gang.done["chief-0"] == gang.done["worker-0"] != []


def saves_at(*counts: int) -> Callable[[], str | None]:
    asked = Counter[str]()

    def due() -> str | None:
        asked["due"] += 1
        return "save" if asked["due"] in counts else None

    return due


# --- On one machine -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [TASKS, TASKS[::-1]])
def test_on_one_machine_a_save_follows_two_steps_after_it_is_due(order) -> None:
    gang = Gang(instant=True)
    gang.save(3)
    gang.steps(8, order=order)
    assert gang.same == [(5, "save")]


@pytest.mark.parametrize("asks", TASKS)
def test_sigterm_of_any_task_makes_all_exit_after_the_same_step(asks) -> None:
    gang = Gang(instant=True)
    gang.step()
    gang.tasks[asks].request_preemption()
    gang.steps(6)
    first = gang.same[0]
    assert first[1] == "preempt" and first[0] <= 5
    # A loop that goes on all the same is told so again, and nothing more is agreed on.
    assert {action for _, action in gang.same} == {"preempt"} and len(gang.files.agreed) == 1


def test_a_cancel_request_comes_before_a_preemption_and_a_save() -> None:
    gang = Gang(instant=True)
    gang.tasks["chief-0"].save_due = lambda: "save"
    gang.papers["chief-0"].is_stopped = True
    gang.tasks["chief-0"].request_preemption()
    gang.steps(6)
    assert gang.same[0][1] == "stop"


def test_saves_follow_each_other_and_a_stop_follows_an_open_save() -> None:
    gang = Gang(instant=True)
    gang.save(1, 2, 4)
    for step in range(12):
        gang.papers["chief-0"].is_stopped = step > 3
        gang.step()
    actions = [action for _, action in gang.same]
    assert actions[0] == "save" and "stop" in actions and len({*actions}) == 2


def test_tasks_without_a_connection_wait_for_no_step_of_another() -> None:
    gang = Gang(instant=True)
    for task in gang.tasks.values():
        task.apart = lambda: True
    gang.save(1)
    assert gang.tasks["chief-0"].step() == "save"
    assert gang.files.content == {}
    gang.papers["chief-0"].is_stopped = True
    assert gang.tasks["chief-0"].step() == "stop"
    assert [gang.tasks[task].step() for task in TASKS[1:]] == ["stop", "stop"]
    # An agent on this machine reads there that the tasks left on request.
    assert gang.files.agreed == [(2, "stop")]


@pytest.mark.parametrize("instant", [True, False])
@pytest.mark.parametrize("action", ["stop", "preempt"])
def test_a_task_that_cannot_reach_the_agreed_step_soon_leaves_after_its_own(instant, action) -> None:
    gang = Gang(instant=instant, tasks=TASKS[:2])
    fast, slow = gang.tasks.values()
    left: dict[str, float] = {}
    for second in range(80):
        if second == 60:
            gang.papers[TASKS[0]].is_stopped = action == "stop"
            fast._is_preempted = action == "preempt"
        for _ in range(100):
            gang.clock.time += 0.01
            if TASKS[0] not in left and fast.step() == action:
                left[TASKS[0]] = second
        gang.look()
        if TASKS[1] not in left and slow.step() == action:
            left[TASKS[1]] = second
    assert left.keys() == {*TASKS[:2]}
    assert max(left.values()) <= 65, "neither the fast one nor the slow one is ended by its grace time"


def test_a_cancel_request_counts_that_is_older_than_the_board_of_a_task(tmp_path) -> None:
    paths = RunPaths(str(tmp_path))
    posix.put_passing(f"{paths.control}/0001.cancel.json", b"{}")
    assert FolderBoard(paths, 1).is_stop_requested()
    assert not FolderBoard(paths, 2, handled=1).is_stop_requested(), "an earlier supervisor has handled it"


def test_a_single_task_acts_at_once() -> None:
    gang = Gang(instant=True, tasks=TASKS[:1])
    gang.save(2)
    gang.steps(3)
    gang.tasks["chief-0"].request_preemption()
    gang.step()
    assert gang.same == [(2, "save"), (4, "preempt")]


def test_a_single_task_in_a_bucket_that_only_calls_should_stop_sees_a_cancel_request(monkeypatch) -> None:
    for name in ("_QUIET_S", "_SOONEST_S"):
        monkeypatch.setattr(rendezvous, name, 0.002)
    paper = Paper(Files(), is_instant=False, is_stopped=True)
    task = StepCoordinator(paper, "chief-0", ["chief-0"])
    until = time.monotonic() + 60
    while (action := task.step()) is None and time.monotonic() < until:
        time.sleep(0.002)
    task.close()
    assert action == "stop"


def test_without_room_for_a_question_the_training_goes_on_and_saves_later(monkeypatch) -> None:
    gang, is_full = Gang(instant=True), True

    def create(self: Paper, name: str, content: Mapping[str, object]) -> bool:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return created(self, name, content)

    created = Paper.create
    monkeypatch.setattr(Paper, "create", create)
    gang.tasks["chief-0"].save_due = lambda: None if gang.done["chief-0"] else "save"
    gang.steps(10)
    assert gang.clock.time == 0.0 and gang.same == []
    is_full = False
    gang.steps(4)
    assert gang.same == [(13, "save")]


def test_a_task_that_has_left_asks_nothing_more() -> None:
    gang = Gang(instant=True)
    gang.tasks["worker-0"].request_preemption()
    gang.steps(5, looks=True)
    assert len([name for name in gang.files.content if name.endswith(".question.json")]) == 1


@pytest.mark.process
def test_sigterm_ends_a_process_that_the_program_forked() -> None:
    task = StepCoordinator(Paper(Files()), "chief-0", TASKS[:1])
    before = signal.getsignal(signal.SIGTERM)
    task.handle_sigterm()
    try:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert task.step() is None


# --- Through a bucket ---------------------------------------------------------------------------------------------


def test_nothing_is_written_while_nothing_is_to_be_done() -> None:
    gang = Gang(instant=False)
    gang.steps(200, 0.1, looks=True)
    assert gang.files.content == {} and gang.same == []


@pytest.mark.parametrize(
    ("step_s", "trained_s", "action", "ahead_s"),
    [(0.01, 1, "save", 0.1), (0.01, 60, "save", 4.0), (0.01, 60, "preempt", 1.0), (10.0, 60, "save", 0.0)],
)
def test_all_act_a_few_seconds_later_so_that_the_training_does_not_wait(step_s, trained_s, action, ahead_s) -> None:
    gang = Gang(instant=False)
    gang.steps(int(trained_s / step_s), step_s)
    asked_at = gang.count
    gang.ask(action)
    while not gang.done["chief-0"]:
        gang.steps(1, step_s, looks=True)
    assert gang.same[0][1] == action
    steps = gang.count - asked_at
    assert ahead_s / step_s * 0.8 <= steps <= max(4, ahead_s / step_s * 1.2)


@pytest.mark.parametrize("action", ["save", "preempt"])
def test_many_steps_that_end_at_once_do_not_put_the_agreed_one_far_ahead(action) -> None:
    gang = Gang(instant=False)
    gang.steps(600, 0.1)
    gang.steps(40, 0.001)  # a device runs behind Python
    asked_at = gang.count
    gang.ask(action)
    while not gang.done["chief-0"]:
        gang.look()
        gang.step(0.1)
    assert gang.count - asked_at <= 100


def served(gang: Gang) -> Callable[[Callable[[], bool]], None]:
    """Return a function that trains until something holds; threads look when they are woken, and after an interval."""
    looked = dict.fromkeys(gang.tasks, gang.clock.time)

    def turn() -> None:
        for name, task in gang.tasks.items():
            is_due, woken = gang.clock.time >= looked[name] + task._interval_s(), False
            while not task._wake.empty():
                task._wake.get_nowait()
                woken = True
            if is_due or woken:
                looked[name] = gang.clock.time
                task.look()

    def train(until: Callable[[], bool]) -> None:
        while not until():
            gang.step(0.02)
            turn()

    gang.clock.turn = turn
    return train


@pytest.mark.parametrize("asks", TASKS)
@pytest.mark.parametrize("later_s", [0.02, 1.0, 2.5, 3.5])
def test_a_preemption_during_an_open_save_is_agreed_on_within_five_seconds(asks, later_s) -> None:
    gang = Gang(instant=False)
    train = served(gang)
    train(lambda: gang.clock.time >= 60.0)
    gang.save(1)
    train(lambda: gang.clock.time >= 60.0 + later_s)
    gang.tasks[asks].request_preemption()
    asked_at = gang.clock.time
    train(lambda: gang.tasks["chief-0"].exit_action is not None)
    assert gang.clock.time - asked_at <= 5.0
    assert [action for _, action in gang.same][:2] == ["save", "preempt"]


def test_a_save_costs_the_first_task_few_lists(monkeypatch) -> None:
    gang = Gang(instant=False)
    lists = mock.create_autospec(Paper.names, side_effect=Paper.names)
    monkeypatch.setattr(Paper, "names", lambda *arguments: lists(*arguments))
    train = served(gang)
    train(lambda: gang.clock.time >= 60.0)
    gang.save(1)
    train(lambda: gang.same != [])
    assert gang.clock.time < 66.0 and lists.call_count <= 4


def test_a_finished_task_delays_none_and_an_agreement_with_a_lost_answer_stays(monkeypatch) -> None:
    gang, lost = Gang(instant=False), []

    def create(self: Paper, name: str, content: Mapping[str, object]) -> bool:
        found = created(self, name, content)
        if name.endswith(".agreed.json") and not lost:
            lost.append(name)
            # A task that is done had answered meanwhile.
            created(self, "000001/worker-1.999.json", {})
            raise StoreError("the bucket does not answer")
        return found

    created = Paper.create
    monkeypatch.setattr(Paper, "create", create)
    gang.step(1.0)
    gang.tasks["worker-1"].close()
    save_without_worker_1(gang)
    assert lost


def test_the_last_step_of_a_task_that_missed_a_question_is_not_the_agreed_one() -> None:
    gang = Gang(instant=False)

    def turn() -> None:
        for name in TASKS[:2]:
            gang.tasks[name].look()

    gang.clock.turn = turn
    gang.steps(3, 0.1)
    gang.save(1)
    gang.step(0.1)
    turn()
    assert gang.tasks["worker-1"].step() is None
    gang.tasks["worker-1"].close()
    gang.steps(3, 0.1, order=TASKS[:2])
    assert gang.done["chief-0"] == gang.done["worker-0"] == [(6, "save")]


@pytest.mark.parametrize("instant", [True, False])
def test_after_the_end_of_the_first_task_the_others_go_on_without_agreement(instant) -> None:
    gang = Gang(instant=instant)
    gang.step(1.0)
    gang.tasks["chief-0"].close()
    gang.tasks["worker-0"].request_preemption()
    gang.steps(20, 1.0, order=TASKS[1:], looks=True)
    assert gang.done["worker-0"] == gang.done["worker-1"] == []


def test_a_first_task_ending_before_the_agreed_step_leaves_no_later_question_open() -> None:
    gang = Gang(instant=True)
    gang.save(1)
    gang.steps(2)
    assert gang.files.agreed == [(3, "save")]
    gang.tasks["chief-0"].close()
    gang.tasks["worker-0"].request_preemption()
    gang.steps(8, order=TASKS[1:])
    assert gang.done["worker-0"] == gang.done["worker-1"] == [(3, "save")]


@pytest.mark.parametrize("outage_s", [600.0, 3600.0])
def test_without_the_bucket_the_training_goes_on_until_it_needs_an_answer(outage_s) -> None:
    gang = Gang(instant=False)
    for paper in gang.papers.values():
        paper.broken = True
    gang.steps(50, 1.0, looks=True)
    gang.save(1)
    asked_at = gang.clock.time

    def turn() -> None:
        for paper in gang.papers.values():
            paper.broken = gang.clock.time < asked_at + outage_s
        gang.look()

    gang.clock.turn = turn
    if outage_s > 1800:
        with pytest.raises(StoreError, match="does not answer"):
            gang.steps(100, 1.0)
        return
    gang.steps(20, 1.0)
    assert gang.same != []


def test_a_task_that_did_not_answer_is_named() -> None:
    gang = Gang(instant=False)
    gang.step(1.0)
    gang.tasks["worker-1"].look = lambda: None
    gang.save(1)
    with pytest.raises(StoreError, match="worker-1 did not answer"):
        for _ in range(100):
            gang.tasks["chief-0"].step()


# --- With threads -------------------------------------------------------------------------------------------------


class Lockstep:
    """Step n ends for a task once all tasks have begun it."""

    def __init__(self, tasks: int) -> None:
        self._begun, self._changed = [0] * tasks, threading.Condition()

    def step(self, task: int) -> None:
        with self._changed:
            self._begun[task] += 1
            self._changed.notify_all()
            mine = self._begun[task]
            assert self._changed.wait_for(lambda: min(self._begun) >= mine, timeout=60)


def train(seed: int, *, instant: bool) -> tuple[dict[str, list[tuple[int, str]]], Files]:
    """Train three tasks in threads until one of them is preempted; each sees the files of the others late."""
    draw, files, lockstep = random.Random(seed), Files(), Lockstep(len(TASKS))
    most_s = draw.choice([0.0, 0.002, 0.02])
    done: dict[str, list[tuple[int, str]]] = {task: [] for task in TASKS}
    papers = [
        Paper(files, is_instant=instant, delay=lambda: 0.0 if instant else draw.uniform(0.0, most_s)) for _ in TASKS
    ]
    coordinators = [StepCoordinator(paper, task, TASKS) for paper, task in zip(papers, TASKS, strict=True)]
    coordinators[0].save_due = saves_at(*draw.sample(range(3, 40), 4))
    signalled, at = draw.choice(coordinators), draw.randrange(20, 50)
    naps = [draw.choice([0.0, 0.0005, 0.003]) for _ in TASKS]

    def run(task: int) -> None:
        coordinator = coordinators[task]
        coordinator.begin()
        for count in range(1, 80):
            lockstep.step(task)
            time.sleep(naps[task])
            if coordinator is signalled and count == at:
                coordinator.request_preemption()
            if (action := coordinator.step()) is not None:
                done[TASKS[task]].append((count, action))
            if coordinator.exit_action is not None:
                break
        coordinator.close()

    threads = [threading.Thread(target=run, args=[task]) for task in range(len(TASKS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return done, files


@pytest.mark.parametrize("instant", [True, False])
def test_in_any_order_of_threads_all_tasks_do_the_same_after_the_same_step(instant, monkeypatch) -> None:
    for name in ("_QUIET_S", "_ANSWER_POLL_S", "_SOONEST_S", "_FALLBACK_S", "_WAITING_S"):
        monkeypatch.setattr(rendezvous, name, 0.002)
    for seed in range(12):
        done, files = train(seed, instant=instant)
        assert done["chief-0"] == done["worker-0"] == done["worker-1"], (seed, done)
        assert files.agreed[: len(done["chief-0"])] == done["chief-0"], seed


def test_a_late_answer_of_the_thread_to_an_answered_question_changes_nothing() -> None:
    gang = Gang(instant=True)
    gang.tasks["worker-0"].request_preemption()
    old = gang.tasks["chief-0"]._question
    gang.save(1)
    gang.steps(3)
    gang.tasks["chief-0"]._look(old)
    assert gang.tasks["chief-0"]._question is not old
    assert len(gang.files.agreed) == 1


# --- The cost -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> mock.Mock:
    """A store that counts its calls; its lists are behind."""
    return mock.Mock(wraps=PosixStore(tmp_path), **{"list.side_effect": lambda prefix: iter(())})


def payload(resumes: int) -> Any:
    return SimpleNamespace(attempt=1, resumes=resumes, resumes_by_users=0, bucket_url="gs://b/r")


def test_a_quiet_hour_of_the_first_task_costs_less_than_a_tenth_of_a_cent(store: mock.Mock) -> None:
    clock = Clock(0.0)
    task = StepCoordinator(StoreBoard(payload(0), clock, store), "chief-0", TASKS, clock=clock)
    task.begin = lambda: None
    task.step()
    while clock.time < 3600:
        task.look()
        clock.time += task._interval_s()
    reads = store.get.call_count + store.stat.call_count
    assert store.put_new.call_count == 0 and store.list.call_count <= 12
    assert store.list.call_count * 5e-6 + reads * 0.4e-6 < 0.0011, "dollars"


def test_a_cancel_request_in_a_bucket_is_seen_within_six_seconds(store: mock.Mock) -> None:
    clock = Clock(0.0)
    board = StoreBoard(payload(2), clock, store)
    clock.time = 20.0
    assert not board.is_stop_requested()
    store.put_new("control/0002-000001.cancel.json", [b"{}"])
    clock.time = 26.0
    assert board.is_stop_requested()
