"""What was asked of the emulator: counts for tests and benchmarks, and the last requests themselves."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

_KEPT = 10_000


@dataclass(kw_only=True)
class Journal:
    """Counts requests by operation and by status; a status of 0 is a connection that was cut or left."""

    counts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def record(self, *, operation: str, status: int, **more: Any) -> None:
        """Count one request."""
        self.counts[operation] += 1
        self.statuses[status] += 1
        self.recent.append({"operation": operation, "status": status, **more})

    def clear(self) -> None:
        """Begin to count anew."""
        self.counts.clear()
        self.statuses.clear()
        self.recent.clear()

    def to_json(self) -> dict[str, Any]:
        """Return the counts and the last requests, the oldest first."""
        statuses = {str(status): count for status, count in self.statuses.items()}
        return {
            "total": sum(self.counts.values()),
            "operations": dict(self.counts),
            "statuses": statuses,
            "recent": list(self.recent),
        }
