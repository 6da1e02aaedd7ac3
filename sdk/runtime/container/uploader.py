"""Uploads what one task writes, records and metrics, from its container to the run's directory while it runs."""

from __future__ import annotations

from functools import partial

from ...clock import Clock
from ...records.sync.periodic import PeriodicAction, PeriodicThread
from ...records.sync.push import Pusher
from ...spec.layout import RunPaths

_EVERY_S, _BEAT_S = 1.0, 10.0


class ContainerUploader(PeriodicThread):
    """Uploads once a second, from `start` to `flush`.

    Args:
        paths: the run's folder in this container.
        url: the run's directory in the bucket.
        task: the task whose progress is the run's, to be written to the heartbeat; "" for none.
        resumes: how often the run was resumed.
    """

    def __init__(self, paths: RunPaths, url: str, clock: Clock, *, task: str = "", resumes: int = 0) -> None:
        self._pusher = Pusher(paths, url, clock, one_task=True)
        actions = [PeriodicAction(_EVERY_S, "upload", partial(self._pusher.push, last=False))]
        if task:
            beat = partial(self._pusher.write_heartbeat, task, supervised=True, resumes=resumes)
            actions.append(PeriodicAction(_BEAT_S, "heartbeat", beat, due=clock.monotonic() + _BEAT_S))
        super().__init__(actions, clock)

    def flush(self, within_s: float) -> None:
        """Stop the thread and upload everything that exists now; StoreError if that fails or takes longer."""
        self._pusher.set_deadline(within_s)
        self.stop(within_s)
        self._pusher.push(last=False)

    def finish(self, within_s: float) -> None:
        """Upload what was written since `flush`; StoreError if that fails or takes longer."""
        self._pusher.set_deadline(within_s)
        self._pusher.push(last=True)
