"""Contract tests for every store. Needs pytest.

Usage: `class TestMine(StoreContract):` with a fixture `store` that returns an empty one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sdk.errors import AlreadyExistsError, ConflictError, InputError, MissingError
from sdk.storage.checksums import crc32c
from sdk.storage.store import Buffer, Store

_RACERS = 24
_ODD = ["a b", "häß", "日本", "q?x", "h#x", "p%41", "plus+", "a=b", "quote'\"", "back\\slash", "~tilde", "[x]*"]


class StoreContract:
    """Inherit, and define a fixture `store`: an empty store, a new one for each test."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("define a fixture that returns an empty store")

    def test_an_object_comes_back_as_it_was_put(self, store: Store) -> None:
        parts: list[Buffer] = [b"abc", bytearray(b"de"), memoryview(b"-f-")[1:2], b"", memoryview(bytearray(3 << 20))]
        whole = b"".join(parts)
        put = store.put_new("folder/x.bin", parts)
        assert (put.key, put.size, put.crc32c) == ("folder/x.bin", len(whole), crc32c([whole]))
        assert store.stat("folder/x.bin") == put
        assert bytes(store.get("folder/x.bin")) == whole
        assert bytes(store.get("folder/x.bin", generation=put.generation)) == whole
        again = store.put_new("with its crc", parts, crc=put.crc32c)
        assert again == store.stat("with its crc")
        assert (bytes(store.get("with its crc")), again.crc32c) == (whole, put.crc32c)

    def test_an_object_may_be_empty_or_of_many_small_parts(self, store: Store) -> None:
        for key, parts in {"none": [], "empty": [b""], "many": [bytes([i % 251]) for i in range(5000)]}.items():
            assert store.put_new(key, parts).size == len(b"".join(parts))
            assert bytes(store.get(key)) == b"".join(parts)

    def test_bytes_are_read_into_the_memory_of_the_caller(self, store: Store) -> None:
        store.put_new("x", [b"0123456789"])
        memory = memoryview(bytearray(12))
        store.get("x", into=memory[1:11])
        assert bytes(memory) == b"\x000123456789\x00"

    def test_an_existing_object_is_not_written_again(self, store: Store) -> None:
        put = store.put_new("x", [b"first"])
        with pytest.raises(AlreadyExistsError, match="'x'"):
            store.put_new("x", [b"second"])
        assert (bytes(store.get("x")), store.stat("x")) == (b"first", put)

    def test_a_missing_object_is_reported_as_missing(self, store: Store) -> None:
        store.put_new("folder/x", [b""])
        calls: list[Callable[[str], Any]] = [store.get, store.stat, store.delete]
        for call in calls:
            for key in ("no", "folder", "folder/x/y", "folder/no"):
                with pytest.raises(MissingError):
                    call(key)
        with pytest.raises(MissingError):
            store.swap("no", [b""], expected="1")

    def test_names_are_listed_by_prefix_and_in_order(self, store: Store) -> None:
        assert list(store.list("")) == []
        for key in ("b", "a/2", "a/1", "a/10", "ab", "a/deep/er/x"):
            store.put_new(key, [key.encode()])
        keys = [stat.key for stat in store.list("")]
        assert keys == sorted(["b", "a/2", "a/1", "a/10", "ab", "a/deep/er/x"])
        assert [stat.key for stat in store.list("a/")] == ["a/1", "a/10", "a/2", "a/deep/er/x"]
        assert [stat.key for stat in store.list("a/1")] == ["a/1", "a/10"]
        assert [stat.key for stat in store.list("a/d")] == ["a/deep/er/x"]
        assert list(store.list("none/")) == list(store.list("none")) == []
        assert [store.stat(stat.key) for stat in store.list("")] == list(store.list(""))

    def test_more_than_a_page_of_names_is_listed(self, store: Store) -> None:
        keys = [f"commits/{number:06d}" for number in range(1100)]
        for key in keys:
            store.put_new(key, [b""])
        assert [stat.key for stat in store.list("commits/")] == keys

    @pytest.mark.parametrize("name", _ODD)
    def test_a_name_may_hold_special_characters_of_urls_and_shells(self, store: Store, name: str) -> None:
        store.put_new(f"odd/{name}/x", [name.encode()])
        assert [stat.key for stat in store.list("odd/")] == [f"odd/{name}/x"]
        assert bytes(store.get(f"odd/{name}/x")) == name.encode()
        store.delete(f"odd/{name}/x")
        assert list(store.list("")) == []

    @pytest.mark.parametrize(
        "key", ["", "/x", "x/", "a//b", "../x", "a/./b", ".hidden", "new\nline", "nul\0", "x" * 201]
    )
    def test_an_invalid_name_is_rejected(self, store: Store, key: str) -> None:
        with pytest.raises(InputError, match="Invalid name of an object"):
            store.put_new(key, [b""])

    def test_a_generation_distinguishes_objects_of_the_same_name(self, store: Store) -> None:
        first = store.put_new("x", [b"same"])
        store.delete("x", generation=first.generation)
        second = store.put_new("x", [b"same"])
        assert first.generation != second.generation
        with pytest.raises(ConflictError):
            store.get("x", generation=first.generation)
        with pytest.raises(ConflictError):
            store.delete("x", generation=first.generation)
        assert bytes(store.get("x", generation=second.generation)) == b"same"

    def test_a_swap_needs_the_current_generation(self, store: Store) -> None:
        first = store.swap("x", [b"1"], expected=None)
        with pytest.raises(ConflictError):
            store.swap("x", [b"no"], expected=None)
        second = store.swap("x", [b"2"], expected=first.generation)
        with pytest.raises(ConflictError):
            store.swap("x", [b"no"], expected=first.generation)
        assert bytes(store.get("x", generation=second.generation)) == b"2"
        assert [stat.key for stat in store.list("")] == ["x"]

    def test_one_of_many_creators_wins(self, store: Store) -> None:
        won = _race(lambda number: store.put_new("x", [bytes([number])]), AlreadyExistsError)
        assert [bytes([number]) for number in won] == [bytes(store.get("x"))]

    def test_no_acknowledged_swap_is_lost(self, store: Store) -> None:
        store.swap("count", [b"0"], expected=None)

        def count(_: int) -> None:
            for _ in range(5):
                while True:
                    stat = store.stat("count")
                    try:
                        value = int(bytes(store.get("count", generation=stat.generation)))
                        store.swap("count", [str(value + 1).encode()], expected=stat.generation)
                        break
                    except ConflictError:
                        continue

        assert len(_race(count, MissingError, racers=4)) == 4
        assert bytes(store.get("count")) == b"20"

    def test_calls_succeed_before_the_deadline(self, store: Store) -> None:
        first = store.put_new("x", [b"first"])
        store.set_deadline(120.0)
        store.set_deadline(60.0)
        second = store.swap("x", [b"second"], expected=first.generation)
        assert bytes(store.get("x")) == b"second"
        assert list(store.list("")) == [store.stat("x")] == [second]
        store.delete("x", generation=second.generation)
        assert list(store.list("")) == []


def _race(call: Callable[[int], Any], lost: type[Exception], racers: int = _RACERS) -> list[int]:
    """Call from many threads at once; return the numbers of the calls that did not raise `lost`."""
    won: list[int] = []
    start = threading.Barrier(racers)

    def racer(number: int) -> None:
        start.wait()
        try:
            call(number)
        except lost:
            return
        won.append(number)

    threads = [threading.Thread(target=racer, args=[number]) for number in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won
