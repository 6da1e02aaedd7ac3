"""Cloud Storage as an ASGI application: finds the operation of a request, has it performed and records it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .. import access
from ..connections import Connections
from ..errors import with_error_response
from ..journal import Journal
from . import batch, buckets, downloads, objects, routes, uploads, xml
from .call import Call, Handler
from .errors import StorageApiError, invalid
from .faults import StorageFaults
from .replies import reply
from .resumable import ResumableUploads
from .state import StorageState


class StorageApp:
    """Answers requests to Cloud Storage."""

    def __init__(self, state: StorageState, connections: Connections, journal: Journal) -> None:
        self.faults = StorageFaults()
        self._state, self._connections, self._journal = state, connections, journal
        self._uploads = ResumableUploads()
        self._handlers = _handlers(self._uploads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call(Request(scope, receive))
        with self._journal.request(scope, self._connections) as entry:
            try:
                answer = await with_error_response(self._answer(call), _internal)
                entry["status"] = await reply(call, answer, scope, receive, send, self._connections)
            finally:
                entry.update(operation=call.route.operation, path=call.path, object=call.target)
                entry["faults"] = [fault.kind for fault in call.fired]

    async def _answer(self, call: Call) -> Response:
        call.route = routes.find(call.method, call.raw_path, call.query, call.headers)
        if call.route.operation == "batch":
            return await batch.batch(call, lambda *request: self._answer_part(call, *request))
        return await self._handlers[call.route.operation](call)

    async def _answer_part(
        self, batch: Call, method: str, target: bytes, headers: dict[str, str], body: bytes
    ) -> Response:
        """Answer one request of a batch. No faults happen to it."""
        path, _, query = target.partition(b"?")
        # Some clients write the whole URL here, which begins with that of this emulator.
        path = path.removeprefix(urlsplit(batch.base_url).path.encode())
        call = Call(
            state=batch.state,
            faults=StorageFaults(),
            method=method,
            raw_path=path,
            raw_query=query,
            headers=headers,
            base_url=batch.base_url,
            body=_once(body),
            is_closed=batch.is_closed,
        )
        answer = await with_error_response(self._answer(call), _internal)
        if isinstance(answer, downloads.MediaResponse):
            answer.close()
            raise invalid("A batch cannot download.")
        return answer

    def clear(self) -> None:
        """Remove everything that is stored, and all faults."""
        self._uploads.close()
        self._state.clear()
        self.faults.replace([])

    def _call(self, request: Request) -> Call:
        scope = request.scope
        return Call(
            state=self._state,
            faults=self.faults,
            method=request.method,
            raw_path=scope["raw_path"],
            raw_query=scope["query_string"],
            headers={name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]},
            base_url=access.base_url(scope),
            body=request.stream(),
            is_closed=lambda: self._connections.is_closed(scope),
        )


def _internal(text: str) -> StorageApiError:
    return StorageApiError(500, "internalError", text)


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
