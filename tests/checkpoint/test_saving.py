"""Saving and restoring on a disk, with nothing going wrong."""

import math
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from sdk.checkpoint import opening, restore
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.opening import Env, OpenStore, TaskInfo
from sdk.checkpoint.saver import AsyncSaver
from sdk.errors import InputError, StoreError, WaitTimeoutError
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import Buffer, Stat

from .parts import CLOCK, Attempt, check, contents, files, restored


def held(go: threading.Event) -> Contents:
    """A state that can be read once somebody has said so."""
    return Contents((Array("a", "uint8", (4,), lambda: memoryview(b"slow" if go.wait(20) else b"late")),))


def test_a_saved_state_is_restored_bit_by_bit(store: PosixStore) -> None:
    attempt = Attempt(store)
    assert attempt.opening.commit is None
    key = attempt.save(7, metrics={"loss": 0.5}, downgrades=["the data is skipped"], keep=True)
    attempt.close()
    again = opening.open_first(store, 1, "again", CLOCK)
    assert (again.commit, again.epoch) == (key, 2)
    checkpoint = again.read(store)
    assert check(checkpoint) == 7
    manifest = checkpoint.manifest
    assert (manifest.run_id, manifest.metrics, manifest.keep) == ("test", {"loss": 0.5}, True)
    assert manifest.downgrades == ("the data is skipped",)
    assert len(manifest.stream("arrays")) > 2, "an array may be larger than an object"
    assert all(array.offset % 64 == 0 for array in manifest.arrays)


def test_all_tasks_join_the_choice_of_the_first_and_have_their_own_blobs_back(store: PosixStore) -> None:
    attempt = Attempt(store, tasks=3)
    attempt.save(1)
    key = attempt.save(2)
    attempt.close()
    first = opening.open_first(store, 1, "first", CLOCK)
    joined = [opening.join(store, 1, CLOCK, 10) for _ in range(2)]
    assert all(other == first for other in joined)
    assert {check(other.read(store), 3) for other in (first, *joined)} == {2}
    assert first.commit == key


def test_joining_tasks_wait_for_the_first_task_and_not_for_ever(store: PosixStore) -> None:
    with pytest.raises(StoreError, match="did not choose a checkpoint within 0 s"):
        opening.join(store, 0, CLOCK, 0)
    late = threading.Timer(0.1, lambda: opening.open_first(store, 0, "late", CLOCK))
    late.start()
    assert opening.join(store, 0, CLOCK, 20).epoch == 1
    late.join()


def test_a_busy_saver_skips_a_save_by_interval_and_no_other(store: PosixStore) -> None:
    go = threading.Event()
    attempt = Attempt(store, on_busy="skip")
    saver = attempt.savers[0]
    first = saver.save(held(go), step=1)
    assert saver.busy
    assert saver.save(contents(2), step=2) is None
    with pytest.raises(WaitTimeoutError, match="step 1 was not written"):
        first.wait(0)
    with pytest.raises(WaitTimeoutError):
        saver.wait(0)
    threading.Timer(0.05, go.set).start()
    last = saver.save(contents(3), step=3, position={"step": 3}, reason="preempt")
    assert first.done()
    assert last.wait(20).step == 3
    attempt.close()
    kept = ["000000000001-000000.json", "000000000003-000000.json"]
    assert [key.split("/")[-1] for key in files(store, "commits/")] == kept


class Memory(bytearray):
    """The memory of a variable."""


def test_a_wait_ends_after_the_last_thread_has_let_go_of_the_memory(store: PosixStore) -> None:
    """The next step would copy memory that another thread still reads."""
    attempt, go, alive = Attempt(store), threading.Event(), list[bool]()
    memory = Memory(64)
    array = Array("a", "uint8", (64,), partial(lambda kept: memoryview(kept if go.wait(20) else b""), memory))
    gone = weakref.ref(memory)
    ticket = attempt.savers[0].save(Contents((array,)), step=1)
    settle = ticket.settled.set
    ticket.settled.set = lambda: (alive.append(gone() is not None), settle())
    del memory, array
    go.set()
    attempt.savers[0].wait(20)
    attempt.close()
    assert alive == [False]


def test_two_saves_of_one_step_are_two_checkpoints_and_the_later_one_counts(store: PosixStore) -> None:
    attempt = Attempt(store, tasks=2)
    attempt.save(4)
    last = attempt.save(4, reason="final")
    attempt.close()
    assert last.endswith("000000000004-000001.json")
    assert restore.newest(store).manifest.reason == "final"


def test_all_mistakes_of_a_save_are_said_at_once_and_nothing_is_written(store: PosixStore) -> None:
    attempt = Attempt(store)
    attempt.save(4)
    before = files(store)
    with pytest.raises(InputError) as caught:
        attempt.savers[0].save(contents(3), step=3, position={1: object()}, reason="finel", metrics={"a": "b"})
    assert len(caught.value.problems) == 4
    assert "Did you mean 'final'?" in str(caught.value)
    with pytest.raises(InputError, match="The position of a checkpoint must be JSON"):
        attempt.savers[0].save(contents(5), step=5, position={"loss": math.nan})
    attempt.close()
    assert files(store) == before
    assert restored(store) == 4


def test_a_change_after_a_save_is_not_in_it(store: PosixStore) -> None:
    go = threading.Event()
    attempt = Attempt(store)
    position, metrics = {"batches": [1]}, {"loss": 1.0}
    ticket = attempt.savers[0].save(held(go), step=1, position=position, metrics=metrics)
    position["batches"].append(2)
    metrics["loss"] = 2.0
    go.set()
    ticket.wait(20)
    attempt.close()
    manifest = restore.newest(store).manifest
    assert (manifest.position, manifest.metrics) == ({"batches": [1]}, {"loss": 1.0})


def test_only_rank_0_skips_and_the_parts_of_the_others_are_removed(store: PosixStore) -> None:
    go = threading.Event()
    attempt = Attempt(store, on_busy="skip", tasks=2)
    chief, worker = attempt.savers
    first = chief.save(held(go), step=1)
    for step in (1, 2, 3):
        assert worker.save(contents(step, 1), step=step) is not None
    assert chief.save(contents(2), step=2) is None
    worker.wait(20)
    assert len([key for key in files(store, "data/") if "000000000002-" in key]) == 2
    go.set()
    first.wait(20)
    chief.wait(20)
    assert chief.save(contents(3), step=3, position={"step": 3}).wait(20).step == 3
    chief.wait(20)
    assert [key for key in files(store, "data/") if "000000000002-" in key] == []
    attempt.close()
    assert restored(store, 2) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="each thread has its own priority on Linux")
def test_a_regular_save_yields_the_processor_and_one_that_is_waited_for_does_not(store: PosixStore) -> None:
    found: dict[str, set[int]] = {"interval": set(), "manual": set()}

    class Watched(PosixStore):
        def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
            if key.startswith("data/"):
                found[reason].add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().put_new(key, data, crc=crc)

    attempt = Attempt(Watched(store.url))
    before = os.getpriority(os.PRIO_PROCESS, 0)
    for step, reason in enumerate(found):
        attempt.save(step, reason=reason)
    attempt.close()
    assert found == {"interval": {min(before + 5, 19)}, "manual": {before}}


@pytest.mark.shows("tasks train without a connection")
def test_without_a_connection_only_the_first_task_saves_and_waits_for_no_other(store: PosixStore) -> None:
    savers = Attempt(store, 1, tasks=2).savers
    for saver in savers:
        saver.opened = replace(saver.opened, env=Env(clock=CLOCK, apart=lambda: True))
    assert savers[1].save(contents(3, 1), step=3, position={"step": 3}) is None
    savers[0].save(contents(9), step=9, position={"step": 9}, reason="preempt").wait(5)
    found = Attempt(store, 2, tasks=2).opening.read(store)
    assert (found.manifest.step, found.manifest.ranks, found.blobs) == (9, 2, {0: contents(9).blobs, 1: {}})


@pytest.mark.parametrize("apart", [True, False])
def test_a_late_task_without_a_connection_finds_the_checkpoint_that_the_others_read(store, apart: bool) -> None:
    Attempt(store, 1, tasks=1).save(5)
    second = Attempt(store, 2, tasks=2, keep_last=1)
    tasks = ("worker-0", "worker-1")[: 1 + apart]
    info = TaskInfo(run_id="test", attempt=2, task="worker-0", tasks=tasks)
    env = Env(clock=CLOCK, apart=lambda: apart)
    saver = AsyncSaver(OpenStore(store=store, opening=second.opening, info=info, policy=second.policy, env=env))
    for step in (6, 7, 8):
        assert saver.save(contents(step), step=step, position={"step": step}) is not None
        saver.wait(20)
    kept = [stat.key for stat in restore.commits_of(store)]
    assert len(kept) == 1 + apart
    if apart:
        joined = opening.join(store, 2, CLOCK, 1, run_id="test").read(store)
        assert check(joined) == 5
