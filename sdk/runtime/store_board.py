"""The board of tasks that share a bucket, on which they agree on steps: see `rendezvous`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..clock import Clock
from ..errors import MissingError
from ..job.layout import RunPaths
from ..job.payload import Payload
from ..job.wire import parsed
from ..records.sync.cancels import CancelWatch
from ..storage.registry import open_store
from ..storage.retry import RetryPolicy
from ..storage.store import Store, create

_CANCEL_S = 5.0
_RETRY = RetryPolicy(connect_s=5.0, read_s=20.0, total_s=60.0, first_s=30.0)


class StoreBoard:
    """A folder in the run's directory of the bucket. Each call is a request that the service bills."""

    is_instant = False

    def __init__(self, payload: Payload, clock: Clock, store: Store | None = None) -> None:
        self._payload, self._clock, self._store = payload, clock, store
        self._folder = RunPaths("").rendezvous(payload.attempt)
        self._cancels: CancelWatch | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = open_store(self._payload.bucket_url, retry=_RETRY)
        return self._store

    def create(self, name: str, content: Mapping[str, object]) -> bool:
        return create(self.store, f"{self._folder}/{name}", json.dumps(content).encode())

    def read(self, name: str) -> Mapping[str, object] | None:
        try:
            content: dict[str, object] = parsed(bytes(self.store.get(f"{self._folder}/{name}")))
        except MissingError:
            return None
        return content

    def names(self, folder: str) -> list[str]:
        return [stat.key.rpartition("/")[2] for stat in self.store.list(f"{self._folder}/{folder}/")]

    def is_stop_requested(self) -> bool:
        if self._cancels is None:
            resumes, since = self._payload.resumes, self._payload.resumes_by_users
            self._cancels = CancelWatch(self.store, self._clock, resumes, since, every_s=_CANCEL_S)
        return bool(self._cancels.look())
