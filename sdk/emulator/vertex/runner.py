"""One thread for each job with running containers: it executes commands for them, and reports what happens to them."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Set

from .launcher import ReplicaGroup

_POLL_S = 0.02


class JobRunner:
    """The containers of one job.

    Args:
        make: makes a new group for every attempt of the whole job.
        grace_s: between SIGTERM and SIGKILL.
        on_start: called when all replicas were started.
        on_exit: called with the exit codes of replicas, and those of them that ran out of memory.
        on_stop: called when no process runs any more after "stop".
        on_error: called with a sentence when the group has failed.
    """

    def __init__(
        self,
        make: Callable[[], ReplicaGroup],
        grace_s: float,
        *,
        on_start: Callable[[], None],
        on_exit: Callable[[dict[str, int], Set[str]], None],
        on_stop: Callable[[], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._make = make
        self._grace_s = grace_s
        self._on_start, self._on_exit, self._on_stop, self._on_error = on_start, on_exit, on_stop, on_error
        self._commands: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._group: ReplicaGroup | None = None
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, what: str, replica: str = "") -> None:
        """Queue a command: "start", "start_one", "stop", "preempt" or "close"; returns at once."""
        self._commands.put((what, replica))

    def join(self, timeout_s: float) -> None:
        """Wait until "close" is done."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        what = ""
        while what != "close":
            try:
                what, replica = self._commands.get(timeout=_POLL_S if self._group else None)
            except queue.Empty:
                what, replica = "poll", ""
            try:
                self._handle(what, replica)
            except Exception as error:
                # The job fails with this reason in its error; the others continue.
                traceback.print_exc()
                self._abandon()
                self._on_error(f"{type(error).__name__}: {error}")

    def _handle(self, what: str, replica: str) -> None:
        if what == "start":
            self._reported.clear()
            self._group = self._make()
            self._group.start()
            self._on_start()
        elif what in ("stop", "close"):
            self._end()
            if what == "stop":
                self._on_stop()
        elif self._group is None:
            return
        elif what == "start_one":
            self._group.start_one(replica)
            self._reported.discard(replica)
        elif what == "preempt":
            self._group.preempt(replica)
        else:
            new = {name: code for name, code in self._group.exited().items() if name not in self._reported}
            self._reported |= set(new)
            if new:
                self._on_exit(new, self._group.out_of_memory() & set(new))

    def _end(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.terminate(self._grace_s)
            group.close()

    def _abandon(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            try:
                group.terminate(0)
                group.close()
            except Exception:  # the job fails anyway
                traceback.print_exc()
