"""Reads the log files of a run's tasks: raw bytes on disk, lines of text to whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ...errors import InputError, nearest
from ...planner import Plan
from ...storage import posix
from ...storage.records import read_events
from ..base import LogLine

_POLL_S = 0.1


def read(
    plan: Plan, *, task: str | None, attempt: int | None, follow: bool, supervised: Callable[[], bool]
) -> Iterator[LogLine]:
    """Yield the lines of one task or all, of one attempt or all.

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
    return _lines(plan, [task] if task else plan.tasks, attempt, follow, supervised)


def _lines(
    plan: Plan, tasks: list[str], attempt: int | None, follow: bool, supervised: Callable[[], bool]
) -> Iterator[LogLine]:
    tails: dict[tuple[int, str], _Tail] = {}
    try:
        while True:
            # Asked before reading: what was written before the end is read below in any case.
            over = not follow or not supervised() or any(e.kind == "final" for e in read_events(plan.paths))
            for number in _attempts(plan, attempt):
                for task in tasks:
                    tail = tails.setdefault((number, task), _Tail(Path(plan.paths.log(number, task))))
                    for line in tail.lines(last=over):
                        yield LogLine(task=task, attempt=number, text=line)
            if over:
                return
            time.sleep(_POLL_S)
    finally:
        for tail in tails.values():
            tail.close()


def _attempts(plan: Plan, wanted: int | None) -> list[int]:
    folder = str(Path(plan.paths.attempt(1)).parent)
    found = [int(name) for name in posix.list_names(folder) if name.isdigit()]
    return [number for number in found if wanted in (None, number)]


class _Tail:
    """The part of a growing file that was not read yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest: list[bytes] = []  # pieces of a line: joining them at every read would be quadratic

    def lines(self, *, last: bool) -> Iterator[str]:
        if self._file is None:
            if not self._path.is_file():
                return
            self._file = self._path.open("rb")
        while chunk := self._file.read(1 << 20):
            first, *others = chunk.split(b"\n")
            self._rest.append(first)
            for start in others:
                yield b"".join(self._rest).decode("utf-8", "replace").rstrip("\r")
                self._rest = [start]
        if last and any(self._rest):
            yield b"".join(self._rest).decode("utf-8", "replace")
            self._rest = []

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
