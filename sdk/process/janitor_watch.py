"""The supervisor looks after its janitor, as that one looks after it: see janitor.py."""

from __future__ import annotations

import os
import signal
import sys
import threading

from . import janitor, spawn

_LOOK_S = 0.5


class Watch:
    """Looks at the janitor from a thread of its own, as long as the supervisor lives (Linux only).

    Args:
        pid: the janitor's, which is this process's parent.
        temporary: the folder for temporary files.
        events: the folder of the run's records.
        lock: the handle that `janitor.leave_behind` returned.
    """

    def __init__(self, pid: int, temporary: str, events: str, lock: int | None) -> None:
        self._pid = pid
        self._temporary = temporary
        self._events = events
        self._lock = lock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="podlift-janitor", daemon=True)

    def start(self) -> None:
        """Begin to look. This process has entered its namespaces by then: that takes a single thread."""
        if sys.platform.startswith("linux"):
            self._thread.start()

    def stop(self) -> None:
        """Look once more, and then no more: a janitor that is stopped now would stay so."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            self._look()

    def _work(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self._look()
            except OSError as error:
                # No process could be started, perhaps: it is tried again.
                sys.stderr.write(f"The janitor cannot be watched now: {error}\n")

    def _look(self) -> None:
        if not self._is_there():
            sys.stderr.write(f"The janitor, process {self._pid}, is gone: another one takes over.\n")
            self._pid = janitor.start_successor(self._temporary, self._events, self._lock)
            spawn.SPARED.add(self._pid)
        elif spawn.is_stopped(self._pid):
            sys.stderr.write(f"The janitor, process {self._pid}, was stopped: it is woken.\n")
            os.kill(self._pid, signal.SIGCONT)

    def _is_there(self) -> bool:
        if self._pid in spawn.SPARED:
            return os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        return os.getppid() == self._pid
