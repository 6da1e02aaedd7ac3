"""When a job is attempted: the slots of its schedule, and retries. Pure.

An execution is one slot with its retries. Where Cloud Scheduler's documentation is ambiguous or silent, this file decides:
retries continue beyond the next slot, which is then skipped; a request that takes longer than until the next slot delays it;
of several slots that pass meanwhile, only the latest is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from ..messages import duration_s
from .bodies import cron, zone

# Beyond it, every backoff is the longest one.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The next attempt of a job. Times are Unix times in seconds."""

    slot: float
    at: float  # Of the attempt; differs from `slot` for a retry, and for a delivery that is early or late
    first: float | None = None  # Of the first attempt; None before it
    retries: int = 0  # The number of this retry, 0 for the first attempt

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Execution:
        return cls(**record)


def next_slot(job: Mapping[str, Any], after: float) -> float:
    """Return the first slot after a time."""
    slot: datetime = next(cron(job).after(_instant(after)))
    return slot.timestamp()


def slot_text(job: Mapping[str, Any], slot: float) -> str:
    """Return a slot as RFC 3339 has it, with the offset of the job's zone."""
    text = _instant(slot).astimezone(zone(job)).isoformat()
    return f"{text.removesuffix('+00:00')}Z" if text.endswith("+00:00") else text


def backoff_s(config: Mapping[str, Any], retry: int) -> float:
    """Return how long to wait before a retry, which is counted from 0: doubled, then increased linearly, up to a maximum."""
    # Zero stands for the default, as for every number of the API.
    least, most = duration_s(config["minBackoffDuration"]) or 5.0, duration_s(config["maxBackoffDuration"]) or 3600.0
    doublings: int = config.get("maxDoublings", 0)
    waited: float = least * 2.0 ** min(retry, doublings, _MAX_DOUBLINGS) * max(retry - doublings + 1, 1)
    return min(waited, most)


def retried(job: Mapping[str, Any], execution: Execution, began: float, ended: float) -> Execution | None:
    """Return the retry of a failed attempt, None if there is none.

    A job with a retry count and a maximum duration is retried until both limits are reached.
    """
    config, first = job["retryConfig"], began if execution.first is None else execution.first
    at = ended + backoff_s(config, execution.retries)
    limit_s = duration_s(config["maxRetryDuration"])
    if execution.retries >= config.get("retryCount", 0) and at - first >= limit_s:
        return None
    return replace(execution, at=at, first=first, retries=execution.retries + 1)


def following_slot(job: Mapping[str, Any], execution: Execution, ended: float) -> float:
    """Return the slot after an execution that has ended."""
    if execution.retries:
        return next_slot(job, max(execution.slot, ended))
    latest = cron(job).latest(_instant(ended))
    passed = latest is not None and latest.timestamp() > execution.slot
    return latest.timestamp() if latest is not None and passed else next_slot(job, execution.slot)


def _instant(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, timezone.utc)
