"""Brings what one task leaves, records and metrics, from its container to the run's directory while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...clock import Clock
from ...errors import AccessError
from ...layout import RunPaths
from ...storage.mirror import Mirror

_EVERY_S = 1.0


class Carrying:
    """A thread that does so once a second, from `start` to `finish`.

    Args:
        paths: the run's folder in this container.
        url: the run's directory in the bucket.
        clock: what time it is.
        log: takes lines for people.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock, log: Callable[[str], None]) -> None:
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
        self._mirror.hurry(within_s)
        self._thread.join(within_s)
        self._mirror.push(last=False)

    def finish(self, within_s: float) -> None:
        """Bring the rest, behind `now`.

        Args:
            within_s: how long it may take, in seconds.

        Raises:
            StoreError: the bucket refuses, or it took longer.
        """
        self._mirror.hurry(within_s)
        self._mirror.push(last=True)

    def _carry(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self._mirror.push(last=False)
                self._said = ""
            except Exception as error:  # whatever it is, the task goes on, and the next look may be better
                self._say(f"{'not allowed' if isinstance(error, AccessError) else 'not brought yet'}: {error}")

    def _say(self, text: str) -> None:
        # Once a second the same sentence helps nobody.
        if text.partition(" It was tried")[0] != self._said:
            self._said = text.partition(" It was tried")[0]
            self._log(text)
