"""The launcher of the replicas of a job: the seam between the service and its containers."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import traceback
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...storage import own_folders
from ..gcs.state import StorageState
from .containers.client import OnLine
from .lifecycle import Lifecycle

_POLL_S = 0.02


class ReplicaGroup(Protocol):
    """One attempt of all replicas of a job. None of its methods is called in the thread of the event loop."""

    def start(self) -> None:
        """Start all of them."""

    def start_one(self, replica: str) -> None:
        """Restart an exited one, under the same host name."""

    def exited(self) -> dict[str, int]:
        """Return the exit codes of the exited replicas, as a container's: 128 + the signal."""

    def out_of_memory(self) -> Set[str]:
        """Return the replicas that were killed because memory ran out."""

    def terminate(self, grace_s: float) -> None:
        """End all of them: SIGTERM, `grace_s` seconds, SIGKILL. All have ended when this returns."""

    def preempt(self, replica: str) -> None:
        """Preempt one: SIGTERM, 15 seconds, SIGKILL. Returns at once."""

    def kill(self, replica: str) -> None:
        """Kill one, which then has exited by itself."""

    def close(self) -> None:
        """Release all resources."""


class ReplicaLauncher(Protocol):
    def make(self, job: Mapping[str, Any], *, job_id: str, project: str, region: str, emit: OnLine) -> ReplicaGroup:
        """Return a group that is not started yet; `emit` is called from any thread. `project` is the project's number."""

    def close(self) -> None:
        """Release the resources that all groups share, after all of them were closed."""


# Opens a launcher, given the stored state, the loop with the thread that may read it, and the emulator's URL.
OpenLauncher = Callable[[StorageState, asyncio.AbstractEventLoop, str], ReplicaLauncher]


class ProcessLauncher:
    def __init__(self, folder: Path, state: StorageState, loop: asyncio.AbstractEventLoop, url: str) -> None:
        from .bucket_fs import BucketFs, StateThread

        self._url, self._folder = url, folder
        # A killed emulator has left the folders of its jobs.
        own_folders.discard(str(folder / "scratch"), private=False)
        self._buckets = BucketFs(state, StateThread(loop), folder / "view")
        self._count = itertools.count(1)

    def make(self, job: Mapping[str, Any], *, job_id: str, project: str, region: str, emit: OnLine) -> ReplicaGroup:
        from .replicas import ReplicaProcesses

        scratch = self._folder / "scratch" / f"{job_id}-{next(self._count)}"
        about = {"job_id": job_id, "project": project, "region": region, "url": self._url}
        token = urlsplit(self._url).path.strip("/")

        def emit_masked(replica: str, stream: str, line: str) -> None:
            # Clients quote URLs in their errors, and lines are stored and shown.
            emit(replica, stream, line.replace(token, "TOKEN") if token else line)

        wheels = self._folder / "wheels"
        return ReplicaProcesses(job, **about, scratch=scratch, wheels=wheels, buckets=self._buckets, emit=emit_masked)

    def close(self) -> None:
        self._buckets.close()


class JobRunner:
    """The containers of one job, in a separate thread that executes commands and reports their events.

    `make` makes a new group for every attempt of the whole job; `report` is called with the events of its `Lifecycle`.
    """

    def __init__(
        self, make: Callable[[], ReplicaGroup], grace_s: float, report: Callable[[Callable[[Lifecycle], None]], None]
    ) -> None:
        self._make, self._grace_s, self._report = make, grace_s, report
        self._commands: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._group: ReplicaGroup | None = None
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, what: str, replica: str = "") -> None:
        """Queue a command: "start", "start_one", "stop", "preempt", "kill" or "close"; returns at once."""
        self._commands.put((what, replica))

    def join(self, timeout_s: float) -> None:
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
                try:
                    self._end(0)
                except Exception:  # the job fails anyway
                    traceback.print_exc()
                why = f"{type(error).__name__}: {error}"
                self._report(lambda life, why=why: life.emulator_error(why))  # type: ignore[misc]

    def _handle(self, what: str, replica: str) -> None:
        if what == "start":
            self._reported.clear()
            self._group = self._make()
            self._group.start()
            self._report(Lifecycle.replicas_started)
        elif what in ("stop", "close"):
            self._end(self._grace_s)
            if what == "stop":
                self._report(Lifecycle.replicas_stopped)
        elif self._group is None:
            return
        elif what == "start_one":
            self._group.start_one(replica)
            self._reported.discard(replica)
        elif what == "preempt":
            self._group.preempt(replica)
        elif what == "kill":
            self._group.kill(replica)
        else:
            new = {name: code for name, code in self._group.exited().items() if name not in self._reported}
            self._reported |= set(new)
            if new:
                killed = self._group.out_of_memory() & set(new)
                self._report(lambda life: life.replicas_exited(new, killed))

    def _end(self, grace_s: float) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.terminate(grace_s)
            group.close()
