"""The faults of a store, one by one. The numbers refer to the list of faults.

Each test ends with the same question:
the restored state is bitwise one acknowledged step, and not older than the last one.
"""

import copy
import errno
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from programs.store_faults import FaultyStore, StoreFault
from support import heard

from sdk.checkpoint import opening, restore
from sdk.checkpoint.contents import Array, Contents
from sdk.checkpoint.envelope import unwrap, wrap
from sdk.checkpoint.retention import Retention, collect
from sdk.clock import SystemClock
from sdk.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptCheckpointError,
    FencedError,
    FutureFormatError,
    MissingError,
    SaveFailedError,
    StoreError,
    WaitTimeoutError,
)
from sdk.job.policies import Checkpoints
from sdk.storage.posix_store import PosixStore

from . import parts
from .parts import CLOCK, Attempt, check, contents, files, restored


def saved(store: PosixStore, *steps: int, number: int = 0, **policy: object) -> list[str]:
    """Save some steps in one attempt; return the keys of the commits."""
    attempt = Attempt(store, number, **policy)
    keys = [attempt.save(step) for step in steps]
    attempt.close()
    return keys


def path_of(store: PosixStore, key: str) -> Path:
    return Path(store.url) / key


def flip(store: PosixStore, key: str) -> None:
    data = bytearray(path_of(store, key).read_bytes())
    data[max(-200, -len(data))] ^= 4
    path_of(store, key).write_bytes(data)


def cut(store: PosixStore, key: str) -> None:
    os.truncate(path_of(store, key), path_of(store, key).stat().st_size // 2)


def emptied(store: PosixStore, key: str) -> None:
    os.truncate(path_of(store, key), 0)


def replaced(store: PosixStore, key: str, data: bytes) -> None:
    store.delete(key)
    store.put_new(key, [data])


def overwritten(store: PosixStore, key: str) -> None:
    replaced(store, key, bytes(store.get(key)))


FAILS = {
    "03-the-data": StoreFault("put_new", "data/", nth=3, times=9),
    "03-the-commit": StoreFault("put_new", "commits/", times=9),
    "03-the-lease-before-the-commit": StoreFault("get", "LEASE", nth=2),
    "33-a-full-disk": StoreFault("put_new", "data/", nth=2, error=StoreError("the disk is full")),
    "35-an-interrupt-during-the-data": StoreFault("put_new", "data/", do="interrupt", nth=2),
    "35-an-interrupt-before-the-commit": StoreFault("put_new", "commits/", do="interrupt"),
    "14-the-data-is-stored-with-another-bit": StoreFault("put_new", "data/", do="flip", nth=2),
    "10-half-of-the-data-is-stored": StoreFault("put_new", "data/", do="cut", nth=2),
    "14-the-commit-is-stored-with-another-bit": StoreFault("put_new", "commits/", do="flip"),
}


@pytest.mark.shows("a save fails")
@pytest.mark.parametrize("name", FAILS)
def test_a_save_that_fails_is_loud_for_ever_and_leaves_earlier_checkpoints(store: PosixStore, name: str) -> None:
    # A fault happens once, and these tests run on several stores.
    fault = copy.deepcopy(FAILS[name])
    saved(store, 1, 2)
    attempt = Attempt(FaultyStore(store, fault), 1)
    ticket = attempt.savers[0].save(contents(3), step=3, position={"step": 3})
    with pytest.raises(SaveFailedError, match=r"step 3 was not saved by worker-0.*Earlier checkpoints are untouched"):
        ticket.wait(20)
    assert fault.happened
    for again in (attempt.savers[0].wait, attempt.savers[0].close, lambda: attempt.savers[0].save(contents(4), step=4)):
        with pytest.raises(SaveFailedError, match="step 3"):
            again()
    assert any("step 3" in line for line in attempt.said)
    assert restored(store) == 2
    saved(store, 3, number=2)
    assert restored(store) == 3


class UnprintableError(StoreError):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BrokenClock(SystemClock):
    def monotonic(self) -> float:
        raise OSError("no clock")


def test_a_save_that_fails_in_a_way_that_nothing_expects_is_not_taken_for_saved(store, monkeypatch) -> None:
    saved(store, 1)
    attempt = Attempt(FaultyStore(store, StoreFault("put_new", "data/", error=UnprintableError("?"))), 1)
    monkeypatch.setattr(parts, "CLOCK", BrokenClock())
    for saver in (*attempt.savers, *Attempt(store, 2).savers):
        ticket = saver.save(contents(2), step=2)
        assert ticket is not None
        with pytest.raises(SaveFailedError, match=r"failed at step 2: (RuntimeError|OSError)\. No further"):
            ticket.wait(5)
        with pytest.raises(SaveFailedError, match="failed at step 2"):
            saver.save(contents(3), step=3)
    assert restored(store) == 1


def test_34_an_error_while_the_state_is_taken_leaves_earlier_checkpoints(store: PosixStore) -> None:
    saved(store, 1)
    attempt = Attempt(store, 1)
    broken = mock.Mock(side_effect=RuntimeError("no such device"))
    ticket = attempt.savers[0].save(Contents((*contents(2).arrays, Array("x", "uint8", (1,), broken))), step=2)
    with pytest.raises(SaveFailedError, match="RuntimeError: no such device"):
        ticket.wait(20)
    # The part that was written is removed: a full disk must not stay full.
    assert files(store, "data/e000002") == []
    assert restored(store) == 1


LOST = {
    "08-the-data": StoreFault("put_new", "data/", do="lose", nth=2),
    "08-the-commit": StoreFault("put_new", "commits/", do="lose"),
    "08-a-repeated-commit": StoreFault("put_new", "commits/", do="lose", error=AlreadyExistsError("412")),
    "08-repeated-data": StoreFault("put_new", "data/", do="lose", nth=2, error=AlreadyExistsError("412")),
    "08-a-removal": StoreFault("delete", "commits/", do="lose", error=MissingError("404")),
    "08-the-lease": StoreFault("swap", "LEASE", do="lose"),
    "08-a-repeated-lease": StoreFault("swap", "LEASE", do="lose", error=ConflictError("412")),
    "08-the-opening": StoreFault("put_new", "openings/", do="lose"),
    "44-a-repeated-opening": StoreFault("put_new", "openings/", do="lose", error=AlreadyExistsError("412")),
    "07-the-commit-that-was-not-applied": StoreFault("put_new", "commits/"),
    "07-the-removal-that-was-not-applied": StoreFault("delete", "commits/"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_lost_reply_is_settled_by_the_stored_object(store: PosixStore, name: str) -> None:
    fault = copy.deepcopy(LOST[name])
    attempt = Attempt(FaultyStore(store, fault), keep_last=1)
    for step in (1, 2, 3, 4):
        attempt.save(step)
        assert restored(store) == step
    attempt.close()
    assert fault.happened
    assert len(files(store, "commits/")) == 1


def test_08_a_commit_with_a_lost_reply_and_lost_reads_is_acknowledged(store: PosixStore) -> None:
    looks = [StoreFault("stat", "commits/", nth=nth) for nth in (1, 3, 5)]
    attempt = Attempt(FaultyStore(store, StoreFault("put_new", "commits/", do="lose"), *looks))
    attempt.save(1)
    assert looks[0].happened
    assert restored(store) == 1


def test_08_a_commit_with_an_unknown_fate_is_not_acknowledged_and_its_data_stays(store: PosixStore) -> None:
    lost = StoreFault("put_new", "commits/", do="lose")
    attempt = Attempt(FaultyStore(store, lost, StoreFault("stat", "commits/", times=9)))
    with pytest.raises(SaveFailedError, match="It is unknown whether"):
        attempt.save(1)
    assert restored(store) == 1


def made_a_folder(store: PosixStore, key: str) -> None:
    path_of(store, key).unlink()
    path_of(store, key).mkdir()


Damage = Callable[[PosixStore, str], object]
# The damaged object, and its damage.
DAMAGES: dict[str, tuple[str, Damage]] = {
    "15-a-bit-of-the-data": ("data", flip),
    "16-half-of-the-data": ("data", cut),
    "16-empty-data": ("data", emptied),
    "17-the-data-is-deleted": ("data", PosixStore.delete),
    "18-the-data-is-written-by-somebody-else": ("data", overwritten),
    "18-the-data-is-a-folder": ("data", made_a_folder),
    "19-a-bit-of-the-manifest": ("commit", flip),
    "19-half-of-the-manifest": ("commit", cut),
    "19-an-empty-manifest": ("commit", emptied),
    "19-a-manifest-of-another-shape": ("commit", lambda store, key: replaced(store, key, wrap("manifest", {"epoch": 1}))),
    "19-a-manifest-that-is-no-json": ("commit", lambda store, key: replaced(store, key, b"<html>")),
    "20-a-manifest-of-another-place": (
        "commit", lambda store, key: replaced(store, key, bytes(store.get(files(store, "commits/")[0]))),
    ),
}  # fmt: skip


@pytest.mark.shows("a bit of a checkpoint flips")
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_found_put_into_quarantine_and_not_restored(store: PosixStore, name: str) -> None:
    part, damage = DAMAGES[name]
    commits = saved(store, 1, 2, 3)
    newest = restore.read_manifest(store, commits[-1])
    damage(store, newest.files[1].key if part == "data" else commits[-1])
    said = heard("checkpoint")
    assert check(restore.newest(store)) == 2
    assert len(files(store, "quarantine/")) == 1
    assert any(commits[-1] in line and "Trying an older one" in line for line in said)
    # The next attempt continues there, keeps the good checkpoints, and is the newest.
    saved(store, 3, number=1)
    assert restored(store) == 3
    assert "commits/e000001/000000000002-000000.json" in files(store, "commits/")


def test_19_a_manifest_of_a_newer_podlift_is_an_error_and_no_older_one_replaces_it(store: PosixStore) -> None:
    commits = saved(store, 1, 2)
    replaced(store, commits[-1], wrap("manifest", {"format_version": 2}))
    with pytest.raises(FutureFormatError, match=r"newer podlift.*reads 1"):
        restore.newest(store)
    assert files(store, "quarantine/") == []


def test_21_an_object_damaged_on_its_way_is_read_again(store: PosixStore) -> None:
    saved(store, 1, 2)
    once = StoreFault("get", r"data/.*00001\.bin", error=restore.CorruptObjectError("other bytes"))
    assert check(restore.newest(FaultyStore(store, once))) == 2
    assert once.happened


@pytest.mark.parametrize(
    ("op", "prefix"), [("list", "commits/"), ("list", "quarantine/"), ("list", "data/"), ("get", "data/")]
)
def test_22_a_read_that_fails_is_an_error_and_neither_a_fresh_start_nor_damage(store, op: str, prefix: str) -> None:
    saved(store, 1, 2)
    for read in (restore.newest, lambda faulty: opening.open_first(faulty, 1, "me", CLOCK)):
        with pytest.raises(StoreError, match="does not answer"):
            read(FaultyStore(store, StoreFault(op, prefix, times=99)))
    assert files(store, "quarantine/") == []
    assert restored(store) == 2


def test_23_if_none_verifies_it_is_an_error_and_never_a_fresh_start(store: PosixStore) -> None:
    for key in saved(store, 1, 2):
        cut(store, key)
    for read in (restore.newest, lambda store: opening.open_first(store, 1, "me", CLOCK)):
        with pytest.raises(CorruptCheckpointError, match="None of the 2 checkpoints"):
            read(store)


def test_24_an_object_that_claims_to_be_the_latest_is_not_read(store: PosixStore) -> None:
    saved(store, 1, 2)
    for name in ("LATEST.json", "commits/LATEST", "commits/e000009/latest.json", "data/e000001/x"):
        store.put_new(name, [b'{"step": 1}'])
    assert restored(store) == 2
    saved(store, 3, number=1)
    assert restored(store) == 3


def test_26_of_many_concurrent_attempts_the_last_may_write_and_all_others_are_fenced(store: PosixStore) -> None:
    start = threading.Barrier(24)

    def racer(number: int) -> opening.Lease:
        start.wait()
        return opening.take(store, f"racer {number}", CLOCK)

    with ThreadPoolExecutor(24) as pool:
        *fenced, last = sorted(pool.map(racer, range(24)), key=lambda mine: mine.epoch)
    assert [mine.epoch for mine in (*fenced, last)] == list(range(1, 25))
    opening.check_lease(store, last)
    for mine in fenced:
        with pytest.raises(FencedError, match=r"racer \d+.*\(epoch 24; ours"):
            opening.check_lease(store, mine)


def test_26_an_attempt_that_is_opened_twice_is_opened_once(store: PosixStore) -> None:
    opening.open_first(store, 0, "one", CLOCK)
    with pytest.raises(FencedError, match="already opened by another task"):
        opening.open_first(store, 0, "two", CLOCK)


@pytest.mark.shows("an old process of the run wakes up")
def test_27_a_zombie_neither_commits_nor_removes_once_it_is_fenced(store: PosixStore) -> None:
    zombie = Attempt(store, keep_last=1)
    zombie.save(1)
    successor = Attempt(store, 1, keep_last=1)
    with pytest.raises(SaveFailedError, match=r"attempt 1.*has taken over"):
        zombie.save(2)
    assert restored(store) == 1
    assert successor.save(2).startswith("commits/e000002/")
    assert restored(store) == 2


def test_27_a_zombie_that_commits_after_all_is_older_than_every_later_epoch(store: PosixStore) -> None:
    successors: list[Attempt] = []

    def succeed() -> None:
        successors.append(Attempt(store, 1))
        successors[0].save(5)

    # Between its look at the lease and its commit, a successor opens, and commits too.
    Attempt(FaultyStore(store, StoreFault("put_new", "commits/", do=succeed))).save(9)
    assert len(files(store, "commits/")) == 2
    assert restored(store) == 5
    assert successors[0].save(6).startswith("commits/e000002/")
    assert restored(store) == 6


class Skewed(SystemClock):
    """An hour off, and another hour at every look."""

    def __init__(self, hours: float) -> None:
        self.hours = hours

    def now(self) -> float:
        self.hours *= 2
        return super().now() + 3600 * self.hours


@pytest.mark.parametrize("hours", [-1.0, 1.0])
def test_28_nothing_depends_on_the_time_of_the_clock(store, hours: float, monkeypatch) -> None:
    saved(store, 1, 2)
    monkeypatch.setattr(parts, "CLOCK", Skewed(hours))
    saved(store, 3, 4, 5, 6, number=1)
    assert restored(store) == 6
    monkeypatch.setattr(parts, "CLOCK", Skewed(-hours))
    saved(store, 7, number=2)
    assert restored(store) == 7


def test_29_without_the_part_of_another_task_nothing_is_committed(store: PosixStore) -> None:
    attempt = Attempt(store, tasks=2)
    attempt.save(1)
    chief = attempt.saver(0, 2, receipts_s=0.05)
    ticket = chief.save(contents(2), step=2)
    with pytest.raises(SaveFailedError, match="worker-1 did not write its part within"):
        ticket.wait(20)
    assert restored(store, 2) == 1


@pytest.mark.parametrize("other", [{"nonce": "of another attempt"}, {"rank": 0}, {"files": [{}]}], ids=str)
def test_a_receipt_that_is_not_for_this_save_is_refused(store: PosixStore, other: dict) -> None:
    class Spoiling(FaultyStore):
        def put_new(self, key: str, data: object, **crc: object) -> object:
            sent = [wrap("receipt", unwrap("receipt", b"".join(data)) | other)] if "receipt" in key else data
            return super().put_new(key, sent)

    Attempt(store, tasks=2).save(1)
    attempt = Attempt(Spoiling(store), 1, tasks=2)
    with pytest.raises(SaveFailedError, match=r"receipt|file"):
        attempt.save(2)
    assert restored(store, 2) == 1


def test_30_a_first_task_that_dies_behind_the_receipts_leaves_the_checkpoint_before(store: PosixStore) -> None:
    Attempt(store, tasks=2).save(1)
    attempt = Attempt(store, 1, tasks=2)
    attempt.savers[1].save(contents(2, 1), step=2).wait(20)
    assert files(store, "data/e000002/")
    assert restored(store, 2) == 1
    Attempt(store, 2, tasks=2).save(2)
    assert restored(store, 2) == 2
    assert files(store, "data/e000002/") == []


def test_31_a_checkpoint_of_two_tasks_is_read_by_one_and_the_other_way_round(store: PosixStore) -> None:
    Attempt(store, tasks=2).save(1)
    alone = Attempt(store, 1, tasks=1)
    assert check(alone.opening.read(store), ranks=2) == 1
    alone.save(2)
    assert check(Attempt(store, 2, tasks=2).opening.read(store), ranks=1) == 2


def test_12_a_save_that_does_not_end_in_time_leaves_the_checkpoint_before(store: PosixStore) -> None:
    go = threading.Event()
    saved(store, 1)
    slow = StoreFault("put_new", "data/e000002/", do=lambda: go.wait(20), times=99)
    attempt = Attempt(FaultyStore(store, slow), 1)
    ticket = attempt.savers[0].save(contents(2), step=2, position={"step": 2}, reason="preempt")
    with pytest.raises(WaitTimeoutError):
        ticket.wait(0.01)
    assert restored(store) == 1
    go.set()
    ticket.wait(20)
    assert restored(store) == 2


@pytest.mark.parametrize("where", ["data", "commit"])
def test_35_an_interrupt_of_the_program_leaves_no_half_of_a_checkpoint(store: PosixStore, where: str) -> None:
    saved(store, 1)
    attempt = Attempt(FaultyStore(store, StoreFault("put_new", where)) if where == "commit" else store, 1)

    def interrupting() -> memoryview:
        signal.raise_signal(signal.SIGINT)
        return memoryview(b"x")

    ticket = attempt.savers[0].save(Contents((Array("x", "uint8", (1,), interrupting),)), step=2)
    with pytest.raises(KeyboardInterrupt):
        # The interrupt arrives in the main thread, which waits.
        for _ in range(2000):
            ticket.wait(20)
            threading.Event().wait(0.01)
    ticket.wait(20)
    found = restore.newest(store)
    assert (found.manifest.step, bytes(found.arrays["x"].data)) == (2, b"x")


def test_38_no_loop_of_crashes_shrinks_the_kept_checkpoints(store: PosixStore) -> None:
    for number in range(7):
        # Each one crashes behind its first save: nothing is closed.
        Attempt(store, number, keep_last=3).save(number)
        assert restored(store) == number
        assert len(files(store, "commits/")) == min(number + 1, 3)


def test_38_a_restored_checkpoint_stays_until_a_newer_one_is_proven(store: PosixStore) -> None:
    (first,) = saved(store, 1)
    Attempt(store, 1, keep_last=1).save(2)
    assert first not in files(store, "commits/")

    # It loses a bit of the data right behind the commit.
    rot = StoreFault("put_new", "commits/", lambda: flip(store, files(store, "data/e000003/")[0]), "after")
    rotting = Attempt(FaultyStore(store, rot), 2, keep_last=1)
    rotting.save(3)
    assert any("could not be removed" in line for line in rotting.said)
    assert restored(store) == 2


def test_43_garbage_of_attempts_that_may_still_write_is_left_alone(store: PosixStore) -> None:
    saved(store, 1)
    old = Attempt(store, 1, tasks=2)
    old.savers[1].save(contents(2, 1), step=2).wait(20)
    in_flight = files(store, "data/e000002/")
    assert in_flight
    # An attempt collects nothing before its own first commit, and nothing of this epoch or a later one.
    successor = Attempt(store, 2)
    assert set(in_flight) <= set(files(store, "data/"))
    assert collect(store, 2) == 0
    successor.save(3)
    assert files(store, "data/e000002/") == []
    assert restored(store) == 3


def test_43_data_of_a_commit_that_cannot_be_read_is_no_garbage(store: PosixStore) -> None:
    commits = saved(store, 1, 2)
    kept = files(store, "data/e000001/")
    flip(store, commits[-1])
    collect(store, 9)
    assert files(store, "data/e000001/") == kept
    assert restored(store) == 1


@pytest.mark.parametrize(
    "damage", ["a bit of it is another", "it is gone", "it is another file", "it is an older copy"]
)
def test_a_damaged_lease_does_not_make_later_epochs_older(store: PosixStore, damage: str) -> None:
    saved(store, 1)
    lease = path_of(store, "LEASE.json")
    others = {"it is another file": b"{}", "it is an older copy": lease.read_bytes()}
    saved(store, 2, number=1)
    saved(store, 3, number=2)
    if damage in others:
        lease.write_bytes(others[damage])
    else:
        (flip if damage == "a bit of it is another" else PosixStore.delete)(store, "LEASE.json")
    saved(store, 4, number=3)
    assert restored(store) == 4
    assert files(store, "commits/")[-1].startswith("commits/e000004/")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_33_an_error_of_the_disk_is_reported_in_a_sentence(store, monkeypatch, number: int) -> None:
    saved(store, 1)
    attempt = Attempt(store, 1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", mock.Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(SaveFailedError, match=r"Cannot write .*(full|quota|read-only|permission denied|device)"):
            attempt.save(2)
    assert restored(store) == 1


def test_a_commit_of_another_writer_under_our_name_is_not_ours(store: PosixStore) -> None:
    class Overtaken(FaultyStore):
        """Another writer creates the commit, and the reply to our own request is lost."""

        def put_new(self, key: str, data: object, **crc: object) -> object:
            if key.startswith("commits/"):
                ours = b"".join(bytes(part) for part in data)
                body = unwrap("manifest", ours)
                store.put_new(key, [wrap("manifest", {**body, "nonce": "another"})])
                raise StoreError("the reply was lost")
            return super().put_new(key, data, **crc)

    with pytest.raises(SaveFailedError, match="was written by another process"):
        Attempt(Overtaken(store)).save(1)


def test_an_epoch_that_left_only_data_is_not_begun_again(store: PosixStore) -> None:
    saved(store, 1)
    for key in files(store, "commits/"):
        store.delete(key)
    store.delete("LEASE.json")
    assert files(store, "data/e000001/")
    assert opening.take(store, "next", CLOCK).epoch == 2


def test_a_task_that_fails_to_write_its_part_removes_nothing_of_the_others(store: PosixStore) -> None:
    others: list[str] = []

    def fail() -> None:
        # The first task has written its part when the second one fails.
        (mine, *_) = files(store, "data/")
        others.append(store.put_new(f"{mine.rpartition('/')[0]}/t00000-00000.bin", [b"1"]).key)
        raise StoreError("the disk is full")

    attempt = Attempt(store, tasks=2)
    attempt.store = FaultyStore(store, StoreFault("put_new", "receipt", do=fail))
    with pytest.raises(SaveFailedError, match="the disk is full"):
        attempt.saver(1, 2).save(contents(1, 1), step=1, position={"step": 1}).wait(20)
    assert others and set(others) <= set(files(store))


def test_27_a_zombie_removes_no_checkpoint_that_its_successor_keeps(store: PosixStore) -> None:
    zombie = Attempt(store, keep_last=2)
    zombie.save(1)
    zombie.save(2)
    retention = Retention(replace(zombie.savers[0].opened, policy=Checkpoints(keep_last=1)))
    Attempt(store, 1, keep_last=2)
    before = files(store, "commits/")
    with pytest.raises(FencedError):
        retention.tidy()
    assert files(store, "commits/") == before


def test_a_checkpoint_that_retention_removes_while_it_is_read_is_not_called_damaged(store: PosixStore) -> None:
    commits = saved(store, 1, 2)

    def remove() -> None:
        # After its manifest was read.
        for key in (commits[-1], *files(store, f"data/{commits[-1][8:29]}")):
            store.delete(key)

    found = restore.newest(FaultyStore(store, StoreFault("list", "data/", do=remove)))
    assert found is not None and found.manifest.step == 1
    assert files(store, "quarantine/") == []
