"""The lines of a job's tasks, from Cloud Logging: page by page, and again and again until nothing more can come.

An entry may arrive later than one that is younger. So while a job runs, what is younger than a few seconds is left for the next
look, each look begins some seconds before the last line of the one before, and what was seen is known by its id.
"""

from __future__ import annotations

import json
import time as clocktime
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Protocol

from ...clock import Clock
from ...errors import AccessError, InputError, PodliftError, StoreError, nearest
from ...storage import emulator
from ..base import LogLine
from .client import credentials
from .states import OURS

# What Vertex AI itself says of a job stands under this name.
SERVICE = "service"
_ADDRESS = "https://logging.googleapis.com"
_PAGE = 1000
# Of what a replica has printed last, as a verdict holds it: lines and characters.
_WORDS, _WORDS_SIZE = 30, 4000
_TIMEOUT_S = 30.0
_TRIES, _WAIT_S = 6, 2.0
_BUSY = frozenset({408, 429, 500, 502, 503, 504})

Ask = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often is asked, and how long is waited for what comes late, in seconds.

    Args:
        poll_s: between two looks: a project may ask sixty times a minute in all.
        hold_s: what is younger is left for the next look.
        settle_s: so long after a job's end lines may still come.
    """

    poll_s: float = 5.0
    hold_s: float = 5.0
    settle_s: float = 15.0


# An emulator keeps its entries in order and counts no requests.
NO_HURRY, AT_ONCE = Pace(), Pace(poll_s=0.2, hold_s=0.0, settle_s=0.0)


def pace() -> Pace:
    """Return how to ask whoever the environment names."""
    return AT_ONCE if emulator.address() else NO_HURRY


class Job(Protocol):
    """What is asked of a vendor's job while its lines are followed."""

    def over(self) -> tuple[bool, float]:
        """Return whether it has ended, and when, as unix time in seconds."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the log; `error` for what was printed to stderr."""

    id: str
    time: float
    replica: str
    text: str
    error: bool = False


def selection(job_id: str, replica: str | None = None, since: float | None = None, until: float | None = None) -> str:
    """Return the filter for the entries of a job.

    Args:
        job_id: its number.
        replica: of one replica, such as "workerpool1-0", or "service"; None for all.
        since: unix time in seconds, inclusive.
        until: likewise, exclusive.
    """
    parts = ['resource.type="ml_job"', f'resource.labels.job_id="{job_id}"']
    parts += [f'resource.labels.task_name="{replica}"'] if replica else []
    parts += [f'timestamp>="{_stamp(since)}"'] if since is not None else []
    parts += [f'timestamp<"{_stamp(until)}"'] if until is not None else []
    return " AND ".join(parts)


def entries(ask: Ask, project: str, wanted: str) -> Iterator[Entry]:
    """Yield all entries that a filter wants, the oldest first."""
    body: dict[str, Any] = {
        "resourceNames": [f"projects/{project}"],
        "filter": wanted,
        "orderBy": "timestamp asc",
        "pageSize": _PAGE,
    }
    while True:
        page = ask(body)
        yield from (_entry(item) for item in page.get("entries", ()))
        token = page.get("nextPageToken")
        if not token:
            return
        body = {**body, "pageToken": token}


class Reader:
    """Reads the lines of one job.

    Args:
        ask: sends one request to Cloud Logging.
        project: the project.
        job_id: the job's number.
        pace: how often is asked.
        clock: what time it is.
    """

    def __init__(self, ask: Ask, project: str, job_id: str, *, pace: Pace, clock: Clock) -> None:
        self._ask = ask
        self._project = project
        self._job_id = job_id
        self._pace = pace
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._last: float | None = None

    def read(self, replica: str | None, *, whole: bool = True) -> Iterator[Entry]:
        """Yield what was not read yet.

        Args:
            replica: of one replica; None for all.
            whole: what is young too: nothing older can come behind it.
        """
        hold_s = 0.0 if whole else self._pace.hold_s
        since = None if self._last is None else self._last - self._pace.hold_s - self._pace.settle_s
        until = self._clock.now() - hold_s if hold_s else None
        for entry in entries(self._ask, self._project, selection(self._job_id, replica, since, until)):
            if entry.id in self._seen:
                continue
            self._seen[entry.id] = entry.time
            self._last = max(entry.time, self._last or entry.time)
            yield entry
        if since is not None:
            self._seen = {id: time for id, time in self._seen.items() if time >= since}

    def follow(self, replica: str | None, job: Job) -> Iterator[Entry]:
        """Yield everything until the job has ended and nothing more comes."""
        seen_over: float | None = None
        while True:
            # Asked before reading: what was written before the end is read below in any case.
            over, ended = job.over()
            if over and seen_over is None:
                seen_over = self._clock.now()
            fresh = False
            for entry in self.read(replica, whole=over):
                fresh = True
                yield entry
            # The end is in the service's time; a clock that is behind it must not make this wait for hours.
            settled = seen_over is not None and self._clock.now() >= min(ended, seen_over) + self._pace.settle_s
            if settled and not fresh:
                return
            self._clock.sleep(self._pace.poll_s)


def lines(
    found: Iterator[Entry], names: Mapping[str, str], attempt_at: Callable[[float], int], attempt: int | None
) -> Iterator[LogLine]:
    """Yield entries as lines of tasks.

    Args:
        found: the entries.
        names: the task that each replica is.
        attempt_at: which attempt it was at a unix time.
        attempt: the lines of one attempt, from 1; None for all.
    """
    for entry in found:
        task = names.get(SERVICE if _is_chatter(entry) else entry.replica)
        number = attempt_at(entry.time)
        if task is None or attempt not in (None, number):
            continue
        for text, end in _pieces(entry.text):
            yield LogLine(task=task, attempt=number, text=text, end=end, time=entry.time)


def last_words(ask: Ask, project: str, job_id: str, replica: str) -> str:
    """Return what a replica has printed last, from podlift's own complaint on if there is one.

    Args:
        ask: sends one request to Cloud Logging.
        project: the project.
        job_id: the job's number.
        replica: such as "workerpool1-0".
    """
    try:
        tail = deque(entries(ask, project, selection(job_id, replica)), maxlen=_WORDS)
    except PodliftError as error:
        return str(error)
    found = list(tail)
    ours = [place for place, entry in enumerate(found) if entry.error and entry.text.startswith(OURS)]
    return "\n".join(entry.text.rstrip("\n") for entry in found[ours[-1] if ours else 0 :])[:_WORDS_SIZE]


def chosen(task: str | None, tasks: Sequence[str], names: Mapping[str, str]) -> str | None:
    """Return the replica that a task is; None for all.

    Raises:
        InputError: the run has no such task.
    """
    if task is None or task == SERVICE:
        # What podlift says in a container stands among the lines of its task.
        return None
    if task not in tasks:
        raise InputError(f"The run has no task {task!r}. {nearest(task, [*tasks, SERVICE])}")
    return next(replica for replica, name in names.items() if name == task)


def _is_chatter(entry: Entry) -> bool:
    """True for what podlift itself says in a container, but for what goes wrong: it is no output of the program."""
    return entry.text.startswith(OURS) and not entry.error


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of an entry, with what ends each: a progress bar is written over itself."""
    for line in text.removesuffix("\n").split("\n"):
        *over, last = line.split("\r")
        yield from ((part, "\r") for part in over)
        yield last, "\n"


def _entry(item: Mapping[str, Any]) -> Entry:
    payload = item.get("jsonPayload") or {}
    # A line of JSON that the program prints is taken apart; what has no message is put together again.
    text = payload.get("message", json.dumps(payload)) if payload else item.get("textPayload", "")
    labels = (item.get("resource") or {}).get("labels") or {}
    time = _seconds(str(item.get("timestamp") or item.get("receiveTimestamp") or ""))
    replica = str(labels.get("task_name", ""))
    return Entry(
        # What has no id of its own is told apart by all that it has.
        id=str(item.get("insertId") or (time, replica, text)),
        time=time,
        replica=replica,
        text=str(text),
        error=str(item.get("severity", "")) in ("ERROR", "CRITICAL"),
    )


def _seconds(text: str) -> float:
    """Return the unix time of a timestamp, whose fraction may have nine digits."""
    if not text:
        return 0.0
    whole, _, rest = text.rstrip("Z").partition(".")
    base = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
    return base + (float(f"0.{rest}") if rest.isdigit() else 0.0)


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(max(time, 0.0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@lru_cache(maxsize=4)
def _session(emulated: str) -> Any:
    if emulated:
        import requests

        session = requests.Session()
        # Neither a proxy nor a .netrc of this machine has anything to do with it.
        session.trust_env = False
        return session
    from google.auth.transport.requests import AuthorizedSession

    return AuthorizedSession(credentials())  # type: ignore[no-untyped-call,unused-ignore]


def ask(body: dict[str, Any]) -> Mapping[str, Any]:
    """Send one request for entries, again where that may help.

    Raises:
        AccessError: we are not let in.
        StoreError: there is no good answer.
    """
    import requests
    from google.auth.exceptions import GoogleAuthError

    said = ""
    for tried in range(_TRIES):
        if tried:
            clocktime.sleep(min(_WAIT_S * 2 ** (tried - 1), 30.0))
        try:
            url = f"{emulator.asked() or _ADDRESS}/v2/entries:list"
            response = _session(emulator.address()).post(url, json=body, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            said = emulator.masked(f"{type(error).__name__}: {error}")
            continue
        except GoogleAuthError as error:
            raise AccessError(
                f"The logs cannot be read: {error}. Next: gcloud auth application-default login."
            ) from error
        if response.ok:
            return dict(response.json())
        said = f"{response.status_code} {response.text[:300]}"
        if response.status_code in (401, 403):
            raise AccessError(f"The logs cannot be read: {said}. It takes roles/logging.viewer on the project.")
        if response.status_code not in _BUSY:
            break
    raise StoreError(f"The logs cannot be read: {said}. Next: try again.")
