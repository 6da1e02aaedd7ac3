"""Sends answers, with the faults that happen to them: late, slow, corrupted, in part or not at all."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..connections import Connections
from ..errors import DroppedError
from .call import Call, injected_error, throttle
from .downloads import MediaResponse
from .uploads import flip_byte


async def reply(
    call: Call, answer: Response, scope: Scope, receive: Receive, send: Send, connections: Connections
) -> int:
    """Send the answer with its faults, and return the status that was sent."""
    for fault in call.fired:
        if fault.kind == "stall" and fault.at == "after":
            await asyncio.sleep(fault.seconds)
        if fault.kind in ("drop_after", "status_after"):
            if isinstance(answer, MediaResponse):
                answer.close()
            if fault.kind == "drop_after":
                raise DroppedError
            answer = injected_error(fault).response()
    # TensorFlow looks for "Location" and "Range" as the real servers write them, capitals included.
    answer.raw_headers = [(name.title(), text) for name, text in answer.raw_headers]
    faulty = _FaultySend(call, answer, scope, send, connections)
    await answer(scope, receive, faulty.send if faulty.is_needed else send)
    return answer.status_code


class _FaultySend:
    def __init__(self, call: Call, answer: Response, scope: Scope, send: Send, connections: Connections) -> None:
        self._truncate, self._drip = call.fault("truncate"), call.fault("drip")
        self._corrupt = call.fault("corrupt") if isinstance(answer, MediaResponse) else None
        self._scope, self._send, self._connections = scope, send, connections
        self._sent = 0
        self._max_bytes = 0
        self.is_needed = bool(self._truncate or self._drip or self._corrupt)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._truncate is not None:
            length = dict(message["headers"]).get(b"Content-Length", b"0")
            self._max_bytes = int(length) // 2 if self._truncate.at_byte is None else self._truncate.at_byte
        if message["type"] == "http.response.body":
            message = {**message, "body": await self._body(message.get("body", b""))}
        await self._send(message)

    async def _body(self, body: bytes) -> bytes:
        """Apply the faults; return what is still to be sent in the usual way."""
        if self._corrupt is not None:
            body = flip_byte(body, (self._corrupt.at_byte or 0) - self._sent)
        start, self._sent = self._sent, self._sent + len(body)
        is_cut = self._truncate is not None and self._sent > self._max_bytes
        if is_cut:
            body = body[: self._max_bytes - start]
        if self._drip is not None:
            async for slice_ in throttle(body, self._drip.bytes_per_s):
                if self._connections.is_closed(self._scope):
                    raise DroppedError
                await self._send({"type": "http.response.body", "body": slice_, "more_body": True})
            body = b""
        if is_cut:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._connections.close_gracefully(self._scope)
            raise DroppedError
        return body
