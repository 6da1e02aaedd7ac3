"""Whether a run is supervised. Watches the janitor, and does its work if it was killed with the supervisor: see janitor.py."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading

from ..clock import Clock
from ..job.layout import RunPaths
from ..logs import logger
from ..records.events import resume_count, source_of
from ..records.recorder import has_ended, read_events
from ..storage import own_folders
from . import janitor, spawn

_log = logger("process")
_CHECK_S = 0.5
# Folders for temporary files outside the run's own folder.
_OUTSIDE = re.compile(r"/.+/podlift-[0-9a-f]{12}")


class JanitorWatch:
    """Checks the janitor from a thread, as long as the supervisor runs (Linux only)."""

    def __init__(self, pid: int, temporary: str, events: str, lock: int | None) -> None:
        self._pid = pid
        self._temporary = temporary
        self._events = events
        self._lock = lock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="podlift-janitor", daemon=True)

    def start(self) -> None:
        """Start the thread, after this process has entered its namespaces: that requires a single thread."""
        if sys.platform.startswith("linux"):
            self._thread.start()

    def stop(self) -> None:
        """Check a last time and stop. A janitor that is suspended now would otherwise stay so."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            self._check()

    def _loop(self) -> None:
        while not self._stopped.wait(_CHECK_S):
            try:
                self._check()
            except OSError as error:
                # Perhaps no process could be started. The next check tries again.
                _log.info(f"Checking the janitor failed: {error}")

    def _check(self) -> None:
        if not self._is_alive():
            _log.info(f"The janitor, process {self._pid}, is gone: starting another one.")
            self._pid = janitor.start_successor(self._temporary, self._events, self._lock)
            spawn.SPARED.add(self._pid)
        elif spawn.is_stopped(self._pid):
            _log.info(f"The janitor, process {self._pid}, was stopped: waking it.")
            os.kill(self._pid, signal.SIGCONT)

    def _is_alive(self) -> bool:
        if self._pid in spawn.SPARED:
            return os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        return os.getppid() == self._pid


def end_leftovers(paths: RunPaths) -> None:
    """End the remaining processes of this user's run if it lost its supervisor. If its janitor is alive, only wake it."""
    # These folders are removed last. Without one, there is no need to inspect every process of the machine.
    folders = temporary_folders(paths)
    if folders and sys.platform.startswith("linux"):
        for failed in janitor.clean(paths.url, folders, paths.events):
            _log.warning(failed)


def temporary_folders(paths: RunPaths) -> list[str]:
    """Return the folders for temporary files that supervisors of this run have left on this machine.

    Records may come from another machine, and another user may have written them: a folder outside of the run must say
    itself that it is of this run.
    """
    named = [str(event.data.get("temporary", "")) for event in read_events(paths, ("started", "placed"))]
    outside = [folder for folder in dict.fromkeys(named) if _OUTSIDE.fullmatch(folder) and folder != paths.temporary]
    claimed = [folder for folder in outside if own_folders.claimed(folder) == paths.url]
    inside = os.path.isdir(paths.temporary) and not os.path.islink(paths.temporary)
    return [paths.temporary, *claimed] if inside else claimed


# If no supervisor was recorded within this time, its client died before starting it.
_START_LIMIT_S = 30.0


def is_supervised(paths: RunPaths, clock: Clock) -> bool:
    """Return True while a supervisor may still write a verdict. This ends no process: see `end_leftovers`."""
    if has_ended(paths):
        return False
    events = read_events(paths, ("submitted", "launched", "started", "resumed"))
    sources = {source_of(name, resume_count(events)) for name in ("supervisor", "launcher")}
    names = [e.data["supervisor"] for e in events if e.kind in ("started", "launched") and e.source in sources]
    if not names:
        return clock.now() - max((event.time for event in events), default=0.0) < _START_LIMIT_S
    if not spawn.same_machine(names[-1]):
        return not names[-1].startswith("gone:")
    return spawn.alive(names[-1])
