"""What all tasks do after the same training step, agreed on through a bucket.

The first task writes numbered entries. Each names a step and what is done after it, mostly nothing ("go"). At the step of one
entry a task needs the next one, so whatever is written for a later step is known to every task that gets there. The first
task writes an entry some seconds before the training reaches the one before it, so a training that runs normally never waits.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from ...clock import Clock, SystemClock
from ...errors import AlreadyExistsError, MissingError, PodliftError, StoreError
from ...job.layout import RunPaths
from ...job.payload import Payload
from ...job.wire import parsed
from ...logs import logger
from ...records.sync import index
from ...storage.registry import open_store
from ...storage.retry import RetryPolicy
from ...storage.store import Store, exists
from ..shared import Shared
from .files import SAVING, ActionOrGo, Due, ScheduledAction, never, nothing_due

_log = logger("runtime")

_KEYS = RunPaths("")
# The training time between two entries. The first entries are one, two, four ... steps apart.
AHEAD_S = 2.0
# How often to look for a preempted task, which is one read, and for a cancel request: a list, which costs twelve times as much.
_PREEMPTED_S, _CANCEL_S = 1.0, 4.0
_RETRY_S = 1.0
# Poll intervals of the thread: the writer polls the step count, readers poll the bucket, both poll while the training waits.
_WRITER_S, _READER_S, _WAITING_S = 0.1, 0.5, 0.05
# Longer than anything that the first task does between two steps.
_MAX_WAIT_S = 1800.0
_RETRY = RetryPolicy(connect_s=5.0, read_s=20.0, total_s=60.0, first_s=30.0)


class Lookahead:
    """How far ahead the first task writes entries. Pure."""

    def __init__(self) -> None:
        self.steps: list[int] = []  # of the last two entries
        self._width = 1
        self._last: tuple[int, float] | None = None

    def is_due(self, count: int) -> bool:
        """Return whether to write the next entry after `count` steps. At most two entries are open."""
        return len(self.steps) < 2 or count >= self.steps[-2]

    def write(self, count: int, now: float) -> int:
        """Return the step of the next entry, after `count` steps and at a monotonic time in seconds."""
        if self._last is not None and count > self._last[0] and now > self._last[1]:
            rate = (count - self._last[0]) / (now - self._last[1])
            # At most doubled: the first steps, and those after a pause, are not typical.
            self._width = max(1, min(2 * self._width, int(rate * AHEAD_S)))
        self._last = (count, now)
        self.steps.append((self.steps[-1] if self.steps else 0) + self._width)
        del self.steps[:-2]
        return self.steps[-1]


@dataclass(frozen=True, kw_only=True)
class RendezvousState:
    """What more than one of the training, the thread of the rendezvous and the handler of SIGTERM change; never in place."""

    waiting: bool = False  # the training, for an entry
    closed: bool = False
    preempted: bool = False  # this task's machine
    requested: Literal["stop", "preempt"] | None = None  # of the run
    entries: tuple[ScheduledAction | None, ...] = ()  # not taken yet; None is the last one, and stays
    error: Exception | None = None  # of the last poll


@dataclass(kw_only=True)
class BucketRendezvous:
    """The rendezvous of tasks that share a bucket, see `FileRendezvous`. A separate thread reads and writes the entries."""

    payload: Payload
    task: str
    decides: bool  # True in the first task
    is_single: bool  # True if there is no other task, and so nothing to agree on
    clock: Clock = field(default_factory=SystemClock)
    store: Store | None = None  # opened by the thread unless given

    def __post_init__(self) -> None:
        # Two plain attributes: the training alone sets them, and the thread reads them.
        self.count = 0
        self.save_due: Due = nothing_due  # set before the first loop begins
        self.apart: Callable[[], bool] = never
        self._shared = Shared(RendezvousState())
        self._thread: threading.Thread | None = None
        self._lookahead = Lookahead()
        self._written = 0
        self._saves_at = 0
        self._last_written = self._preemption_written = False
        self._preempted_due = self._cancel_due = -math.inf

    # --- Called by the training

    def begin(self) -> None:
        """Start the thread at the first loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self.serve, name="podlift-rendezvous", daemon=True)
            self._thread.start()

    def request_preemption(self) -> None:
        self._shared.swap(lambda state: replace(state, preempted=True))

    def next(self) -> ScheduledAction | None:
        """Return the next entry, waiting for it if there are other tasks."""
        self.begin()
        if self.is_single:
            return self._decide_alone(self._shared.value)
        until = self.clock.monotonic() + _MAX_WAIT_S
        while not (state := self._shared.value).entries:
            if self.clock.monotonic() >= until:
                raise state.error or StoreError(
                    f"The first task did not publish within {_MAX_WAIT_S:g} s what to do after step {self.count}: it takes no "
                    "steps. Is it in another loop than this task, or does its own loop not call should_stop()?"
                )
            self._shared.swap(lambda state: replace(state, waiting=True))
            self.clock.sleep(_WAITING_S)
        entry = state.entries[0]
        # Only this thread takes entries; more may have come in the meantime.
        taken = 0 if entry is None else 1
        self._shared.swap(lambda state: replace(state, waiting=False, entries=state.entries[taken:]))
        return entry

    def close(self) -> None:
        """End the thread. If this is the first task, let the others go on without it."""
        if self.decides and not self.is_single:
            self.begin()
        self._shared.swap(lambda state: replace(state, closed=True))
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_RETRY.total_s)

    def _decide_alone(self, state: RendezvousState) -> ScheduledAction | None:
        if state.requested == "stop":
            return self.count, "stop"
        if state.preempted or state.requested:
            return self.count, "preempt"
        due = self.save_due()
        return None if due is None else (self.count, due)

    # --- Called by the thread: reads requests and entries, and in the first task writes the entries

    def serve(self) -> None:
        """Poll until the training is over."""
        while not self._shared.value.closed:
            try:
                self.poll()
                self._set_error(None)
            except Exception as error:  # the training goes on until it needs what this thread reads
                if self._shared.value.error is None:
                    _log.info(f"cannot synchronize with the other tasks: {type(error).__name__}: {error}")
                self._set_error(error)
            interval_s = _WRITER_S if self.decides else _READER_S
            self.clock.sleep(_WAITING_S if self._shared.value.waiting else interval_s)
        if self.decides and not self.is_single and not self._last_written:
            with suppress(PodliftError):  # a task that still waits for an entry reports it later
                self._put(self._written + 1, {"step": self.count, "action": "end"})

    def poll(self) -> None:
        """Do once what is due."""
        store = self._opened()
        if self._shared.value.preempted and not self._preemption_written and not self.is_single:
            with suppress(AlreadyExistsError):
                store.put_new(_preempted_key(self.payload.attempt), [b"{}"])
            self._preemption_written = True
        if not self.decides:
            self._read(store)
            return
        self._read_requests(store)
        while not self.is_single and not self._last_written and self._lookahead.is_due(self.count):
            self._write()

    def _set_error(self, error: Exception | None) -> None:
        if self._shared.value.error is not error:
            self._shared.swap(lambda state: replace(state, error=error))

    def _opened(self) -> Store:
        if self.store is None:
            self.store = open_store(self.payload.bucket_url, retry=_RETRY)
        return self.store

    def _read_requests(self, store: Store) -> None:
        now, state = self.clock.monotonic(), self._shared.value
        if state.requested == "stop":
            return
        preempts = state.preempted and not state.requested
        # A cancel request comes first.
        if preempts or now >= self._cancel_due:
            self._cancel_due = now + _CANCEL_S
            if index.cancel_requests(store, self.payload.resumes, self.payload.resumes_by_users):
                self._shared.swap(lambda state: replace(state, requested="stop"))
                return
        if not (preempts or state.requested or self.is_single) and now >= self._preempted_due:
            self._preempted_due = now + _PREEMPTED_S
            preempts = exists(store, _preempted_key(self.payload.attempt))
        if preempts:
            self._shared.swap(lambda state: replace(state, requested="preempt"))

    def _write(self) -> None:
        due = self.save_due() if self.count >= self._saves_at else None
        action: ActionOrGo = self._shared.value.requested or due or "go"
        at = self._lookahead.write(self.count, self.clock.monotonic())
        number = self._written + 1
        while True:
            try:
                self._put(number, {"step": at, "action": action})
                break
            except StoreError as error:
                # The other tasks wait for an entry at this step, so writing it is retried until it works.
                self._set_error(error)
                _log.info(f"cannot publish to the other tasks what to do after step {at}: {error}")
                if self._shared.value.closed:
                    return
                self.clock.sleep(_RETRY_S)
        self._written = number
        self._last_written = action in ("stop", "preempt")
        if action in SAVING:
            self._saves_at = at + 1
        self._add((at, action))

    def _add(self, entry: ScheduledAction | None) -> None:
        self._shared.swap(lambda state: replace(state, entries=(*state.entries, entry)))

    def _put(self, number: int, entry: Mapping[str, object]) -> None:
        store, key = self._opened(), _KEYS.rendezvous(self.payload.attempt, number)
        data = json.dumps(entry).encode()
        try:
            store.put_new(key, [data])
        except AlreadyExistsError:
            if bytes(store.get(key)) != data:
                raise StoreError(
                    f"{store.url}/{key} was written by another process. Was the run started twice?"
                ) from None

    def _read(self, store: Store) -> None:
        number = self._written + 1
        try:
            entry = parsed(bytes(store.get(_KEYS.rendezvous(self.payload.attempt, number))))
        except MissingError:
            return
        self._written = number
        self._add(None if entry["action"] == "end" else (int(entry["step"]), entry["action"]))


def _preempted_key(attempt: int) -> str:
    """Return the one object that any preempted task creates."""
    return f"{_KEYS.preempted(attempt)}/any.json"
