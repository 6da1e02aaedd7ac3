"""Reads the log files of a run's tasks: raw bytes on disk, lines of text to whoever asks, in the order of time."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...errors import InputError, nearest
from ...process.log_index import Stamps
from ...process.log_tail import Tail
from ...records.recorder import has_ended
from ...spec.plan import Plan
from ...storage import posix
from ..base import LogLine

_POLL_S = 0.1
# Whether anybody can still write is asked less often: the answer takes a look at all records and at a process.
_POLLS_PER_QUESTION = 5


def read(
    plan: Plan, *, task: str | None, attempt: int | None, follow: bool, supervised: Callable[[], bool]
) -> Iterator[LogLine]:
    """Yield the lines of one task or all, of one attempt or all.

    Attempt by attempt, and within each in the order in which the lines were written, as far as the supervisor has noted it.
    What was written since its last look comes task by task.

    Args:
        plan: the run.
        task: a task's name, None for all.
        attempt: counts from 1, None for all.
        follow: go on until the run has ended.
        supervised: False once nobody can write any more.

    Raises:
        InputError: the run has no such task.
    """
    if task is not None and task not in plan.tasks:
        raise InputError(f"The run has no task {task!r}. {nearest(task, plan.tasks)}")
    tasks = [task] if task else plan.tasks
    return _follow(plan, tasks, attempt, supervised) if follow else _read(plan, tasks, attempt)


def _read(plan: Plan, tasks: list[str], wanted: int | None) -> Iterator[LogLine]:
    for number in _attempts(plan):
        if wanted in (None, number):
            logs = _Attempt(plan, number, tasks)
            try:
                yield from logs.lines(last=True)
            finally:
                logs.close()


def _follow(plan: Plan, tasks: list[str], wanted: int | None, supervised: Callable[[], bool]) -> Iterator[LogLine]:
    logs: _Attempt | None = None
    try:
        for poll in _polls():
            # Asked before reading: what was written before the end is read below in any case.
            over = has_ended(plan.paths) or (poll % _POLLS_PER_QUESTION == 0 and not supervised())
            known = _attempts(plan)
            for number in known:
                # Those before it are read to their end: nothing is added to an attempt when the next one has begun.
                if wanted not in (None, number) or (logs is not None and number < logs.number):
                    continue
                if logs is None or logs.number < number:
                    if logs is not None:
                        logs.close()
                    logs = _Attempt(plan, number, tasks)
                yield from logs.lines(last=over or number < known[-1])
            if over or (wanted is not None and known and wanted < known[-1]):
                return
    finally:
        if logs is not None:
            logs.close()


def _polls() -> Iterator[int]:
    poll = 0
    while True:
        yield poll
        poll += 1
        time.sleep(_POLL_S)


def _attempts(plan: Plan) -> list[int]:
    folder = str(Path(plan.paths.attempt(1)).parent)
    return sorted(int(name) for name in posix.list_names(folder) if name.isdigit())


class _Attempt:
    """The logs of one attempt."""

    def __init__(self, plan: Plan, number: int, tasks: list[str]) -> None:
        self.number = number
        self._stamps = Stamps(plan.paths.log_times(number))
        self._tails = {task: Tail(plan.paths.log(number, task), task, self._stamps) for task in tasks}

    def lines(self, *, last: bool) -> Iterator[LogLine]:
        """Yield what was not read yet."""
        self._stamps.refresh()
        streams = [self._stream(task, last) for task in self._tails]
        for when, task, found in heapq.merge(*streams, key=lambda batch: batch[0]):
            at = None if when == math.inf else when
            for text, end in found:
                yield LogLine(task=task, attempt=self.number, text=text, end=end, time=at)

    def _stream(self, task: str, last: bool) -> Iterator[tuple[float, str, list[tuple[str, str]]]]:
        for when, found in self._tails[task].batches(last=last):
            yield when, task, found

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
