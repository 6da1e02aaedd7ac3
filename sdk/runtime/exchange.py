"""Adds up arrays of tasks that share a machine, through a file that all of them map into memory.

Every task owns one part of the file and writes only there, so nothing is locked: a task writes its numbers, raises its counter
and waits for the counters of the others. All tasks have to make the same calls in the same order.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Per task, in front of the numbers: its counter, its process and what it exchanges, each task in a cache line of its own.
_HEAD_BYTES = 64
_COUNTER, _PID, _LENGTH, _TYPE = range(4)  # int32 each; the length has two more
_PART_BYTES, _ALL_BYTES = 4_000_000, 64_000_000
_TYPES = ("float32", "float64", "int32", "int64")
# Steps of tasks end within a fraction of a millisecond of each other, and a sleeping process wakes up later than that.
_SPIN_S = 0.0002
_LOOK_S = 0.2
_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1


class ExchangeError(ConnectionError):
    """Another task is gone, or does something else."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def is_possible() -> bool:
    return sys.platform == "linux" and platform.machine() in _FUTEX


def create(path: str, count: int) -> None:
    """Create the file for that many tasks."""
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, _size(count))


def _part(count: int) -> int:
    """Return how many bytes a task exchanges at once."""
    return min(_PART_BYTES, _ALL_BYTES // (count + 1)) // 64 * 64


def _size(count: int) -> int:
    return count * _HEAD_BYTES + (count + 1) * _part(count)


class Exchange:
    """One task's side. `rank` is the task's number among `count`, from 0."""

    def __init__(self, path: str, rank: int, count: int) -> None:
        import numpy as np

        self._np, self._rank, self._count = np, rank, count
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _size(count))
        self._heads = np.frombuffer(self._map, "int32", count * _HEAD_BYTES // 4).reshape(count, -1)
        size = _part(count)
        areas = np.frombuffer(self._map, "uint8", offset=count * _HEAD_BYTES).reshape(count + 1, size)
        self._areas = {name: areas.view(name) for name in _TYPES}
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._number = _FUTEX[platform.machine()]
        self._lock = threading.Lock()
        self._turn = 0
        self._aborted = ""
        self._heads[rank, _PID] = os.getpid()

    def abort(self, why: str) -> None:
        """Let every call fail, also one that waits in another thread."""
        self._aborted = why

    def add(self, values: Any) -> Any:
        """Return the sum of all tasks' arrays of this shape. All tasks get the same bits."""
        np, count, rank = self._np, self._count, self._rank
        given = np.ascontiguousarray(values).reshape(-1)
        found, areas = np.empty_like(given), self._areas[given.dtype.name]
        most, result = areas.shape[1], areas[count]
        with self._lock:
            for begin in range(0, given.size, most):
                size = min(most, given.size - begin)
                self._post(given, begin, size)
                mine = slice(size * rank // count, size * (rank + 1) // count)
                np.add(areas[0, mine], areas[1, mine], out=result[mine])
                for other in range(2, count):
                    np.add(result[mine], areas[other, mine], out=result[mine])
                self._meet()
                found[begin : begin + size] = result[:size]
        return found.reshape(values.shape)

    def gather(self, values: Any) -> Any:
        """Return all tasks' arrays, joined along their first axis; all have the same shape."""
        np, count = self._np, self._count
        given = np.ascontiguousarray(values).reshape(-1)
        found, areas = np.empty((count, given.size), given.dtype), self._areas[given.dtype.name]
        most = areas.shape[1]
        with self._lock:
            for begin in range(0, given.size, most):
                size = min(most, given.size - begin)
                self._post(given, begin, size)
                found[:, begin : begin + size] = areas[:count, :size]
                self._meet()
        return found.reshape((count * values.shape[0], *values.shape[1:]))

    def _post(self, given: Any, begin: int, size: int) -> None:
        """Show the others a part of the numbers, and wait for theirs."""
        head = self._heads[self._rank]
        self._areas[given.dtype.name][self._rank, :size] = given[begin : begin + size]
        head[_LENGTH], head[_TYPE] = given.size - begin & 0x7FFFFFFF, _TYPES.index(given.dtype.name)
        self._meet()
        if (self._heads[:, _LENGTH : _TYPE + 1] != head[_LENGTH : _TYPE + 1]).any():
            shown = ", ".join(
                f"{length} of type {_TYPES[kind]}" for length, kind in self._heads[:, _LENGTH : _TYPE + 1]
            )
            raise ExchangeError(f"The tasks do not add up the same numbers. Received from them, in order: {shown}.")

    def _meet(self) -> None:
        """Wait until all tasks are here."""
        self._turn = (self._turn + 1) & 0x7FFFFFFF
        self._heads[self._rank, _COUNTER] = self._turn
        self._call(self._rank, _WAKE, 0x7FFFFFFF, None)
        for other in range(self._count):
            if other != self._rank:
                self._wait(other)

    def _wait(self, other: int) -> None:
        counters, begun = self._heads[:, _COUNTER], time.perf_counter()
        limit = _Timespec(0, int(_LOOK_S * 1e9))
        while True:
            seen = int(counters[other])
            if 0 <= ((seen - self._turn) & 0x7FFFFFFF) < 2:  # it may be one ahead
                return
            if time.perf_counter() - begun < _SPIN_S:
                time.sleep(0)
                continue
            self._call(other, _WAIT, seen, ctypes.byref(limit))
            if int(counters[other]) == seen:
                self._check(other)

    def _call(self, task: int, what: int, value: int, limit: Any) -> None:
        address = ctypes.c_void_p(self._address + task * _HEAD_BYTES + 4 * _COUNTER)
        self._syscall(self._number, address, what, ctypes.c_uint32(value & 0xFFFFFFFF), limit, None, 0)

    def _check(self, other: int) -> None:
        if self._aborted:
            raise ExchangeError(f"Collective ops are aborted: {self._aborted}")
        pid = int(self._heads[other, _PID])
        if pid and not _is_running(pid):
            raise ExchangeError(f"Collective ops are aborted: task {other} is gone, the peer is down.")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
