"""Sends answers as they should not be sent: late, slowly, damaged, in part or not at all."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from typing import Any

import h11
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .call import Call, injected_error, throttle
from .downloads import MediaResponse
from .errors import DroppedError
from .uploads import flip_byte

# How long a client may take for the head of a request, in seconds, and how many of them are waited for.
HEAD_S = 10.0
_MAX_WAITING = 128
_RESET = struct.pack("ii", 1, 0)


class Connections:
    """The open connections by the client's address: an ASGI application has no other way to cut one.

    One without a request yet is cut after `head_s` seconds, and the oldest of them as soon as there are more than
    `_MAX_WAITING`: whoever opens many keeps no other client out.

    Args:
        head_s: how long the head of a request may take.
        most: how many clients that were let in may be connected; half of the files that this process may open by default.
    """

    def __init__(self, head_s: float = HEAD_S, most: int | None = None) -> None:
        self._open: dict[tuple[str, int], Any] = {}
        self._waiting: dict[tuple[str, int], Any] = {}
        self._head_s = head_s
        self._most = most or max(_MAX_WAITING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def protocol(self) -> type[H11Protocol]:
        """Return the protocol with which the server has to be started."""
        connections = self

        class Connection(H11Protocol):
            head: asyncio.TimerHandle | None = None

            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                connections.add(self.client, transport)
                self.watch()

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                self.watch()

            def on_response_complete(self) -> None:
                super().on_response_complete()
                self.watch()

            def watch(self) -> None:
                """Limit the time of a head, from the connection or its first byte on; a client may rest between requests."""
                idle = self.conn.their_state is h11.IDLE
                if idle and (self.cycle is None or self.conn.trailing_data[0]):
                    self.head = self.head or self.loop.call_later(connections._head_s, self.transport.abort)
                elif self.head is not None:
                    self.head.cancel()
                    self.head = None

            def connection_lost(self, exc: Exception | None) -> None:
                connections.remove(self.client)
                if self.head is not None:
                    self.head.cancel()
                super().connection_lost(exc)

        return Connection

    def add(self, client: Any, transport: Any) -> None:
        """Take a new connection over; the oldest of too many without a request is cut."""
        self._open[client] = self._waiting[client] = transport
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.pop(next(iter(self._waiting))).abort()

    def admit(self, scope: Scope) -> bool:
        """Let the client of a request in, which has shown the token; False if too many were let in already."""
        if self._waiting.pop(tuple(scope["client"]), None) is None:
            return True
        return len(self._open) - len(self._waiting) <= self._most

    def remove(self, client: Any) -> None:
        """Forget a connection."""
        self._open.pop(client, None)
        self._waiting.pop(client, None)

    def is_gone(self, scope: Scope) -> bool:
        """True if the client has left."""
        transport = self._open.get(tuple(scope["client"]))
        return transport is None or bool(transport.is_closing())

    def reset(self, scope: Scope) -> None:
        """Cut the connection at once; the client sees a reset."""
        transport = self._open.get(tuple(scope["client"]))
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    def close_gracefully(self, scope: Scope) -> None:
        """Cut the connection behind what was sent."""
        transport = self._open.get(tuple(scope["client"]))
        if transport is not None:
            transport.close()


async def reply(
    call: Call, answer: Response, scope: Scope, receive: Receive, send: Send, connections: Connections
) -> int:
    """Send the answer, or do to it what the faults want; return the status that was sent.

    Raises:
        DroppedError: nothing is to be sent, or nothing more.
    """
    for fault in call.fired:
        if fault.kind == "stall" and fault.at == "after":
            await asyncio.sleep(fault.seconds)
        if fault.kind in ("drop_after", "status_after"):
            if isinstance(answer, MediaResponse):
                answer.close()
            if fault.kind == "drop_after":
                raise DroppedError
            answer = injected_error(fault).response()
    # TensorFlow looks for "Location" and "Range" as the real servers write them, capitals and all.
    answer.raw_headers = [(name.title(), text) for name, text in answer.raw_headers]
    faulty = _FaultySend(call, answer, scope, send, connections)
    await answer(scope, receive, faulty.send if faulty.wanted else send)
    return answer.status_code


class _FaultySend:
    def __init__(self, call: Call, answer: Response, scope: Scope, send: Send, connections: Connections) -> None:
        self._truncate = call.fault("truncate")
        self._drip = call.fault("drip")
        self._corrupt = call.fault("corrupt") if isinstance(answer, MediaResponse) else None
        self._call = call
        self._scope = scope
        self._send = send
        self._connections = connections
        self._sent = 0
        self._limit = 0
        self.wanted = bool(self._truncate or self._drip or self._corrupt)

    async def send(self, message: Message) -> None:
        """Stand in for the server's own `send`."""
        if message["type"] == "http.response.start" and self._truncate is not None:
            length = dict(message["headers"]).get(b"Content-Length", b"0")
            self._limit = int(length) // 2 if self._truncate.at_byte is None else self._truncate.at_byte
        if message["type"] == "http.response.body":
            message = {**message, "body": await self._body(message.get("body", b""))}
        await self._send(message)

    async def _body(self, body: bytes) -> bytes:
        """Return what is left to be sent in the usual way."""
        if self._corrupt is not None:
            body = flip_byte(body, (self._corrupt.at_byte or 0) - self._sent)
        start, self._sent = self._sent, self._sent + len(body)
        cut = self._truncate is not None and self._sent > self._limit
        if cut:
            body = body[: self._limit - start]
        if self._drip is not None:
            async for drop in throttle(body, self._drip.bytes_per_s):
                if self._connections.is_gone(self._scope):
                    raise DroppedError
                await self._send({"type": "http.response.body", "body": drop, "more_body": True})
            body = b""
        if cut:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._connections.close_gracefully(self._scope)
            raise DroppedError
        return body
