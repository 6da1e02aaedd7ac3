"""Measures one thing, or several in turn, compared pair by pair: the machine's speed drifts, a pair's does not."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: wall clock, and CPU of the process and of all its children that were waited for."""

    wall_s: float
    cpu_s: float


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
