"""What all tasks do behind the same step, agreed on through a bucket.

The first task writes numbered entries, each of them names a step and what is done behind it, mostly nothing: "go". Behind the
step of one entry a task needs the next one, so whatever is written for a later step is known to everybody who gets there. The
first task writes the next entry while the training is still on its way to the one before, some seconds ahead: in training
that goes on nobody waits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...clock import Clock
from ...errors import AlreadyExistsError, MissingError, PodliftError, StoreError
from ...spec.layout import RunPaths
from ...spec.payload import Payload
from ...storage.registry import open_store
from ...storage.retry import RetryPolicy
from ...storage.store import Store
from .files import SAVING, Action, Due, Entry, nothing_due

_KEYS = RunPaths("")
# The steps of so many seconds lie between two entries; the first entries lie one, two, four ... steps apart.
AHEAD_S = 2.0
_WISH_S = 1.0
# How often the thread looks: the writer at the steps, readers at the bucket, and both where the training waits.
_WRITER_S, _READER_S, _WAITING_S = 0.1, 0.5, 0.05
# Longer than anything that the first task does between two steps.
_PATIENCE_S = 1800.0
_PATIENCE = RetryPolicy(connect_s=5.0, read_s=20.0, total_s=60.0, first_s=30.0)


class Ahead:
    """How far ahead the first task writes entries. No clock, no input, no output.

    Attributes:
        steps: of the entries that were written, in their order.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._width = 1
        self._last: tuple[int, float] | None = None

    def is_due(self, count: int) -> bool:
        """Say whether the next entry is to be written, when so many steps are over: two are open at most."""
        return len(self.steps) < 2 or count >= self.steps[-2]

    def write(self, count: int, now: float) -> int:
        """Return the step of the next entry.

        Args:
            count: how many steps are over.
            now: a monotonic time, in seconds.
        """
        if self._last is not None and count > self._last[0] and now > self._last[1]:
            rate = (count - self._last[0]) / (now - self._last[1])
            # Twice as far at most: the first steps, and those behind a pause, say little about the rest.
            self._width = max(1, min(2 * self._width, int(rate * AHEAD_S)))
        self._last = (count, now)
        self.steps.append((self.steps[-1] if self.steps else 0) + self._width)
        del self.steps[:-2]
        return self.steps[-1]


class Board:
    """The entries of an attempt in a bucket, for one task. A thread of its own reads and writes them.

    Args:
        payload: the run's.
        task: this task's name.
        decides: True in the first task.
        alone: True where no other task takes part: then there is nothing to agree on.
        clock: what time it is.
        log: takes lines for people.
        store: the run's directory; opened by its URL where none is given.
    """

    def __init__(
        self,
        payload: Payload,
        task: str,
        *,
        decides: bool,
        alone: bool,
        clock: Clock,
        log: Callable[[str], None],
        store: Store | None = None,
    ) -> None:
        self._payload = payload
        self._task = task
        self._decides = decides
        self._alone = alone
        self._clock = clock
        self._log = log
        self._store = store
        self.count = 0
        self.save_due: Due = nothing_due
        self._ahead = Ahead()
        self._entries: dict[int, Entry | None] = {}
        self._taken = 0
        self._written = 0
        self._saves_at = 0
        self._wish: Action | None = None
        self._told = self._told_others = False
        self._trouble: Exception | None = None
        self._looked = -_WISH_S
        self._leaves = self._over = False
        # No lock: a handler of signals that meets its own thread in one would wait for ever.
        self._waiting = self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread at the first loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="podlift-board", daemon=True)
            self._thread.start()

    def want_back(self) -> None:
        self._told = True

    def next(self) -> Entry | None:
        """Return the next entry as soon as it is there; a task that is alone needs none.

        Raises:
            StoreError: it does not come.
        """
        self.begin()
        if self._alone:
            return self._own()
        if self._over:
            return None
        number = self._taken + 1
        until = self._clock.monotonic() + _PATIENCE_S
        while number not in self._entries:
            self._waiting = True
            if self._clock.monotonic() >= until:
                raise self._trouble or StoreError(
                    f"The first task has not said within {_PATIENCE_S:g} s what is done behind step {self.count}: it takes no "
                    "steps. Is it in another loop than this task, or does it not ask should_stop() in its own?"
                )
            self._clock.sleep(_WAITING_S)
        self._waiting = False
        self._taken = number
        entry = self._entries.pop(number)
        self._over = entry is None
        return entry

    def close(self) -> None:
        """Let the other tasks go on without this one, where it is the first; end the thread."""
        if self._decides and not self._alone:
            self.begin()
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_PATIENCE.total_s)

    def _own(self) -> Entry | None:
        if self._wish == "stop":
            return self.count, "stop"
        if self._told or self._wish:
            return self.count, "preempt"
        due = self.save_due()
        return None if due is None else (self.count, due)

    def _serve(self) -> None:
        while not self._closed:
            try:
                self._look()
                self._trouble = None
            except Exception as error:  # whatever it is, the training goes on until it needs what this thread brings
                if self._trouble is None:
                    self._log(f"the tasks' board cannot be used now: {type(error).__name__}: {error}")
                self._trouble = error
            self._clock.sleep(_WAITING_S if self._waiting else _WRITER_S if self._decides else _READER_S)
        if self._decides and not self._alone and not self._leaves:
            with suppress(PodliftError):  # whoever still waits for an entry says so after a while
                self._put(self._written + 1, {"step": self.count, "action": "end"})

    def _look(self) -> None:
        store = self._opened()
        if self._told and not self._told_others and not self._alone:
            with suppress(AlreadyExistsError):
                store.put_new(f"{_KEYS.preempted(self._payload.attempt)}/{self._task}.json", [b"{}"])
            self._told_others = True
        if not self._decides:
            self._read(store)
            return
        self._look_for_wishes(store)
        while not self._alone and not self._leaves and self._ahead.is_due(self.count):
            self._write()

    def _opened(self) -> Store:
        if self._store is None:
            from ...storage.gcs.store import GcsStore

            url = self._payload.board
            gs = url.startswith("gs://")
            self._store = GcsStore(url.partition("://")[2], retry=_PATIENCE) if gs else open_store(url)
        return self._store

    def _look_for_wishes(self, store: Store) -> None:
        now = self._clock.monotonic()
        if self._wish == "stop" or (now - self._looked < _WISH_S and (self._wish or not self._told)):
            return
        self._looked = now
        wanted_back = f"{_KEYS.preempted(self._payload.attempt)}/"
        if next(iter(store.list(f"{_KEYS.control}/{self._payload.generation:04d}-")), None) is not None:
            self._wish = "stop"
        elif self._told or (not self._alone and next(iter(store.list(wanted_back)), None) is not None):
            self._wish = "preempt"

    def _write(self) -> None:
        action: Any = self._wish or (self.save_due() if self.count >= self._saves_at else None) or "go"
        at = self._ahead.write(self.count, self._clock.monotonic())
        number = self._written + 1
        while True:
            try:
                self._put(number, {"step": at, "action": action})
                break
            except StoreError as error:
                # The step is promised by now: its entry is written, or nobody goes past the one before.
                self._trouble = error
                self._log(f"cannot tell the other tasks what is done behind step {at}: {error}")
                if self._closed:
                    return
                self._clock.sleep(_WISH_S)
        self._written = number
        self._leaves = action in ("stop", "preempt")
        if action in SAVING:
            self._saves_at = at + 1
        self._entries[number] = (at, action)

    def _put(self, number: int, about: dict[str, Any]) -> None:
        store, key, data = self._opened(), _KEYS.rendezvous(self._payload.attempt, number), json.dumps(about).encode()
        try:
            store.put_new(key, [data])
        except AlreadyExistsError:
            if bytes(store.get(key)) != data:
                raise StoreError(
                    f"{store.url}/{key} was written by another process. Is the run started twice?"
                ) from None

    def _read(self, store: Store) -> None:
        number = self._written + 1
        try:
            about = json.loads(bytes(store.get(_KEYS.rendezvous(self._payload.attempt, number))))
        except MissingError:
            return
        self._entries[number] = None if about["action"] == "end" else (int(about["step"]), about["action"])
        self._written = number
