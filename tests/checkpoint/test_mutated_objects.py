"""One value of one object of a store is replaced by anything that JSON can hold, with the right crc32c: no reader crashes."""

import copy
import datetime
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import full_only

from sdk.checkpoint import catalog, names, opening, restore
from sdk.checkpoint.contents import Array, Contents, decode_receipt, encode_receipt, write
from sdk.checkpoint.envelope import unwrap
from sdk.checkpoint.names import CheckpointId
from sdk.checkpoint.retention import collect
from sdk.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptCheckpointError,
    FencedError,
    FutureFormatError,
    MissingError,
)
from sdk.storage.checksums import crc32c
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import Buffer, Stat

from .parts import CLOCK, Attempt, manager

REFUSED = (CorruptCheckpointError, FutureFormatError)
DEEP, DEEPER = "[" * 300 + "]" * 300, "[" * 100_000
TEXTS = ("", "nan", "\ud800", "x" * 5000, "commits/e" + "9" * 5000 + "/000000000001-000000.json", DEEP, DEEPER)
NUMBERS = (-1, 0, 1, 3, 10**15, 10**17, 2**60, 10**400, 10**4000, -0.5, 1e308, float("nan"), float("inf"))
HOSTILE = (None, True, [], [[]], {}, {"\ud800": 1}, *TEXTS, *NUMBERS)
GONE = object()


class MemoryStore:
    """Objects in a dictionary; a copy of it is cheap."""

    url = "memory"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        if key in self.objects:
            raise AlreadyExistsError(key)
        self.objects[key] = b"".join(data)
        return self.stat(key)

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        if generation not in (None, self.stat(key).generation):
            raise ConflictError(key)
        if into is None:
            return self.objects[key]
        into[:] = self.objects[key]
        return into

    def list(self, prefix: str) -> Iterator[Stat]:
        yield from [self.stat(key) for key in sorted(self.objects) if key.startswith(prefix)]

    def stat(self, key: str) -> Stat:
        if key not in self.objects:
            raise MissingError(key)
        data = self.objects[key]
        return Stat(key=key, size=len(data), crc32c=crc32c([data]), generation=str(crc32c([data])))

    def delete(self, key: str, *, generation: str | None = None) -> None:
        del self.objects[self.stat(key).key]

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        self.objects[key] = b"".join(data)
        return self.stat(key)

    def set_deadline(self, within_s: float) -> None: ...


def sealed(kind: str, body: Any) -> bytes:
    """Return an object with the right crc32c, whatever `wrap` would say to its body."""
    text = json.dumps(body)
    for deep in (DEEP, DEEPER):
        text = text.replace(f'"{deep}"', deep)
    return b'{"podlift": "%b", "crc32c": "%08x"}\n' % (kind.encode(), crc32c([text.encode()])) + text.encode()


def places(body: Any) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value of a body; of a list, those in its first item."""
    items = body.items() if isinstance(body, dict) else enumerate(body[:1]) if isinstance(body, list) else ()
    for name, item in items:
        yield (name,)
        yield from ((name, *rest) for rest in places(item))


def mutants(kind: str, data: Buffer) -> Iterator[tuple[str, bytes]]:
    """Yield objects in which one value is missing, new or replaced, each with a description."""
    whole = unwrap(kind, data)
    for place, value in itertools.product([*places(whole), ("a new one",)], [GONE, *HOSTILE]):
        body = copy.deepcopy(whole)
        holder: Any = body
        for name in place[:-1]:
            holder = holder[name]
        if value is not GONE:
            holder[place[-1]] = value
        elif place[-1] in holder or isinstance(place[-1], int):
            del holder[place[-1]]
        yield f"{place} is {repr(value)[:50]}", sealed(kind, body)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "podlift")


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """A store with two checkpoints, a pin and the opening of a second attempt."""
    store = MemoryStore({})
    attempt = Attempt(store, 1)
    for step in (1, 2):
        small = Contents((Array("w", "uint8", (9,), lambda: memoryview(bytes(9))),), {"rng": b"1"})
        saved = attempt.savers[0].save(small, step=step, metrics={"loss": -0.5}, position={"at": {}})
        assert saved is not None
        catalog.pin(store, saved.wait(20).key, "best")
    attempt.close()
    opening.open_first(store, 2, "attempt 2", CLOCK)
    return store.objects


def newest_commit(objects: dict[str, bytes]) -> str:
    return max(key for key in objects if key.startswith(names.COMMITS))


def show(found: list[catalog.CheckpointInfo]) -> None:
    """Print a list as the command line does."""
    str(found).encode()
    for info in found:
        datetime.datetime.fromtimestamp(info.created_at or 0.0)
        "".join([info.quarantined or "", info.reason or "", *info.downgrades, *info.metrics]).encode()


# Every seventh are some at each place, with other values at each.
@pytest.mark.parametrize("each", [7, full_only(1)])
def test_with_any_manifest_the_newest_good_checkpoint_is_found_and_all_are_listed(objects, each: int) -> None:
    commit = newest_commit(objects)
    for what, data in itertools.islice(mutants("manifest", objects[commit]), 0, None, each):
        store = MemoryStore({**objects, commit: data})
        try:
            found = restore.newest(store)
        except FutureFormatError:
            assert "format_version" in what
            show(catalog.list_checkpoints(store))
            continue
        assert found is not None
        older, newer = listed = catalog.list_checkpoints(store)
        show(listed)
        assert found.manifest.step == (older.step if newer.quarantined else newer.step), what
        collect(store, 99)
        assert all(file.key in store.objects for file in found.manifest.files), what


def test_whatever_a_lease_holds_the_next_epoch_is_a_new_one_and_its_holder_may_write(objects: dict[str, bytes]) -> None:
    for what, data in mutants("lease", objects[names.LEASE]):
        store = MemoryStore({**objects, names.LEASE: data})
        try:
            with pytest.raises(FencedError):
                opening.check_lease(store, opening.Lease(epoch=1, nonce="another", holder="", taken_at=0.0))
        except REFUSED:
            pass
        try:
            lease = opening.take(store, "next", CLOCK)
        except FutureFormatError:
            assert "format_version" in what
            continue
        assert lease.epoch > 1, what
        opening.check_lease(store, lease)


def test_with_any_opening_joining_tasks_get_a_right_one_or_an_error(objects: dict[str, bytes]) -> None:
    key = names.opening(2)
    for what, data in mutants("opening", objects[key]):
        try:
            found = opening.join(MemoryStore({**objects, key: data}), 2, CLOCK, 0)
        except REFUSED:
            continue
        assert found.attempt == 2, what
        assert found.epoch > 0, what
        names.folder(CheckpointId(found.epoch, 1, 0), found.nonce)


def test_whatever_a_note_or_a_pin_holds_checkpoints_are_listed_or_the_pin_is_refused(objects: dict[str, bytes]) -> None:
    restore.put_note(marked := MemoryStore(dict(objects)), newest_commit(objects), "a reason")
    note, pin = names.note(newest_commit(objects)), names.pin("best")
    for what, data in mutants("note", marked.objects[note]):
        listed = catalog.list_checkpoints(store := MemoryStore({**objects, note: data}))
        show(listed)
        assert listed[1].quarantined, what
        found = restore.newest(store)
        assert found is not None
        assert found.manifest.step == 1, what
    for _, data in mutants("pin", objects[pin]):
        try:
            show(catalog.list_checkpoints(MemoryStore({**objects, pin: data})))
        except REFUSED:
            continue


def test_whatever_a_receipt_holds_it_is_read_or_refused() -> None:
    place = CheckpointId(1, 2, 0)
    folder = names.folder(place, "ab")
    with ThreadPoolExecutor(1) as pool:
        written = write(MemoryStore({}), pool, Contents((), {"rng": b"1"}), folder, 1, 1024)
    for what, data in mutants("receipt", encode_receipt(place, "ab", 1, written)):
        try:
            found = decode_receipt(data, place, "ab", 1)
        except REFUSED:
            continue
        assert all(file.rank == 1 for file in found.files), what


STAGE = {"kind": "fit", "signature": "s", "steps": 1}


CHANGES = [{"steps": "1"}, {"commit": "../LEASE.json"}, {"commit": 1}]
CHANGES += [{"history": {"not finite": 10**400}}, {"history": {"not finite": []}}]
POSITIONS = [None, [], {"at": {}}, {"stages": [STAGE]}, {"stages": [STAGE], "at": None}, {"stages": [{}], "at": {}}]
POSITIONS += [{"stages": [{**STAGE, **change}], "at": {}} for change in CHANGES]


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: str(position)[:40])
def test_a_position_that_no_training_wrote_is_an_error_that_names_the_checkpoint(tmp_path: Any, position: Any) -> None:
    attempt = Attempt(PosixStore(tmp_path))
    saved = attempt.savers[0].save(Contents(), step=1, position=position)
    assert saved is not None
    key = saved.wait(20).key
    attempt.close()
    with pytest.raises(CorruptCheckpointError, match=f"position in '{key}' was not written by a training"):
        manager(tmp_path).begin("fit", "s")
