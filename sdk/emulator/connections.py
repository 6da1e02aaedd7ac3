"""The open connections of the server: how many may wait, how a fault cuts one, and a record of the requests on them."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect
from starlette.types import Scope

from ..ui.request_heads import RequestHeads
from .errors import DroppedError

_RESET = struct.pack("ii", 1, 0)
_RECENT = 10_000
# How soon the end of a silence is noticed.
_SILENT_S = 0.02


class Connections(RequestHeads):
    """The open connections of an emulator: an ASGI application has no other way to cut one."""

    def is_closed(self, scope: Scope) -> bool:
        transport = self.open.get(tuple(scope["client"]))
        return transport is None or bool(transport.is_closing())

    def reset(self, scope: Scope) -> None:
        transport = self.open.get(tuple(scope["client"]))
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    def close_gracefully(self, scope: Scope) -> None:
        transport = self.open.get(tuple(scope["client"]))
        if transport is not None:
            transport.close()


async def fall_silent(is_over: Callable[[], bool]) -> NoReturn:
    """Leave a request without an answer for as long as its client waits, then cut the connection."""
    while not is_over():
        await asyncio.sleep(_SILENT_S)
    raise DroppedError


class Journal:
    """Counts requests by operation and by status; a status of 0 is a connection that was cut or closed by the client."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._operations: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)

    @contextmanager
    def request(self, scope: Scope) -> Iterator[dict[str, Any]]:
        """Record the request that the block serves and that fills in the entry; reset its connection if a fault demands it."""
        entry: dict[str, Any] = {"operation": "unknown", "status": 0, "method": scope["method"], "path": scope["path"]}
        entry.update(object="", faults=[])
        began = time.perf_counter()
        try:
            yield entry
        except DroppedError:
            self.connections.reset(scope)
        except ClientDisconnect:
            pass
        finally:
            self._operations[entry["operation"]] += 1
            self._statuses[entry["status"]] += 1
            self._recent.append({**entry, "seconds": round(time.perf_counter() - began, 6)})

    def clear(self) -> None:
        for counts in (self._operations, self._statuses, self._recent):
            counts.clear()

    def to_json(self) -> dict[str, Any]:
        return {
            "total": sum(self._operations.values()),
            "operations": dict(self._operations),
            "statuses": {str(status): count for status, count in self._statuses.items()},
            "recent": list(self._recent),
        }
