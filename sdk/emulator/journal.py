"""The requests that the emulator has served: counts for tests and benchmarks, and the last requests themselves."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Scope

from .connections import Connections
from .errors import DroppedError

_RECENT = 10_000


class Journal:
    """Counts requests by operation and by status; a status of 0 is a connection that was cut or closed by the client."""

    def __init__(self) -> None:
        self._operations: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)

    @contextmanager
    def request(self, scope: Scope, connections: Connections) -> Iterator[dict[str, Any]]:
        """Record the request that the block serves and that fills in the entry; reset its connection if a fault says so."""
        entry: dict[str, Any] = {"operation": "unknown", "status": 0, "method": scope["method"], "path": scope["path"]}
        entry.update(object="", faults=[])
        began = time.perf_counter()
        try:
            yield entry
        except DroppedError:
            connections.reset(scope)
        except ClientDisconnect:
            pass
        finally:
            self._operations[entry["operation"]] += 1
            self._statuses[entry["status"]] += 1
            self._recent.append({**entry, "seconds": round(time.perf_counter() - began, 6)})

    def clear(self) -> None:
        for each in (self._operations, self._statuses, self._recent):
            each.clear()

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the last requests with the oldest first."""
        return {
            "total": sum(self._operations.values()),
            "operations": dict(self._operations),
            "statuses": {str(status): count for status, count in self._statuses.items()},
            "recent": list(self._recent),
        }
