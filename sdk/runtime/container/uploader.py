"""Brings what one task leaves, records and metrics, from its container to the run's directory while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict

from ...clock import Clock
from ...errors import AccessError
from ...records.recorder import position
from ...records.sync.heartbeats import Heartbeat
from ...records.sync.push import PATIENCE, Mirror
from ...spec.layout import RunPaths
from ...storage.gcs.store import GcsStore

_EVERY_S, _BEAT_S = 1.0, 10.0


class Carrying:
    """A thread that does so once a second, from `start` to `finish`.

    Args:
        paths: the run's folder in this container.
        url: the run's directory in the bucket.
        clock: what time it is.
        log: takes lines for people.
        task: the one that says for the run how far it is, every ten seconds; "" for none.
        generation: how often the run was resumed.
    """

    def __init__(
        self,
        paths: RunPaths,
        url: str,
        clock: Clock,
        log: Callable[[str], None],
        *,
        task: str = "",
        generation: int = 0,
    ) -> None:
        self._task, self._generation, self._paths = task, generation, paths
        self._heartbeat = Heartbeat(GcsStore(url.partition("://")[2], retry=PATIENCE, clock=clock))
        self._beaten = clock.monotonic()
        self._clock = clock
        self._log = log
        self._mirror = Mirror(paths, url, clock, log, one_task=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="podlift-carrier", daemon=True)
        self._said = ""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def now(self, within_s: float) -> None:
        """Bring all that is there now; nothing is brought behind it but by `finish`.

        Args:
            within_s: how long it may take, in seconds.

        Raises:
            StoreError: the bucket refuses, or it took longer.
        """
        self._over.set()
        self._mirror.set_deadline(within_s)
        self._thread.join(within_s)
        self._mirror.push(last=False)

    def finish(self, within_s: float) -> None:
        """Bring the rest, behind `now`.

        Args:
            within_s: how long it may take, in seconds.

        Raises:
            StoreError: the bucket refuses, or it took longer.
        """
        self._mirror.set_deadline(within_s)
        self._mirror.push(last=True)

    def _carry(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self._mirror.push(last=False)
                self.beat()
                self._said = ""
            except Exception as error:  # whatever it is, the task goes on, and the next look may be better
                self._say(f"{'not allowed' if isinstance(error, AccessError) else 'not brought yet'}: {error}")

    def beat(self) -> None:
        """Say how far the run is, where this task does and it is time."""
        if self._task and self._clock.monotonic() - self._beaten >= _BEAT_S:
            self._beaten = self._clock.monotonic()
            found = position(self._paths, self._task)
            progress = None if found is None else asdict(found)
            self._heartbeat.say({"supervised": True, "generation": self._generation, "progress": progress})

    def _say(self, text: str) -> None:
        # Once a second the same sentence helps nobody.
        if text.partition(" It was tried")[0] != self._said:
            self._said = text.partition(" It was tried")[0]
            self._log(text)
