"""What runs the replicas of a job: the seam between the service and its containers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..gcs.state import StorageState
from .containers.client import OnLine


class ReplicaGroup(Protocol):
    """One attempt of all replicas of a job. None of its methods is called in the thread of the event loop."""

    def start(self) -> None:
        """Start all of them."""

    def start_one(self, replica: str) -> None:
        """Restart one that has exited, under the same host name."""

    def exited(self) -> dict[str, int]:
        """Return the exit codes of those that have exited, as a container's: 128 + the signal."""

    def out_of_memory(self) -> Set[str]:
        """Return those that were killed because memory ran out."""

    def terminate(self, grace_s: float) -> None:
        """End all of them: SIGTERM, `grace_s` seconds, SIGKILL. All have ended when this returns."""

    def preempt(self, replica: str) -> None:
        """Preempt one: SIGTERM, 15 seconds, SIGKILL. Returns at once."""

    def close(self) -> None:
        """Release all resources."""


class ReplicaLauncher(Protocol):
    """Makes the replica groups of jobs."""

    def make(self, job: Mapping[str, Any], *, job_id: str, project: str, region: str, emit: OnLine) -> ReplicaGroup:
        """Return a group that is not started yet.

        Args:
            job: the custom job in the emulator's own form.
            job_id: its number.
            project: the project's number.
            region: of the request.
            emit: called with replica, "stdout" or "stderr", and a line, from any thread.
        """

    def close(self) -> None:
        """Release what all groups share; none of them is open any more."""


# Opens a launcher, given the stored state, the loop in whose thread it may be read, and the emulator's URL.
OpenLauncher = Callable[[StorageState, asyncio.AbstractEventLoop, str], ReplicaLauncher]


class ProcessLauncher:
    """Runs replicas as processes of this machine, which see the buckets as files."""

    def __init__(self, folder: Path, state: StorageState, loop: asyncio.AbstractEventLoop, url: str) -> None:
        from .bucket_fs import BucketFs, StateThread

        self._url, self._folder = url, folder
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

        return ReplicaProcesses(job, **about, scratch=scratch, buckets=self._buckets, emit=emit_masked)

    def close(self) -> None:
        self._buckets.close()
