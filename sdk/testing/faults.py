"""Faults on purpose: a store that fails, lies or kills its process at the named moment.

Usage: `FaultyStore(store, Fault("put_new", "commits/", do="lose"))`; for another process,
`Fault.parse("kill before put_new commits/ 2")`
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import InputError, StoreError
from ..storage.store import Buffer, Stat, Store

Op = Literal["put_new", "get", "list", "stat", "delete", "swap"]
_ACTS = ("kill", "interrupt", "fail", "lose", "flip", "cut")


@dataclass(kw_only=True)
class _Counter:
    calls: int = 0


@dataclass(frozen=True)
class StoreFault:
    """One thing that goes wrong.

    Args:
        op: the store's method.
        match: a regular expression that is searched in the key.
        do: "fail": it is not done, and raises; "lose": it is done, and raises; "kill": SIGKILL to this process; "interrupt":
            KeyboardInterrupt; "flip" and "cut": other bytes are written or read, one bit or half of them.
        when: "before" or "after" the call, for "kill" and "interrupt".
        nth: the first matching call that it happens to.
        times: how many calls it happens to, from there on.
        error: what is raised by "fail" and "lose".
    """

    op: Op
    match: str = ""
    do: str = "fail"
    when: Literal["before", "after"] = "before"
    nth: int = 1
    times: int = 1
    error: Exception = field(default_factory=lambda: StoreError("The store does not answer (injected)."))
    _counter: _Counter = field(default_factory=_Counter)

    def __post_init__(self) -> None:
        if self.do not in _ACTS:
            raise InputError(f"Unknown fault. Received: {self.do!r}. Known: {', '.join(_ACTS)}.")

    @classmethod
    def parse(cls, words: str) -> StoreFault:
        """Make one of "DO WHEN OP MATCH NTH", for another process."""
        do, when, op, match, nth = words.split(" ")
        return cls(op, match, do, when, int(nth))  # type: ignore[arg-type]

    def happens(self, op: str, key: str) -> bool:
        """Count a call; true if it goes wrong."""
        if op != self.op or not re.search(self.match, key):
            return False
        self._counter.calls += 1
        return self.nth <= self._counter.calls < self.nth + self.times

    @property
    def happened(self) -> bool:
        """True once it has happened."""
        return self._counter.calls >= self.nth


class FaultyStore:
    """A store in front of another one, with faults.

    Args:
        inner: the one that does the work.
        faults: what goes wrong.
    """

    def __init__(self, inner: Store, *faults: StoreFault) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def url(self) -> str:
        return self._inner.url

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        # Other bytes than the caller's get the crc that a server would find for them.
        return self._writing(  # type: ignore[no-any-return]
            "put_new", key, data, lambda sent: self._inner.put_new(key, sent, crc=crc if sent is data else None)
        )

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        return self._writing(  # type: ignore[no-any-return]
            "swap", key, data, lambda sent: self._inner.swap(key, sent, expected=expected)
        )

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        found, fault = self._call("get", key, lambda: self._inner.get(key, generation=generation, into=into))
        if fault and fault.do in ("flip", "cut"):
            spoiled = _spoil(fault.do, [found])[0]
            if into is None:
                return spoiled
            into[: len(spoiled)] = spoiled
        return found  # type: ignore[no-any-return]

    def list(self, prefix: str) -> Iterator[Stat]:
        found, _ = self._call("list", prefix, lambda: list(self._inner.list(prefix)))
        yield from found

    def stat(self, key: str) -> Stat:
        return self._call("stat", key, lambda: self._inner.stat(key))[0]  # type: ignore[no-any-return]

    def delete(self, key: str, *, generation: str | None = None) -> None:
        self._call("delete", key, lambda: self._inner.delete(key, generation=generation))

    def set_deadline(self, within_s: float) -> None:
        self._inner.set_deadline(within_s)

    def _writing(self, op: str, key: str, data: Sequence[Buffer], write: Callable[[Sequence[Buffer]], Any]) -> Any:
        fault = self._next(op, key)
        if fault and fault.do in ("flip", "cut"):
            data = _spoil(fault.do, data)
        return _through(fault, lambda: write(data))

    def _call(self, op: str, key: str, call: Callable[[], Any]) -> tuple[Any, StoreFault | None]:
        fault = self._next(op, key)
        return _through(fault, call), fault

    def _next(self, op: str, key: str) -> StoreFault | None:
        # Every fault counts every call.
        return next(iter([fault for fault in self._faults if fault.happens(op, key)]), None)


def _through(fault: StoreFault | None, call: Callable[[], Any]) -> Any:
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


def _strike(act: str) -> None:
    if act == "interrupt":
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGKILL)


def _spoil(act: str, data: Sequence[Buffer]) -> list[Buffer]:
    whole = bytearray(b"".join(data))
    if act == "cut":
        del whole[len(whole) // 2 :]
    elif whole:
        whole[len(whole) // 2] ^= 1
    return [whole]


def kill_at(moment: str, nth: int = 1) -> Callable[[str], None]:
    """Return what `PosixStore(path, at=...)` calls, to kill this process at the n-th time that a write is "linked", say."""
    counter = _Counter()

    def at(passed: str) -> None:
        counter.calls += passed == moment
        if passed == moment and counter.calls == nth:
            _strike("kill")

    return at
