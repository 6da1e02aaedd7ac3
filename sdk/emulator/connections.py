"""The open connections of the server: how many may wait, how a fault cuts one, and a record of the requests on them."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import h11
from starlette.requests import ClientDisconnect
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import DroppedError

# How long a client may take to send the head of a request, and how many clients may be waiting for theirs.
HEAD_S = 10.0
_MAX_WAITING = 128
_RESET = struct.pack("ii", 1, 0)
_RECENT = 10_000
# How soon the end of a silence is noticed.
_SILENT_S = 0.02


class Connections:
    """The open connections by the client's address: an ASGI application has no other way to cut one.

    A connection without a request is cut after `head_s` seconds, and the oldest of them when there are more than
    `_MAX_WAITING`, so that a client that opens many keeps no other client out. At most `max_admitted` clients that have
    shown the token may be connected: by default half of the files that this process may open.
    """

    def __init__(self, head_s: float = HEAD_S, max_admitted: int | None = None) -> None:
        self._open: dict[Any, Any] = {}
        self._waiting: dict[Any, Any] = {}
        self._head_s = head_s
        self._max_admitted = max_admitted or max(_MAX_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def protocol(self) -> type[H11Protocol]:
        connections = self

        class WatchedProtocol(H11Protocol):
            head_timer: asyncio.TimerHandle | None = None

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                waiting = connections._waiting
                connections._open[self.client] = waiting[self.client] = transport
                if len(waiting) > _MAX_WAITING:
                    waiting.pop(next(iter(waiting))).abort()
                self.limit_head()

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self.limit_head()

            def on_response_complete(self) -> None:
                super().on_response_complete()
                self.limit_head()

            def limit_head(self) -> None:
                """Limit the time of a head, from the connection or its first byte on; a client may idle between requests."""
                idle = self.conn.their_state is h11.IDLE
                if idle and (self.cycle is None or self.conn.trailing_data[0]):
                    delay_s = connections._head_s
                    self.head_timer = self.head_timer or self.loop.call_later(delay_s, self.transport.abort)
                elif self.head_timer is not None:
                    self.head_timer.cancel()
                    self.head_timer = None

            def connection_lost(self, exc: Exception | None) -> None:
                connections._open.pop(self.client, None)
                connections._waiting.pop(self.client, None)
                if self.head_timer is not None:
                    self.head_timer.cancel()
                super().connection_lost(exc)

        return WatchedProtocol

    def admit(self, scope: Scope) -> bool:
        """Admit the client of a request that has shown the token; False if too many are admitted."""
        if self._waiting.pop(tuple(scope["client"]), None) is None:
            return True
        return len(self._open) - len(self._waiting) <= self._max_admitted

    def is_closed(self, scope: Scope) -> bool:
        transport = self._open.get(tuple(scope["client"]))
        return transport is None or bool(transport.is_closing())

    def reset(self, scope: Scope) -> None:
        transport = self._open.get(tuple(scope["client"]))
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    def close_gracefully(self, scope: Scope) -> None:
        transport = self._open.get(tuple(scope["client"]))
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
        """Record the request that the block serves and that fills in the entry; reset its connection if a fault says so."""
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
        for each in (self._operations, self._statuses, self._recent):
            each.clear()

    def to_json(self) -> dict[str, Any]:
        return {
            "total": sum(self._operations.values()),
            "operations": dict(self._operations),
            "statuses": {str(status): count for status, count in self._statuses.items()},
            "recent": list(self._recent),
        }
