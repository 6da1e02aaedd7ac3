"""Measures one thing, or several in turn, compared pair by pair: the machine's speed drifts, a pair's does not."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: wall clock, and CPU of the process and of all its children that were waited for."""

    wall_s: float
    cpu_s: float


@dataclass
class Peak:
    """The largest memory of some processes together, in MB."""

    memory_mb: float = 0.0


@contextmanager
def peak_memory(pids: Callable[[], Collection[int]], every_s: float = 0.5) -> Iterator[Peak]:
    """Look at the memory of processes meanwhile: shared pages count by the share of each (PSS)."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.wait(every_s):
            peak.memory_mb = max(peak.memory_mb, sum(map(_memory_mb, pids())))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield peak
    finally:
        over.set()
        looking.join()


def descendants_of(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that they have started, and so on."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                # The name, in brackets, may hold spaces.
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while new := {each for each, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


def _memory_mb(pid: int) -> float:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return 0.0


def command(words: Sequence[str], env: dict[str, str] | None = None, cwd: str | None = None) -> Cost:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    started = time.perf_counter()
    process = subprocess.Popen(list(words), env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started
    if process.returncode != 0:
        raise RuntimeError(
            f"{' '.join(words)} ended with {process.returncode}:\n{output[-2000:].decode(errors='replace')}"
        )
    return Cost(wall_s, usage.ru_utime + usage.ru_stime)


def seconds(count: int, work: Callable[[], object]) -> float:
    """Do something once to warm up, then `count` times; return the median of its wall clock."""
    work()
    found = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def pairs(count: int, *things: Callable[[], Cost]) -> list[list[Cost]]:
    """Run every thing once to warm up, then all of them in turn, `count` times; return the costs of each thing."""
    for thing in things:
        thing()
    rounds = [[thing() for thing in things] for _ in range(count)]
    return [list(costs) for costs in zip(*rounds, strict=True)]


def median(costs: Sequence[Cost], field: str) -> float:
    """Return the median of "wall_s" or "cpu_s"."""
    return statistics.median(getattr(cost, field) for cost in costs)


def ratio(ours: Sequence[Cost], theirs: Sequence[Cost], field: str) -> float:
    """Return the median of the ratios, pair by pair."""
    return statistics.median(getattr(a, field) / getattr(b, field) for a, b in zip(ours, theirs, strict=True))
