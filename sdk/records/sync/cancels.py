"""Cancel requests in the run's directory of a store: numbered files, for the tasks, for who runs them and for clients."""

from __future__ import annotations

import itertools
import math

from ...clock import Clock
from ...job.layout import RunPaths
from ...job.wire import parsed
from ...storage.store import Store, create, exists

KEYS = RunPaths("")
# A bucket bills a list like twelve reads. Between lists, one read finds the next request for this job; only a list finds a
# late one for an earlier job.
_LIST_S = 300.0


class CancelWatch:
    """Polls for cancel requests: a list at first and every five minutes, one read in between.

    Args:
        store: the run's directory.
        clock: the time.
        resumes: how often the run was resumed in all.
        since: how often it was resumed by users; None for `resumes`.
        every_s: seconds between two looks, at least.
    """

    def __init__(self, store: Store, clock: Clock, resumes: int, since: int | None = None, *, every_s: float) -> None:
        self.resumes, self._since = resumes, resumes if since is None else since
        self._store, self._clock, self._every_s = store, clock, every_s
        self._keys: list[str] = []
        self._look_due = self._list_due = -math.inf

    def look(self) -> list[str]:
        """Return the keys of all requests known so far. Sends a request to the store only if a poll is due."""
        now = self._clock.monotonic()
        if now < self._look_due:
            return self._keys
        self._look_due = now + self._every_s
        if now >= self._list_due:
            self._keys = cancel_requests(self._store, self.resumes, self._since)
            # Only now: a list that failed is tried again at the next look.
            self._list_due = now + _LIST_S
        else:
            own = sum(key.startswith(f"{KEYS.control}/{self.resumes:04d}-") for key in self._keys)
            following = KEYS.remote_cancel_request(self.resumes, own + 1)
            if exists(self._store, following):
                self._keys = [*self._keys, following]
        return self._keys


def request_cancel(store: Store, resumes: int, request: bytes) -> None:
    """Leave a cancel request for the supervisor after this many resumes."""
    numbers = itertools.count(1)
    while not create(store, KEYS.remote_cancel_request(resumes, next(numbers)), request):
        pass


def cancel_requests(store: Store, resumes: int, since: int) -> list[str]:
    """Return the keys of the cancel requests for a run that was resumed `since` times by users, and `resumes` times in all.

    Each is for one job of a run, and counts for every job that follows without a resume.
    """
    keys = []
    for stat in store.list(f"{KEYS.control}/"):
        number = stat.key.rpartition("/")[2].partition("-")[0]
        if number.isdecimal() and since <= int(number) <= resumes:
            keys.append(stat.key)
    return keys


def cancel_request(store: Store, key: str, *, now: float, grace_s: float) -> tuple[float, float]:
    return parse_request(bytes(store.get(key)), now=now, grace_s=grace_s)


def parse_request(text: bytes, *, now: float, grace_s: float) -> tuple[float, float]:
    """Return when a cancel request was made, by the clock of who made it, and its grace in seconds.

    One that cannot be read counts, too: as one of now, with `grace_s`.
    """
    try:
        data = parsed(text)
        return float(data.get("requested_at", now)), float(data.get("grace_s", grace_s))
    except (ValueError, TypeError, AttributeError):
        return now, grace_s
