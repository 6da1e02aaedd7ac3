"""The last output of tasks in the run's directory, which is read when the service has no logs any more."""

from __future__ import annotations

import heapq
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import MissingError
from ...process.log_tail import LineSplitter
from ...records.sync.index import SYNC_RETRY
from ...storage.gcs.files import BucketFiles
from ..base import LogLine
from .create_job import KEYS

if TYPE_CHECKING:
    from ...storage.gcs.requests import ObjectInfo


def lines(run_url: str, attempts: Sequence[int], tasks: Sequence[str]) -> Iterator[LogLine]:
    """Yield the kept lines, attempt by attempt, in the order in which their parts were uploaded."""
    files = BucketFiles(run_url, retry=SYNC_RETRY)
    for attempt in attempts:
        parts: dict[str, list[ObjectInfo]] = {}
        for part in files.list(f"{posixpath.dirname(KEYS.tail(attempt, ''))}/"):
            parts.setdefault(posixpath.dirname(part.name), []).append(part)
        wanted = ((task, parts.get(KEYS.tail(attempt, task), [])) for task in tasks)
        each = (_lines(files, attempt, task, found) for task, found in wanted if found)
        yield from heapq.merge(*each, key=lambda line: line.time or 0.0)


def _lines(files: BucketFiles, attempt: int, task: str, parts: Sequence[ObjectInfo]) -> Iterator[LogLine]:
    splitter, time = LineSplitter(), 0.0
    for part in sorted(parts, key=lambda each: each.name):
        # A task that still runs may have removed it.
        with suppress(MissingError):
            data = bytes(files.read(part.name))
            time = part.created
            for text, end in splitter.feed(data):
                yield LogLine(task=task, attempt=attempt, text=text, end=end, time=time)
    for text, end in splitter.finish():
        yield LogLine(task=task, attempt=attempt, text=text, end=end, time=time)
