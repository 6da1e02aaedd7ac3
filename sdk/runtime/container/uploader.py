"""Uploads what one task writes, records and metrics, from its container to the run's directory while it runs."""

from __future__ import annotations

import threading
from dataclasses import asdict

from ...clock import Clock
from ...errors import AccessError
from ...logs import logger
from ...records.recorder import position
from ...records.sync.heartbeats import Heartbeat
from ...records.sync.push import SYNC_RETRY, Pusher
from ...spec.layout import RunPaths
from ...storage.gcs.store import GcsStore

_log = logger("runtime")

_EVERY_S, _BEAT_S = 1.0, 10.0


class ContainerUploader:
    """A thread that uploads once a second, from `start` to `flush`.

    Args:
        paths: the run's folder in this container.
        url: the run's directory in the bucket.
        task: the task whose progress is the run's, to be written to the heartbeat; "" for none.
        resumes: how often the run was resumed.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock, *, task: str = "", resumes: int = 0) -> None:
        self._task, self._resumes, self._paths = task, resumes, paths
        self._heartbeat = Heartbeat(GcsStore(url.partition("://")[2], retry=SYNC_RETRY, clock=clock))
        self._last_beat = clock.monotonic()
        self._clock = clock
        self._pusher = Pusher(paths, url, clock, one_task=True)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="podlift-uploader", daemon=True)
        self._last_warning = ""

    def start(self) -> None:
        self._thread.start()

    def flush(self, within_s: float) -> None:
        """Stop the thread and upload everything that exists now; StoreError if that fails or takes longer."""
        self._stopped.set()
        self._pusher.set_deadline(within_s)
        self._thread.join(within_s)
        self._pusher.push(last=False)

    def finish(self, within_s: float) -> None:
        """Upload what was written since `flush`; StoreError if that fails or takes longer."""
        self._pusher.set_deadline(within_s)
        self._pusher.push(last=True)

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            try:
                self._pusher.push(last=False)
                self.beat()
                self._last_warning = ""
            except Exception as error:  # the task goes on, and the next upload may succeed
                problem = "upload not allowed" if isinstance(error, AccessError) else "not uploaded yet"
                self._warn(f"{problem}: {error}")

    def beat(self) -> None:
        """Write the heartbeat if this task's progress is the run's and the heartbeat is due."""
        if self._task and self._clock.monotonic() - self._last_beat >= _BEAT_S:
            self._last_beat = self._clock.monotonic()
            found = position(self._paths, self._task)
            progress = None if found is None else asdict(found)
            self._heartbeat.write({"supervised": True, "resumes": self._resumes, "progress": progress})

    def _warn(self, text: str) -> None:
        # Not the same sentence once a second.
        if text.partition(" It was tried")[0] != self._last_warning:
            self._last_warning = text.partition(" It was tried")[0]
            _log.info(text)
