"""Reads the lines of a job's tasks from Cloud Logging, page by page, and polls until no more can come.

Entries may arrive out of order. While a job runs, each poll therefore leaves out entries of the last few seconds and starts
some seconds before the last entry of the previous poll. Entries of earlier polls are recognized by their id.
"""

from __future__ import annotations

import heapq
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ....clock import Clock, SystemClock
from ....errors import AccessError, InputError, MissingError, PodliftError, StoreError, StoreUnavailableError, nearest
from ....process.log_tail import LineSplitter
from ....records.events import Event
from ....records.sync.index import SYNC_RETRY
from ....storage.gcs.files import BucketFiles
from ....storage.retry import Outage
from ...base import LogLine
from .. import service
from ..client import OutcomeUnknownError, VertexRejectedError, exchange, repeated, unix_time
from .create_job import KEYS
from .states import PODLIFT_PREFIX

if TYPE_CHECKING:
    from ....storage.gcs.requests import ObjectInfo

# The name under which Vertex AI itself logs.
SERVICE = "service"
_ADDRESS = "https://logging.googleapis.com"
_PAGE = 1000
# Lines and characters of a replica's last output in a verdict.
_LAST_LINES, _LAST_CHARACTERS = 30, 4000
_TIMEOUT_S, _SHORT_S = 30.0, 5.0
_RETRY_S = 60.0
# Times lose their last digits here: an entry of the same instant must not fall out of the next poll.
_ROUNDING_S = 1e-3
# The records from which the beginning of an attempt is known.
BEGINNINGS = ("attempt_started", "entry")

Query = Callable[[dict[str, object]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Polling:
    """How often to poll, and how long to wait for late entries."""

    poll_s: float = 5.0  # between polls: a project may send sixty requests per minute
    hold_s: float = 5.0  # younger entries are left for the next poll
    settle_s: float = 15.0  # entries may arrive this long after the end of a job


# An emulator keeps entries in order and has no quota.
DEFAULT_POLLING, EMULATED_POLLING = Polling(), Polling(poll_s=0.2, hold_s=0.0, settle_s=0.0)


def polling() -> Polling:
    return EMULATED_POLLING if service.stand_in() else DEFAULT_POLLING


def outage(clock: Clock) -> Outage:
    return Outage(clock, "The log cannot be read", "Its lines follow as soon as it can.")


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """One entry of the log. `error` if it was printed to stderr."""

    id: str
    time: float
    replica: str
    text: str
    error: bool = False


def entry_filter(
    job_id: str, replica: str | None = None, since: float | None = None, until: float | None = None
) -> str:
    """Return the filter for entries of a job, from `since` (inclusive) to `until` (exclusive)."""
    parts = ['resource.type="ml_job"', f'resource.labels.job_id="{job_id}"']
    parts += [f'resource.labels.task_name="{replica}"'] if replica else []
    parts += [f'timestamp>="{_timestamp(since)}"'] if since is not None else []
    parts += [f'timestamp<"{_timestamp(until)}"'] if until is not None else []
    return " AND ".join(parts)


def entries(
    query: Query, project: str, expression: str, *, page: int = _PAGE, newest_first: bool = False
) -> Iterator[LogEntry]:
    body: dict[str, object] = {
        "resourceNames": [f"projects/{project}"],
        "filter": expression,
        "orderBy": "timestamp desc" if newest_first else "timestamp asc",
        "pageSize": page,
    }
    while True:
        answer = query(body)
        yield from (_entry(item) for item in answer.get("entries", ()))
        token = answer.get("nextPageToken")
        if not token:
            return
        body = {**body, "pageToken": token}


class LogReader:
    """Reads a job's log, with times `ahead_s` ahead of this machine; the entries it yields have this machine's time."""

    def __init__(
        self, query: Query, project: str, job_id: str, *, polling: Polling, clock: Clock, ahead_s: float = 0.0
    ) -> None:
        self._query = query
        self._project = project
        self._job_id = job_id
        self._polling = polling
        self._clock = clock
        self._ahead_s = ahead_s
        self._times_by_id: dict[str, float] = {}
        self._last: float | None = None

    def read(self, replica: str | None, *, whole: bool = True) -> Iterator[LogEntry]:
        """Yield unread entries. `whole`: include recent ones, because older ones can no longer arrive."""
        hold_s = 0.0 if whole else self._polling.hold_s
        back_s = self._polling.hold_s + self._polling.settle_s + _ROUNDING_S
        since = None if self._last is None else self._last - back_s
        until = self._clock.now() - hold_s if hold_s else None
        expression = entry_filter(self._job_id, replica, self._translated(since), self._translated(until))
        for sent in entries(self._query, self._project, expression):
            entry = replace(sent, time=sent.time - self._ahead_s)
            if entry.id in self._times_by_id:
                continue
            self._times_by_id[entry.id] = entry.time
            self._last = max(entry.time, self._last or entry.time)
            yield entry
        if since is not None:
            self._times_by_id = {id: time for id, time in self._times_by_id.items() if time >= since}

    def _translated(self, time: float | None) -> float | None:
        return None if time is None else time + self._ahead_s

    def follow(self, replica: str | None, has_ended: Callable[[], tuple[bool, float]]) -> Iterator[LogEntry]:
        """Yield entries until no more arrive. `has_ended` returns whether the job has ended, and when."""
        seen_over: float | None = None
        ended, failed = 0.0, outage(self._clock)
        while True:
            fresh = False
            with failed.asking():
                # Checked before reading, so that everything written before the end is read.
                over, ended = has_ended()
                if over and seen_over is None:
                    seen_over = self._clock.now()
                for entry in self.read(replica, whole=over):
                    fresh = True
                    yield entry
            # `ended` is by the service's clock. If that is ahead of this machine's, do not wait for hours.
            settled = seen_over is not None and self._clock.now() >= min(ended, seen_over) + self._polling.settle_s
            if settled and not fresh and not failed.failures:
                return
            self._clock.sleep(max(self._polling.poll_s, failed.pause_s))


def lines(
    entries: Iterator[LogEntry], names: Mapping[str, str], attempt_at: Callable[[str, float], int], attempt: int | None
) -> Iterator[LogLine]:
    """Yield entries as lines of tasks. `attempt_at` returns the attempt of a task at a Unix time."""
    for entry in entries:
        task = names.get(SERVICE if _is_own_message(entry) else entry.replica)
        if task is None:
            continue
        number = attempt_at(task, entry.time)
        if attempt not in (None, number):
            continue
        for text, end in _split_lines(entry.text):
            yield LogLine(task=task, attempt=number, text=text, end=end, time=entry.time)


def attempt_at(beginnings: Sequence[Event], task: str, time: float) -> int:
    """Return the attempt to which a line of a task belongs by its Unix time; before the first one, that.

    The first container records that an attempt begins. Another one may have started its own task a moment before.
    """
    begin_times: dict[int, float] = {}
    for event in beginnings:
        if event.kind != "entry" or event.source == task:
            begin_times[event.attempt] = min(event.time, begin_times.get(event.attempt, event.time))
    return max((number for number, began in begin_times.items() if began <= time), default=min(begin_times, default=1))


def last_output(query: Query, project: str, job_id: str, replica: str) -> str:
    """Return the last output of a replica, starting with podlift's own last error message if there is one."""
    # Not from the beginning: a project may send sixty requests per minute, each for a thousand lines.
    newest = entries(query, project, entry_filter(job_id, replica), page=_LAST_LINES, newest_first=True)
    try:
        last = [*islice(newest, _LAST_LINES)][::-1]
    except PodliftError as error:
        return str(error)
    errors = [index for index, entry in enumerate(last) if entry.error and entry.text.startswith(PODLIFT_PREFIX)]
    text = "\n".join(entry.text.rstrip("\n") for entry in last[errors[-1] if errors else 0 :])
    return text[:_LAST_CHARACTERS] if errors else text[-_LAST_CHARACTERS:]


def of_service(project: str, job_id: str, clock: Clock, ahead_s: float) -> list[LogEntry]:
    """Return the first page of Vertex AI's log of a job. A service that does not answer is not waited for."""
    listed = entries(
        lambda body: query(body, clock, within_s=0.0, timeout_s=_SHORT_S), project, entry_filter(job_id, SERVICE)
    )
    return [replace(entry, time=entry.time - ahead_s) for entry in islice(listed, _PAGE)]


def replica_of(task: str | None, tasks: Sequence[str], names: Mapping[str, str]) -> str | None:
    if task is None or task == SERVICE:
        # podlift's own messages in a container are among the lines of its task.
        return None
    if task not in tasks:
        raise InputError(f"The run has no task {task!r}. {nearest(task, [*tasks, SERVICE])}")
    return next(replica for replica, name in names.items() if name == task)


def _is_own_message(entry: LogEntry) -> bool:
    """True for podlift's own messages in a container, except errors: they are not output of the program."""
    return entry.text.startswith(PODLIFT_PREFIX) and not entry.error


def _split_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of an entry and their ends. Progress bars overwrite themselves."""
    for line in text.removesuffix("\n").split("\n"):
        *over, last = line.split("\r")
        yield from ((part, "\r") for part in over)
        yield last, "\n"


def _entry(item: Mapping[str, Any]) -> LogEntry:
    payload = item.get("jsonPayload") or {}
    # Cloud Logging parses JSON that the program prints. Without a message field, it is serialized again.
    text = payload.get("message", json.dumps(payload)) if payload else item.get("textPayload", "")
    labels = (item.get("resource") or {}).get("labels") or {}
    time = unix_time(item.get("timestamp") or item.get("receiveTimestamp")) or 0.0
    replica = str(labels.get("task_name", ""))
    return LogEntry(
        # Without an id, all other fields identify the entry.
        id=str(item.get("insertId") or (time, replica, text)),
        time=time,
        replica=replica,
        text=str(text),
        error=str(item.get("severity", "")) in ("ERROR", "CRITICAL"),
    )


def _timestamp(time: float) -> str:
    return datetime.fromtimestamp(max(time, 0.0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def query(
    body: dict[str, object], clock: Clock | None = None, within_s: float = _RETRY_S, timeout_s: float | None = None
) -> Mapping[str, Any]:
    """Send one request, and repeat it for `within_s` seconds while the service is busy."""
    url = f"{service.url(_ADDRESS)}/v2/entries:list"
    send = partial(exchange, "POST", url, _object, timeout_s or _TIMEOUT_S, body=body, service="Cloud Logging")
    try:
        return repeated("", send, clock or SystemClock(), within_s, service="Cloud Logging")
    except VertexRejectedError as error:
        if "Next: " in str(error):
            raise AccessError(f"The logs cannot be read: {error}") from error
        problem = f"{error.status} {error}".rstrip(". ")
        if error.status in (401, 403):
            raise AccessError(
                f"The logs cannot be read without roles/logging.viewer on the project: {problem}"
            ) from error
        raise StoreError(f"The logs cannot be read: {problem}. Next: try again.") from error
    except OutcomeUnknownError as error:
        problem = str(error).partition(" Next:")[0].rstrip(".")
        raise StoreUnavailableError(f"The logs cannot be read: {problem}. Next: try again.") from error


def _object(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict):
        raise ValueError("it is no object")
    return answer


def kept_lines(run_url: str, attempts: Sequence[int], tasks: Sequence[str]) -> Iterator[LogLine]:
    """Yield the kept lines, attempt by attempt, in the order in which their parts were uploaded."""
    files = BucketFiles(run_url, retry=SYNC_RETRY)
    for attempt in attempts:
        parts: dict[str, list[ObjectInfo]] = {}
        for part in files.list(f"{posixpath.dirname(KEYS.tail(attempt, ''))}/"):
            parts.setdefault(posixpath.dirname(part.name), []).append(part)
        parts_by_task = ((task, parts.get(KEYS.tail(attempt, task), [])) for task in tasks)
        streams = (_kept_lines(files, attempt, task, own_parts) for task, own_parts in parts_by_task if own_parts)
        yield from heapq.merge(*streams, key=lambda line: line.time or 0.0)


def _kept_lines(files: BucketFiles, attempt: int, task: str, parts: Sequence[ObjectInfo]) -> Iterator[LogLine]:
    splitter, time = LineSplitter(), 0.0
    for part in sorted(parts, key=lambda part: part.name):
        # A task that still runs may have removed it.
        with suppress(MissingError):
            data = bytes(files.read(part.name))
            time = part.created
            for text, end in splitter.feed(data):
                yield LogLine(task=task, attempt=attempt, text=text, end=end, time=time)
    for text, end in splitter.finish():
        yield LogLine(task=task, attempt=attempt, text=text, end=end, time=time)
