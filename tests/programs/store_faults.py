"""A store with injected faults: it fails, corrupts bytes, or kills its process at a named point.

Usage: `FaultyStore(store, StoreFault("put_new", "commits/", do="lose"))`; for another process,
`StoreFault.parse("kill before put_new commits/ 2")`
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sdk.errors import InputError, StoreError
from sdk.storage.store import Buffer, Stat, Store

Op = Literal["put_new", "get", "list", "stat", "delete", "swap"]
_ACTS = ("kill", "interrupt", "fail", "lose", "flip", "cut")


@dataclass(kw_only=True)
class _Counter:
    calls: int = 0


@dataclass(frozen=True)
class StoreFault:
    """One fault.

    Args:
        op: the store's method.
        match: a regular expression searched in the key.
        do: "fail": raise instead of the call; "lose": raise after the call; "kill": SIGKILL to this process; "interrupt":
            KeyboardInterrupt; "flip" and "cut": write or read corrupted bytes, with one bit flipped or half of them missing;
            a function: it is called.
        when: "before" or "after" the call, for "kill", "interrupt" and functions.
        nth: the first matching call that is affected.
        times: the number of affected calls, starting there.
        error: what "fail" and "lose" raise.
    """

    op: Op
    match: str = ""
    do: str | Callable[[], object] = "fail"
    when: Literal["before", "after"] = "before"
    nth: int = 1
    times: int = 1
    error: Exception = field(default_factory=lambda: StoreError("The store does not answer (injected)."))
    _counter: _Counter = field(default_factory=_Counter)

    def __post_init__(self) -> None:
        if not callable(self.do) and self.do not in _ACTS:
            raise InputError(f"Unknown fault. Received: {self.do!r}. Known: {', '.join(_ACTS)}.")

    @classmethod
    def parse(cls, words: str) -> StoreFault:
        """Parse "DO WHEN OP MATCH NTH", from a command line."""
        do, when, op, match, nth = words.split(" ")
        return cls(op, match, do, when, int(nth))

    def happens(self, op: str, key: str) -> bool:
        """Count a call; true if it is affected."""
        if op != self.op or not re.search(self.match, key):
            return False
        self._counter.calls += 1
        return self.nth <= self._counter.calls < self.nth + self.times

    @property
    def happened(self) -> bool:
        return self._counter.calls >= self.nth


class FaultyStore:
    """A store that passes calls to another one, with faults."""

    def __init__(self, inner: Store, *faults: StoreFault) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def url(self) -> str:
        return self._inner.url

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        # Corrupted bytes get the crc that a server would compute.
        return self._writing(
            "put_new", key, data, lambda sent: self._inner.put_new(key, sent, crc=crc if sent is data else None)
        )

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        return self._writing("swap", key, data, lambda sent: self._inner.swap(key, sent, expected=expected))

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        found, fault = self._call("get", key, lambda: self._inner.get(key, generation=generation, into=into))
        if fault and fault.do in ("flip", "cut"):
            corrupted = _corrupted(fault.do, [found])[0]
            if into is None:
                return corrupted
            into[: len(corrupted)] = corrupted
        return found

    def list(self, prefix: str) -> Iterator[Stat]:
        found, _ = self._call("list", prefix, lambda: list(self._inner.list(prefix)))
        yield from found

    def stat(self, key: str) -> Stat:
        return self._call("stat", key, lambda: self._inner.stat(key))[0]

    def delete(self, key: str, *, generation: str | None = None) -> None:
        self._call("delete", key, lambda: self._inner.delete(key, generation=generation))

    def set_deadline(self, within_s: float) -> None:
        self._inner.set_deadline(within_s)

    def _writing(self, op: str, key: str, data: Sequence[Buffer], write: Callable[[Sequence[Buffer]], Any]) -> Any:
        fault = self._next(op, key)
        if fault and fault.do in ("flip", "cut"):
            data = _corrupted(fault.do, data)
        return _apply(fault, lambda: write(data))

    def _call(self, op: str, key: str, call: Callable[[], Any]) -> tuple[Any, StoreFault | None]:
        fault = self._next(op, key)
        return _apply(fault, call), fault

    def _next(self, op: str, key: str) -> StoreFault | None:
        # Every fault must count every call.
        return next(iter([fault for fault in self._faults if fault.happens(op, key)]), None)


def _apply(fault: StoreFault | None, call: Callable[[], Any]) -> Any:
    if fault is None or fault.do in ("flip", "cut"):
        return call()
    if fault.do == "fail":
        raise fault.error
    if fault.do == "lose":
        call()
        raise fault.error
    if fault.when == "before":
        _strike(fault.do)
    done = call()
    if fault.when == "after":
        _strike(fault.do)
    return done


def _strike(act: str | Callable[[], object]) -> None:
    if callable(act):
        act()
        return
    if act == "interrupt":
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGKILL)


def _corrupted(act: object, data: Sequence[Buffer]) -> list[Buffer]:
    whole = bytearray(b"".join(data))
    if act == "cut":
        del whole[len(whole) // 2 :]
    elif whole:
        whole[len(whole) // 2] ^= 1
    return [whole]


def kill_at(point: str, nth: int = 1) -> Callable[[str], None]:
    """Return a callback for `PosixStore(path, at=...)` that kills this process when a write reaches this point."""
    counter = _Counter()

    def at(passed: str) -> None:
        counter.calls += passed == point
        if passed == point and counter.calls == nth:
            _strike("kill")

    return at
