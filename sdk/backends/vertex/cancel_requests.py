"""Cancel requests for a run in a bucket: its tasks read them, and clients enforce them."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from ...clock import Clock
from ...storage.gcs.store import GcsStore
from .create_job import KEYS

# The job is cancelled this long after the end of the requested grace.
_CANCEL_MARGIN_S = 15.0


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """One request. All is 0 in one that cannot be read, which still asks for the end of the run."""

    requested_at: float = 0.0
    grace_s: float = 0.0

    def is_due(self, now: float) -> bool:
        """True once the tasks should have ended, so that only cancelling the job helps."""
        return now >= self.requested_at + self.grace_s + _CANCEL_MARGIN_S


def write(store: GcsStore, number: int, grace_s: float, clock: Clock) -> None:
    request = json.dumps({"grace_s": float(grace_s), "requested_at": clock.now()}).encode()
    store.put_new(KEYS.remote_cancel_request(number - 1, uuid.uuid4().hex[:12]), [request])


def read(store: GcsStore, number: int) -> list[CancelRequest]:
    prefix = KEYS.remote_cancel_request(number - 1, "").removesuffix(".cancel.json")
    return [_parsed(bytes(store.get(stat.key))) for stat in store.list(prefix)]


def _parsed(data: bytes) -> CancelRequest:
    try:
        found = json.loads(data)
        return CancelRequest(requested_at=float(found["requested_at"]), grace_s=float(found["grace_s"]))
    except (ValueError, TypeError, LookupError):
        return CancelRequest()
