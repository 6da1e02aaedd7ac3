"""Cloud Storage as an ASGI application: finds the operation of a request, has it performed and records it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from email.message import Message as MailMessage
from email.parser import BytesParser
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .. import access
from ..connections import Connections, Journal
from ..errors import DroppedError, with_error_response
from ..faults import FaultRules
from ..project.state import ProjectState
from . import buckets, downloads, objects, routes, uploads, xml
from .call import Call, Handler, throttle
from .downloads import MediaResponse
from .errors import StorageApiError, invalid
from .resumable import ResumableUploads
from .state import StorageState
from .uploads import flip_byte

_MAX_REQUESTS = 1000


class StorageApp:
    def __init__(self, state: StorageState, project: ProjectState, faults: FaultRules, journal: Journal) -> None:
        self._state, self._project, self._faults, self._journal = state, project, faults, journal
        self._uploads = ResumableUploads()
        self._handlers = _handlers(self._uploads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, connections = Request(scope, receive), self._journal.connections
        call = Call(
            state=self._state,
            project=self._project,
            faults=self._faults,
            method=request.method,
            raw_path=scope["raw_path"],
            raw_query=scope["query_string"],
            headers=_joined(request.headers.items()),
            base_url=access.base_url(scope),
            body=request.stream(),
            is_closed=lambda: connections.is_closed(scope),
        )
        with self._journal.request(scope) as entry:
            try:
                answer = await with_error_response(self._answer(call), StorageApiError)
                entry["status"] = await _reply(call, answer, scope, receive, send, connections)
            finally:
                entry.update(operation=call.route.operation, path=call.path, object=call.target)
                entry["faults"] = [fault.kind for fault in call.fired]

    async def _answer(self, call: Call) -> Response:
        call.route = routes.find(call.method, call.raw_path, call.query, call.headers)
        if call.route.operation == "batch":
            return await self._batch(call)
        return await self._handlers[call.route.operation](call)

    async def _batch(self, call: Call) -> Response:
        body = await call.read_all()
        await call.apply_faults("")
        head = f"Content-Type: {call.headers.get('content-type', '')}\r\n\r\n".encode()
        message = BytesParser().parsebytes(head + body)
        if not message.is_multipart():
            raise invalid("A batch is a multipart/mixed body with a request in each part.")
        parts = cast(list[MailMessage], message.get_payload())
        if len(parts) > _MAX_REQUESTS:
            raise invalid(f"A batch has at most {_MAX_REQUESTS} requests.")
        mark = f"batch_{uuid.uuid4().hex}"
        content = b""
        for part in parts:
            number = str(part.get("Content-ID", "")).strip("<>")
            try:
                answer = await self._answer_part(call, *_request(part))
            except StorageApiError as error:
                answer = error.response()
            content += f"--{mark}\r\n".encode() + _part(number, answer) + b"\r\n"
        headers = {"Content-Type": f"multipart/mixed; boundary={mark}"}
        return Response(content + f"--{mark}--\r\n".encode(), headers=headers)

    async def _answer_part(
        self, batch: Call, method: str, target: bytes, headers: dict[str, str], body: bytes
    ) -> Response:
        """Answer one request of a batch. No faults happen to it."""
        path, _, query = target.partition(b"?")
        # Some clients write the whole URL here, which begins with the URL of this emulator.
        path = path.removeprefix(urlsplit(batch.base_url).path.encode())
        call = Call(
            state=batch.state,
            project=batch.project,
            faults=FaultRules(),
            method=method,
            raw_path=path,
            raw_query=query,
            headers=headers,
            base_url=batch.base_url,
            body=_once(body),
            is_closed=batch.is_closed,
        )
        answer = await with_error_response(self._answer(call), StorageApiError)
        if isinstance(answer, downloads.MediaResponse):
            answer.close()
            raise invalid("A batch cannot download.")
        return answer

    def clear(self) -> None:
        self._uploads.close()
        self._state.clear()


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _handlers(resumable: ResumableUploads) -> dict[str, Handler]:
    return {
        "buckets.list": buckets.list_buckets,
        "buckets.insert": buckets.insert,
        "buckets.get": buckets.get,
        "buckets.patch": buckets.patch,
        "buckets.update": buckets.patch,
        "buckets.delete": buckets.delete,
        "buckets.layout": buckets.layout,
        "buckets.permissions": buckets.permissions,
        "buckets.policy": buckets.policy,
        "buckets.set_policy": buckets.set_policy,
        "buckets.managed_folders": buckets.managed_folders,
        "buckets.folders": buckets.folders,
        "objects.list": objects.list_objects,
        "objects.insert": uploads.insert,
        "objects.get": objects.get,
        "objects.download": downloads.download,
        "objects.patch": objects.patch,
        "objects.update": objects.patch,
        "objects.delete": objects.delete,
        "objects.compose": objects.compose,
        "objects.rewrite": objects.copy,
        "objects.copy": objects.copy,
        "objects.move": objects.move,
        "uploads.start": resumable.start,
        "uploads.chunk": resumable.chunk,
        "uploads.status": resumable.chunk,
        "uploads.cancel": resumable.cancel,
        "xml.get": xml.get,
        "xml.put": xml.put,
        "xml.delete": xml.delete,
        "xml.start": xml.start,
        "xml.part": xml.part,
        "xml.complete": xml.complete,
        "xml.abort": xml.abort,
    }


def _joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers with all values of one name as one list, as HTTP reads them: every declared hash counts."""
    headers: dict[str, str] = {}
    for name, text in pairs:
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return headers


def _part(number: str, answer: Response) -> bytes:
    lines = [
        "Content-Type: application/http",
        *([f"Content-ID: <response-{number}>"] if number else []),
        "",
        f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}",
        f"Content-Type: {answer.headers.get('content-type', 'text/plain')}",
        f"Content-Length: {len(answer.body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + bytes(answer.body)


def _request(part: MailMessage) -> tuple[str, bytes, dict[str, str], bytes]:
    payload = part.get_payload(decode=True)
    text = payload if isinstance(payload, bytes) else b""
    head, _, body = text.replace(b"\r\n", b"\n").lstrip(b"\n").partition(b"\n\n")
    line, _, rest = head.partition(b"\n")
    words = line.split(b" ")
    if len(words) != 3:
        raise invalid(f"A part of the batch does not begin with a request: {line[:100]!r}.")
    pairs = (header.partition(":") for header in rest.decode("latin-1").split("\n") if header)
    headers = _joined((name.strip().lower(), value.strip()) for name, _, value in pairs)
    target = words[1]
    if target.startswith((b"http://", b"https://")):
        target = b"/" + target.split(b"/", 3)[-1]
    return words[0].decode("latin-1").upper(), target, headers, body


async def _reply(
    call: Call, answer: Response, scope: Scope, receive: Receive, send: Send, connections: Connections
) -> int:
    """Send the answer with its faults, and return the status that was sent."""
    for fault in call.fired:
        if fault.kind == "stall" and fault.at == "after":
            await asyncio.sleep(fault.seconds or 0.0)
        if fault.kind in ("drop_after", "status_after", "silent_after"):
            if isinstance(answer, MediaResponse):
                answer.close()
            if fault.kind == "drop_after":
                raise DroppedError
            if fault.kind == "silent_after":
                await call.fall_silent(fault)
            answer = fault.error(StorageApiError, call.route.operation).response()
    # TensorFlow expects "Location" and "Range" as the real servers write them, capitals included.
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
        """Apply the faults; return the bytes that are still to be sent in the usual way."""
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
