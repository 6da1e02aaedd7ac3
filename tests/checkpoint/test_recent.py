"""The copy of the state in memory: what the next attempt restores of it, and that it never harms a run."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import until

import sdk
from sdk.checkpoint import opening
from sdk.checkpoint.contents import Contents
from sdk.checkpoint.manager import CheckpointManager, TrainingPhase
from sdk.checkpoint.opening import Env, OpenStore, TaskInfo
from sdk.checkpoint.policy import due_in_memory
from sdk.checkpoint.recent import RecentCopy, folder_of, left_behind, remove_those_of
from sdk.checkpoint.saver import AsyncSaver, Ticket
from sdk.process import free_memory, janitor
from sdk.records.events import Event, saved_step
from sdk.records.recorder import read_events
from sdk.runtime.hooks.auto_checkpoint import PhaseCheckpoints
from sdk.spec.layout import RunPaths
from sdk.spec.payload import Drill, Kill
from sdk.spec.policies import Checkpoints
from sdk.storage.posix_store import PosixStore

from .parts import CLOCK, check, contents

TASKS = ("worker-0", "worker-1")


class Task:
    """One task in one attempt: its checkpoints, and its copy in memory, which `meanwhile` may harm once it was chosen."""

    def __init__(
        self, top: Path, number: int, *, rank: int = 0, tasks: int = 1, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        store, self.recent = PosixStore(top / "store"), RecentCopy(str(top / "memory/copy"), self.record)
        self.told: list[float] = []
        if rank == 0:
            found = opening.open_first(store, number, "a test", CLOCK, run_id="test", recent=self.recent.newest)
        else:
            found = opening.join(store, number, CLOCK, 10, run_id="test")
        info = TaskInfo(run_id="test", attempt=number, task=TASKS[rank], tasks=TASKS[:tasks])
        if found.memory and tasks > 1:
            meanwhile()
            found = opening.agree(store, self.recent.store, found, info, CLOCK, 5)
        opened = OpenStore(store=store, opening=found, info=info, policy=Checkpoints(), env=Env(clock=CLOCK))
        self.saver, self.rank = AsyncSaver(opened), rank
        checkpoint = found.read(store, self.recent.store)
        self.restored = None if checkpoint is None else check(checkpoint, tasks)
        self.from_memory = bool(found.memory)
        self.opened = opened
        self.recent.begin(opened)

    def record(self, every_s: float) -> None:
        self.told.append(every_s)

    def save(self, step: int) -> None:
        ticket = self.saver.save(contents(step), step=step, position={"step": step})
        assert ticket is not None
        ticket.wait(20)
        self.saver.wait(20)

    def begin_copy(self, step: int) -> Ticket | None:
        return self.recent.save(contents(step, self.rank), step=step, position={"step": step}, downgrades=())

    def copy(self, step: int) -> None:
        ticket = self.begin_copy(step)
        assert ticket is not None
        ticket.wait(20)
        ticket.settled.wait(20)


def found(task: Task) -> tuple[int | None, bool]:
    return task.restored, task.from_memory


def test_the_next_attempt_restores_the_copy_if_it_is_newer_than_the_checkpoint(tmp_path: Path) -> None:
    first = Task(tmp_path, 1)
    assert found(first) == (None, False)
    first.save(10)
    first.copy(17)
    second = Task(tmp_path, 2)
    assert found(second) == (17, True)
    # It may be restored again by the attempt after one that was killed before it had copied anything.
    third = Task(tmp_path, 3)
    assert found(third) == (17, True)
    third.save(20)
    assert found(Task(tmp_path, 4)) == (20, False)


def test_a_run_without_a_checkpoint_restores_its_copy(tmp_path: Path) -> None:
    Task(tmp_path, 1).copy(3)
    assert found(Task(tmp_path, 2)) == (3, True)


def test_a_restored_copy_is_no_checkpoint_that_could_be_missing() -> None:
    data = {"attempt": 2, "source": "chief-0", "sequence": 1, "time": 0.0}
    copied = Event(kind="restored", data={"step": 26, "memory": True}, **data)  # type: ignore[arg-type]
    assert saved_step([copied], warm=False) is None
    saved = Event(kind="restored", data={"step": 20}, **data)  # type: ignore[arg-type]
    assert saved_step([copied, saved], warm=False) == 20


def test_only_the_newest_copy_is_kept(tmp_path: Path) -> None:
    first = Task(tmp_path, 1)
    for step in range(1, 5):
        first.copy(step)
    first.recent.close()
    assert len(list(Path(first.recent.folder, "commits").rglob("*.json"))) == 1


def test_a_copy_from_before_another_attempt_is_never_restored(tmp_path: Path) -> None:
    first = Task(tmp_path, 1)
    first.save(10)
    first.copy(17)
    # An attempt on another machine goes a different way.
    store = PosixStore(tmp_path / "store")
    opening.open_first(store, 2, "another machine", CLOCK, run_id="test")
    third = Task(tmp_path, 3)
    assert found(third) == (10, False)
    assert not Path(third.recent.folder, "commits").exists()


def test_the_copy_of_another_run_is_never_restored(tmp_path: Path) -> None:
    first = Task(tmp_path, 1)
    first.save(10)
    first.copy(17)
    recent = RecentCopy(first.recent.folder)
    again = opening.open_first(
        PosixStore(tmp_path / "store"),
        2,
        "a test",
        CLOCK,
        run_id="",
        recent=lambda lease, run_id: recent.newest(lease, "other"),
    )
    assert (again.memory, again.manifest.step if again.manifest else None) == ("", 10)


def test_a_flipped_byte_is_found_and_the_checkpoint_is_restored(tmp_path: Path) -> None:
    first = Task(tmp_path, 1)
    first.save(10)
    first.copy(17)
    flip(first.recent.folder)
    second = Task(tmp_path, 2)
    assert found(second) == (10, False)
    second.copy(18)
    assert found(Task(tmp_path, 3)) == (18, True)


def test_all_tasks_restore_the_same_copy(tmp_path: Path) -> None:
    tasks = [Task(tmp_path, 1, rank=rank, tasks=2) for rank in range(2)]
    tickets = [task.begin_copy(17) for task in tasks]
    for ticket in tickets:
        assert ticket is not None
        ticket.wait(20)
    assert [found(task) for task in gang(tmp_path, 2)] == [(17, True)] * 2


def gang(top: Path, number: int, meanwhile: Callable[[], None] = lambda: None) -> list[Task]:
    """Return the two tasks of an attempt, the second one after `meanwhile`."""
    with ThreadPoolExecutor(2) as pool:
        harms: list[Callable[[], None]] = [lambda: None, meanwhile]
        begun = [pool.submit(Task, top, number, rank=rank, tasks=2, meanwhile=harms[rank]) for rank in range(2)]
        return [each.result(60) for each in begun]


def flip(folder: str) -> None:
    """Change a bit of the largest file of a copy."""
    part = max(
        (path for path in Path(folder, "data").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    data = bytearray(part.read_bytes())
    data[300] ^= 1
    part.write_bytes(data)


@pytest.mark.parametrize("harm", [shutil.rmtree, flip])
@pytest.mark.parametrize("saved", [True, False])
def test_a_copy_that_one_task_cannot_read_any_more_is_used_by_none(tmp_path: Path, harm: Any, saved: bool) -> None:
    tasks = gang(tmp_path, 1)
    for step in [10] if saved else []:
        tickets = [task.saver.save(contents(step, task.rank), step=step, position={"step": step}) for task in tasks]
        for ticket in tickets:
            assert ticket is not None
            ticket.wait(20)
    for ticket in [task.begin_copy(17) for task in tasks]:
        assert ticket is not None
        ticket.wait(20)
    folder = tasks[0].recent.folder
    again = gang(tmp_path, 2, lambda: harm(folder))
    assert [found(task) for task in again] == [(10 if saved else None, False)] * 2
    # The attempt copies its own state again.
    for ticket in [task.begin_copy(18) for task in again]:
        assert ticket is not None
        ticket.wait(20)
    assert [found(task) for task in gang(tmp_path, 3)] == [(18, True)] * 2


def test_a_task_that_does_not_answer_has_the_checkpoint_restored_by_all(tmp_path: Path) -> None:
    for ticket in [task.begin_copy(17) for task in gang(tmp_path, 1)]:
        assert ticket is not None
        ticket.wait(20)
    store = PosixStore(tmp_path / "store")
    recent = RecentCopy(str(tmp_path / "memory/copy"))
    chosen = opening.open_first(store, 2, "a test", CLOCK, run_id="test", recent=recent.newest)
    assert chosen.memory
    first, late = (TaskInfo(run_id="test", attempt=2, task=task, tasks=TASKS) for task in TASKS)
    assert not opening.agree(store, recent.store, chosen, first, CLOCK, 0.2).continues
    joined = opening.join(store, 2, CLOCK, 1, run_id="test")
    assert not opening.agree(store, recent.store, joined, late, CLOCK, 0.2).continues


def test_a_task_may_begin_before_the_first_one_has_made_the_folder(tmp_path: Path) -> None:
    first = Task(tmp_path, 1, tasks=2)
    shutil.rmtree(first.recent.folder)
    second = Task(tmp_path, 1, rank=1, tasks=2)
    first.recent.begin(first.opened)
    tickets = [task.begin_copy(17) for task in (first, second)]
    for ticket in tickets:
        assert ticket is not None
        ticket.wait(20)
    assert [found(task) for task in gang(tmp_path, 2)] == [(17, True)] * 2


def test_a_copy_in_progress_does_not_delay_the_end_of_a_task(tmp_path: Path) -> None:
    first, _ = (Task(tmp_path, 1, rank=rank, tasks=2) for rank in range(2))
    assert first.begin_copy(17) is not None
    started = CLOCK.monotonic()
    first.recent.close()
    assert CLOCK.monotonic() - started < 5


def test_a_copy_that_one_task_has_not_written_is_not_restored(tmp_path: Path) -> None:
    first, _ = (Task(tmp_path, 1, rank=rank, tasks=2) for rank in range(2))
    first.begin_copy(17)
    assert [found(task) for task in gang(tmp_path, 2)] == [(None, False)] * 2


_KILLED = """
    import os, signal, sys
    sys.path[:] = {path!r}
    from pathlib import Path
    from sdk.storage.posix_store import PosixStore
    from checkpoint.test_recent import Task
    task = Task(Path(sys.argv[1]), 1)
    task.save(1)
    task.copy(2)
    task.recent._saver.wait(20)
    print(2, flush=True)
    left = int(sys.argv[3])
    def at(moment):
        global left
        left -= moment == sys.argv[2]
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    task.recent.store._at = at
    for step in (3, 4):
        task.copy(step)
        print(step, flush=True)
"""


_MOMENTS = ["written 1", "synced 2", "linked 1", "linked 2", "linked 3", "deleted 1", "deleted 3"]


@pytest.mark.process
@pytest.mark.parametrize("moment", ["written 2", *(pytest.param(each, marks=pytest.mark.full) for each in _MOMENTS)])
def test_a_kill_at_any_moment_of_a_copy_leaves_an_acknowledged_one(tmp_path: Path, moment: str) -> None:
    code = textwrap.dedent(_KILLED).format(path=[str(Path(__file__).parents[1]), *sys.path])
    words = [sys.executable, "-c", code, str(tmp_path), *moment.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == -9, done.stderr
    acknowledged = int(done.stdout.split()[-1])
    restored, from_memory = found(Task(tmp_path, 2))
    assert restored in (acknowledged, acknowledged + 1)
    assert from_memory


def test_a_full_memory_ends_the_copies_and_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(tmp_path, 1)
    task.copy(1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(task.recent.store, "_write_all", full)
        assert task.begin_copy(2) is not None
        task.recent._saver._ticket.settled.wait(20)  # type: ignore[union-attr]
    assert not task.recent.is_due(1e6, 10)
    assert task.begin_copy(3) is None
    assert not task.recent.is_on
    assert not Path(task.recent.folder).exists()
    task.save(4)
    assert found(Task(tmp_path, 2)) == (4, False)


def room(free: int, size: int = 0) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free, f_blocks=size, f_frsize=1)


def test_a_quarter_of_the_shared_memory_stays_for_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(tmp_path, 1)
    monkeypatch.setattr(free_memory, "available", lambda: 1 << 40)
    assert not task.recent.is_due(0.0, 1 << 20)
    for now, free, fits in ((1000.0, 259 << 20, True), (2000.0, 257 << 20, False)):
        monkeypatch.setattr(os, "statvfs", lambda path, free=free: room(free, 1 << 30))
        assert task.recent.is_due(now, 1 << 20) is fits


def test_a_restored_copy_does_not_count_as_the_last_checkpoint(tmp_path: Path) -> None:
    first = Task(tmp_path, 1)
    first.save(10)
    first.copy(17)
    manager = CheckpointManager(
        TaskInfo(run_id="test", attempt=2, task=TASKS[0], tasks=TASKS[:1]),
        str(tmp_path / "store"),
        Checkpoints(),
        Env(clock=CLOCK),
        RecentCopy(first.recent.folder),
    )
    assert (manager.restored_step, manager.saved_step) == (17, 10)


def test_copies_wait_for_their_share_of_the_time_and_stop_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, 1)
    monkeypatch.setattr(os, "statvfs", lambda path: room(1 << 30))
    monkeypatch.setattr(free_memory, "available", lambda: 1 << 30)
    assert not task.recent.is_due(100.0, 1000)
    assert not task.recent.is_due(104.0, 1000)
    assert task.recent.is_due(105.0, 1000)
    assert task.recent.is_due(110.0, 1000)
    task.recent.saved(114.0)
    assert not task.recent.is_due(115.0, 1000)
    # 64 MB, as in a container of Docker.
    monkeypatch.setattr(os, "statvfs", lambda path: room(64 << 20))
    assert not task.recent.is_due(200.0, 100 << 20)
    assert not task.recent.is_on
    task = Task(tmp_path / "other", 1)
    monkeypatch.setattr(os, "statvfs", lambda path: room(1 << 40))
    assert not task.recent.is_due(0.0, 1 << 29)
    assert not task.recent.is_due(10_000.0, 1 << 29)
    assert not task.recent.is_on


def test_the_time_for_which_the_training_waits_counts_for_the_share_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, 1)
    monkeypatch.setattr(os, "statvfs", lambda path: room(1 << 30))
    monkeypatch.setattr(free_memory, "available", lambda: 1 << 30)

    def copied(waited_s: float, now: float) -> float:
        """Copy at a time, and return for how many seconds no other copy is due."""
        task.recent.waited(waited_s)
        task.copy(int(now))
        task.recent.saved(now)
        return next(after for after in range(10_000) if task.recent.is_due(now + after, 1000))

    # A single time may be that of a machine that slept.
    assert copied(600.0, 100.0) < 30
    assert 200 <= copied(2.0, 200.0) < 230
    assert 200 <= copied(600.0, 1000.0) < 230
    assert copied(0.01, 2000.0) < 30


def test_what_the_tasks_store_themselves_needs_room_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(tmp_path, 1)
    task.recent.save(Contents(blobs={"data": bytes(1 << 20)}), step=1, position={}, downgrades=())
    assert task.recent._saver is not None
    task.recent._saver.wait(20)
    monkeypatch.setattr(free_memory, "available", lambda: 1 << 40)
    held = task.recent._held()
    monkeypatch.setattr(os, "statvfs", lambda path: room((2 << 20) + 2000 + (16 << 20) - held))
    assert not task.recent.is_due(0.0, 1000)
    assert task.recent.is_due(100.0, 1000)
    monkeypatch.setattr(os, "statvfs", lambda path: room((2 << 20) + 1000 + (16 << 20) - held))
    assert not task.recent.is_due(200.0, 1000)
    assert not task.recent.is_on


def test_the_copy_that_exists_is_not_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(tmp_path, 1)
    task.copy(1)
    held, blobs = task.recent._held(), sum(map(len, contents(1).blobs.values()))
    assert held
    monkeypatch.setattr(os, "statvfs", lambda path: room(1 << 30))
    monkeypatch.setattr(free_memory, "available", lambda: 3 * (10**6 + blobs) - held)
    assert not task.recent.is_due(0.0, 10**6)
    assert task.recent.is_due(100.0, 10**6)


def test_a_full_disk_that_takes_no_record_of_the_interval_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: room(1 << 30))
    task = Task(tmp_path, 1)
    task.copy(1)

    def full(every_s: float) -> None:
        task.told.append(every_s)
        raise OSError(errno.ENOSPC, "full")

    task.recent._record = full
    assert not task.recent.is_due(0.0, 10)
    assert task.recent.is_due(100.0, 10)
    assert len(task.told) == 1


@pytest.mark.parametrize(
    ("asked", "done"), [(["memory"], "copy"), (["memory", "epoch"], "save"), (["save", "memory"], "save")]
)
def test_a_copy_that_is_due_where_nothing_can_be_saved_is_made_at_the_end_of_the_epoch(
    asked: list[str], done: str
) -> None:
    """With one step per epoch, and with tf_keras, every step is such a place."""
    made: list[str] = []
    manager = SimpleNamespace(base=0, policy=Checkpoints(), rank=0, copy=lambda state: made.append("copy"))
    auto = SimpleNamespace(
        manager=manager,
        kill_points=SimpleNamespace(reached=lambda *_: None),
        coordinator=SimpleNamespace(step=partial(asked.pop, 0)),
        progress=SimpleNamespace(during=lambda _: nullcontext()),
    )
    begun = SimpleNamespace(at={}, known=TrainingPhase(kind="fit", signature=""))
    phase = PhaseCheckpoints(auto, begun, {}, dict)  # type: ignore[arg-type]
    phase.state = lambda capture=None, *, cheap=False: None  # type: ignore[method-assign, assignment, return-value]
    phase._save = lambda *_, **__: made.append("save")  # type: ignore[method-assign, assignment, func-returns-value]
    phase._is_finite = lambda: True  # type: ignore[method-assign]
    while asked:
        phase.count(1)
        phase.settle(1, hold=True)
    assert made == []
    phase.epoch_over()
    phase.epoch_over()
    assert made == [done]


@pytest.mark.parametrize(
    ("size", "cost_s", "every_s"), [(1000, None, 4.5), (100, 0.01, 4.5), (0, 0.2, 20.0), (2 * 10**9, None, 200.0)]
)
def test_copies_take_a_hundredth_of_the_time(size: int, cost_s: float | None, every_s: float) -> None:
    assert due_in_memory(size, cost_s) == pytest.approx(every_s)


@pytest.mark.parametrize("wrong", ["open to others", "a link"])
def test_a_folder_that_is_not_of_this_user_alone_is_neither_read_nor_written(tmp_path: Path, wrong: str) -> None:
    first = Task(tmp_path, 1)
    first.save(1)
    first.copy(2)
    top = tmp_path / "memory"
    if wrong == "a link":
        top.rename(tmp_path / "elsewhere")
        top.symlink_to(tmp_path / "elsewhere")
    else:
        top.chmod(0o755)
    second = Task(tmp_path, 2)
    assert found(second) == (1, False)
    assert not second.recent.is_on


def test_only_this_user_can_read_a_copy_and_the_janitor_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)  # as /dev/shm
    monkeypatch.setattr(janitor, "_SHARED_MEMORY", str(tmp_path))
    folder = Path(folder_of("/tmp/some-run", str(tmp_path)))
    recent = RecentCopy(str(folder))
    store = PosixStore(tmp_path / "store")
    opened = opening.open_first(store, 1, "a test", CLOCK)
    info = TaskInfo(run_id="test", attempt=1, task="worker-0", tasks=TASKS[:1])
    recent.begin(OpenStore(store=store, opening=opened, info=info, policy=Checkpoints()))
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder)] == [0o700, 0o700]
    janitor._remove("/tmp/other-run")
    assert folder.exists()
    janitor._remove("/tmp/some-run")
    assert not folder.exists()


PROGRAM = """
import os, time, keras, numpy as np, sdk

# As a program does whose temporary files need another disk.
del os.environ["TMPDIR"]

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)

keras.utils.set_random_seed(1)
with sdk.context().strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
rows = 64 * WORKERS
model.fit(np.ones((rows, 4), "float32"), np.ones((rows, 1), "float32"), batch_size=WORKERS, verbose=0, callbacks=[Slow()])
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_continues_from_memory_and_nothing_stays_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM.replace("WORKERS", str(workers)))
    retry = sdk.Retry(infrastructure=1)
    plan = sdk.plan(sdk.Job("train.py", resources=sdk.Resources(workers=workers), retry=retry))
    run = sdk.submit(replace(plan, drill=Drill(seed=1, kills=(Kill(task="chief-0", point="step", number=45),))))
    status = run.wait(300)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    # Copies are made every 4.5 s, and the steps take 0.2 s.
    assert 15 <= (status.continued_step or 0) < 45
    paths = RunPaths(plan.paths.url)
    records = read_events(paths, ("restored",))
    assert {event.data.get("memory") for event in records} == {True}
    assert {event.data["step"] for event in records} == {status.continued_step}
    text = "\n".join(line.text for line in run.logs())
    assert f"from the copy in memory of step {status.continued_step}" in text
    places = {plan.paths.temporary, *(str(event.data["temporary"]) for event in read_events(paths, ("started",)))}
    assert len(records) == workers
    until(lambda: not any(Path(folder_of(place)).exists() for place in places))


def left(top: Path, temporary: Path) -> Path:
    """Leave a copy as a killed container does."""
    folder = Path(folder_of(str(temporary), str(top)))
    temporary.mkdir(parents=True)
    found = opening.Opening(attempt=1, epoch=1, nonce="ab", commit=None)
    RecentCopy(str(folder), temporary=str(temporary))._take_over(found, "chief-0")
    return folder


def test_a_copy_whose_container_was_killed_is_found_after_an_hour_and_one_that_is_used_is_not(tmp_path: Path) -> None:
    used, killed = left(tmp_path, tmp_path / "a/tmp"), left(tmp_path, tmp_path / "b/tmp")
    shutil.rmtree(tmp_path / "b")
    now = CLOCK.now()
    assert left_behind(now, str(tmp_path)) == []
    assert left_behind(now + 3700, str(tmp_path)) == [killed]
    # An earlier podlift did not write whose it is.
    (used / "OWNER").unlink()
    assert sorted(left_behind(now + 3700, str(tmp_path))) == sorted([used, killed])


def test_the_copies_of_a_container_are_removed_with_it_and_no_others(tmp_path: Path) -> None:
    own, other = left(tmp_path, tmp_path / "job/worker-0/tmp"), left(tmp_path, tmp_path / "job/worker-01/tmp")
    shutil.rmtree(tmp_path / "job/worker-0")
    remove_those_of(str(tmp_path / "job/worker-0"), str(tmp_path))
    assert (own.exists(), other.exists()) == (False, True)


def test_a_training_removes_what_was_left_by_a_killed_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    monkeypatch.setattr("sdk.checkpoint.recent.left_behind", lambda now: [killed])
    Task(tmp_path, 1)
    assert not killed.exists()
