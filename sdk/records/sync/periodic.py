"""What both uploaders, on a machine and in a container, do in a thread: actions with a period each, whatever fails."""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Sequence

from ...clock import Clock
from ...errors import PodliftError
from ...logs import logger

_log = logger("records")
_POLL_S, _LOG_AGAIN_S = 0.25, 600.0


class PeriodicAction:
    """Calls a function at most once per period. A failure is logged, and the function is called again after the next period."""

    def __init__(self, every_s: float, name: str, action: Callable[[], object], *, due: float = -math.inf) -> None:
        self._every_s = every_s
        self._name = name
        self._action = action
        self._due = due
        self._logged = ("", -math.inf)

    def run_if_due(self, now: float) -> None:
        if now < self._due:
            return
        self._due = now + self._every_s
        try:
            self._action()
        except (PodliftError, OSError) as error:
            self._log_failure(str(error), now)
        except Exception:  # the next call may succeed, and one failure must not end the upload
            self._log_failure(traceback.format_exc(), now)

    def _log_failure(self, text: str, now: float) -> None:
        # The same failure repeated for days must not fill the disk; how often it was tried is not another one.
        same = text.partition(" Tried ")[0]
        if same != self._logged[0] or now - self._logged[1] >= _LOG_AGAIN_S:
            self._logged = (same, now)
            _log.info(f"{self._name} failed: {text}")


class PeriodicThread(threading.Thread):
    """Runs actions when they are due, until it is stopped."""

    def __init__(self, actions: Sequence[PeriodicAction], clock: Clock) -> None:
        super().__init__(name="podlift-uploader", daemon=True)
        self._actions = actions
        self._clock = clock
        self._stop_requested = threading.Event()

    def stop(self, within_s: float) -> None:
        self._stop_requested.set()
        self.join(within_s)

    def run(self) -> None:
        while not self._stop_requested.wait(_POLL_S):
            self.run_due()

    def run_due(self) -> None:
        for action in self._actions:
            action.run_if_due(self._clock.monotonic())
