"""The application: finds out what is asked for, has it answered and notes it."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator, Awaitable
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ...errors import InputError
from .. import administration, door
from . import batch, buckets, downloads, faults, objects, routes, uploads, xml
from .call import Call, Handler
from .errors import DroppedError, StorageApiError, invalid
from .faults import StorageFaults
from .journal import Journal
from .replies import Connections, reply
from .sessions import ResumableUploads
from .state import StorageState


class StorageApp:
    """The emulator as an ASGI application.

    Args:
        state: what is stored.
        rules: what goes wrong.
        connections: those of the server that runs it.
        journal: where requests are noted, if others note theirs there too.
    """

    def __init__(
        self, state: StorageState, rules: StorageFaults, connections: Connections, journal: Journal | None = None
    ) -> None:
        self._state = state
        self._rules = rules
        self._connections = connections
        self._journal = journal or Journal()
        self._uploads = ResumableUploads()
        self._handlers = _handlers(self._uploads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if scope["path"].startswith("/_"):
            answer = await _guarded(self._administer(request))
            await answer(scope, receive, send)
        else:
            await self._serve(request, send)

    async def _serve(self, request: Request, send: Send) -> None:
        began, status = time.perf_counter(), 0
        scope = request.scope
        call = _unrouted(self._state, self._rules, request, self._connections)
        try:
            answer = await _guarded(self._answer(call))
            status = await reply(call, answer, scope, request.receive, send, self._connections)
        except DroppedError:
            self._connections.reset(scope)
        except ClientDisconnect:
            pass
        finally:
            self._journal.record(
                operation=call.route.operation,
                status=status,
                method=call.method,
                path=call.path,
                object=call.target,
                faults=[fault.kind for fault in call.fired],
                seconds=round(time.perf_counter() - began, 6),
            )

    async def _answer(self, call: Call) -> Response:
        call.route = routes.find(call.method, call.raw_path, call.query, call.headers)
        if call.route.operation == "batch":
            return await batch.batch(call, lambda *words: self._inner(call, *words))
        return await self._handlers[call.route.operation](call)

    async def _inner(self, outer: Call, method: str, target: bytes, headers: dict[str, str], body: bytes) -> Response:
        """Answer one request of a batch."""
        path, _, query = target.partition(b"?")
        # Some clients write the whole URL there, which begins as that of this emulator.
        path = path.removeprefix(urlsplit(outer.base_url).path.encode())
        call = Call(
            state=outer.state,
            rules=StorageFaults(),
            method=method,
            raw_path=path,
            raw_query=query,
            headers=headers,
            base_url=outer.base_url,
            body=_once(body),
            is_gone=outer.is_gone,
        )
        answer = await _guarded(self._answer(call))
        if isinstance(answer, downloads.MediaResponse):
            answer.close()
            raise invalid("A batch cannot download.")
        return answer

    def clear(self) -> None:
        """Forget everything: what is stored, what goes wrong, what was asked."""
        self._uploads.close()
        self._state.clear()
        self._rules.replace([])
        self._journal.clear()

    async def _administer(self, request: Request) -> Response:
        """Answer what tests ask of the emulator itself."""
        asked, body = (request.method, request.url.path), await administration.read_body(request)
        if asked == ("POST", "/_faults"):
            try:
                self._rules.replace(faults.parse(body))
            except InputError as error:
                return JSONResponse({"problems": list(error.problems)}, 400)
        elif asked == ("POST", "/_reset"):
            self.clear()
        elif asked == ("DELETE", "/_requests"):
            self._journal.clear()
        elif asked == ("GET", "/_requests"):
            return JSONResponse(self._journal.to_json())
        elif asked != ("GET", "/_faults"):
            known = "GET /_faults, POST /_faults, GET /_requests, DELETE /_requests, POST /_reset"
            return JSONResponse({"problems": [f"Unknown: {' '.join(asked)}. Known: {known}."]}, 404)
        return JSONResponse({"faults": self._rules.to_json()})


def _unrouted(state: StorageState, rules: StorageFaults, request: Request, connections: Connections) -> Call:
    scope = request.scope
    return Call(
        state=state,
        rules=rules,
        method=request.method,
        raw_path=scope["raw_path"],
        raw_query=scope["query_string"],
        headers={name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]},
        base_url=door.base_url(scope),
        body=request.stream(),
        is_gone=lambda: connections.is_gone(scope),
    )


async def _guarded(work: Awaitable[Response]) -> Response:
    """Return the answer, also if it is an error."""
    try:
        return await work
    except StorageApiError as error:
        return error.response()
    except (DroppedError, ClientDisconnect):
        raise
    except Exception as error:
        traceback.print_exc()
        return StorageApiError(500, "internalError", f"{type(error).__name__}: {error}").response()


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
