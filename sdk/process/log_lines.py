"""Reads the log files of a run's tasks as lines of text, in the order of time."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from ..errors import InputError, nearest
from ..job.plan import Plan
from ..records.recorder import has_ended
from ..storage import posix
from ..text import html_lines
from .log_index import LogIndex
from .log_tail import LogTail

_POLL_S = 0.1
# The supervisor is checked less often, because that reads all records and inspects a process.
_POLLS_PER_CHECK = 5


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of one task.

    Args:
        task: the task's name.
        attempt: counts from 1.
        text: the printed text, without its end.
        end: "\\n"; "\\r" if the next line overwrites it, as progress bars do; "" for an unterminated last line and for parts of
            a very long line.
        time: Unix time in seconds at which the line existed at the latest, if known.
    """

    task: str
    attempt: int
    text: str
    end: str = "\n"
    time: float | None = field(default=None, compare=False)

    def _repr_html_(self) -> str:
        return html_lines(f"{self.task}: {self.text}")


def read(
    plan: Plan, *, task: str | None, attempt: int | None, follow: bool, supervised: Callable[[], bool]
) -> Iterator[LogLine]:
    """Yield the lines of one task or all, of one attempt or all.

    They come attempt by attempt, and within an attempt in the order of their writing, up to the last entry of the log index.
    Later lines come task by task. With `follow`, reading ends with the run, or once `supervised` returns False.
    """
    if task is not None and task not in plan.tasks:
        raise InputError(f"The run has no task {task!r}. {nearest(task, plan.tasks)}")
    tasks = [task] if task else plan.tasks
    return _read(plan, tasks, attempt, supervised if follow else None)


def _read(
    plan: Plan, tasks: list[str], attempt: int | None, supervised: Callable[[], bool] | None
) -> Iterator[LogLine]:
    logs: _AttemptLogs | None = None
    try:
        for poll in count():
            # Checked before reading, so that everything written before the end is read.
            over = supervised is None or has_ended(plan.paths) or (poll % _POLLS_PER_CHECK == 0 and not supervised())
            numbers = _attempts(plan)
            for number in numbers:
                # Earlier attempts were read to their end: an attempt does not grow once the next one has begun.
                if attempt not in (None, number) or (logs is not None and number < logs.number):
                    continue
                if logs is None or logs.number < number:
                    if logs is not None:
                        logs.close()
                    logs = _AttemptLogs(plan, number, tasks)
                yield from logs.lines(last=over or number < numbers[-1])
            if over or (attempt is not None and numbers and attempt < numbers[-1]):
                return
            time.sleep(_POLL_S)
    finally:
        if logs is not None:
            logs.close()


def _attempts(plan: Plan) -> list[int]:
    folder = str(Path(plan.paths.attempt(1)).parent)
    return sorted(int(name) for name in posix.list_names(folder) if name.isdecimal())


class _AttemptLogs:
    def __init__(self, plan: Plan, number: int, tasks: list[str]) -> None:
        self.number = number
        self._index = LogIndex(plan.paths.log_times(number))
        self._tails = {task: LogTail(plan.paths.log(number, task), self._index.of(task)) for task in tasks}

    def lines(self, *, last: bool) -> Iterator[LogLine]:
        self._index.refresh()
        streams = [self._stream(task, last) for task in self._tails]
        for when, task, lines in heapq.merge(*streams, key=lambda batch: batch[0]):
            at = None if when == math.inf else when
            for text, end in lines:
                yield LogLine(task=task, attempt=self.number, text=text, end=end, time=at)

    def _stream(self, task: str, last: bool) -> Iterator[tuple[float, str, list[tuple[str, str]]]]:
        for when, lines in self._tails[task].batches(last=last):
            yield when, task, lines

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
