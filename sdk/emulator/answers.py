"""How every service but Cloud Storage answers a request: with its faults, and never with a parameter that it does not know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .connections import Journal, fall_silent
from .errors import DroppedError, with_error_response, words
from .faults import Fault, FaultRules
from .vertex.errors import VertexApiError, invalid

# The parameters that every method of Google's APIs has.
HARMLESS = words("alt $alt prettyPrint $prettyPrint key quotaUser fields $.xgafv $httpMethod")


# Method, a pattern of the decoded path, operation.
Routes = Sequence[tuple[str, str, str]]


class RestService:
    """A service as an ASGI application: `answer` makes the answer to a request, and completes its entry in the journal."""

    routes: Routes
    # For the answer to a request that it does not serve.
    title, hint = "podlift's emulator", ""

    def __init__(self, faults: FaultRules, journal: Journal) -> None:
        self._faults, self._journal = faults, journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._journal.request(scope) as entry:
            response = await with_error_response(self.answer(Request(scope, receive), entry), VertexApiError)
            await response(scope, receive, send)
            entry["status"] = response.status_code

    async def answer(self, request: Request, entry: dict[str, Any]) -> Response:
        raise NotImplementedError

    def find_route(self, request: Request) -> tuple[str, dict[str, str], dict[str, str]]:
        """Return the operation of a request, the named parts of its path, and the parameters of its query."""
        path = unquote(request.scope["raw_path"].decode("latin-1"))
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        for method, pattern, operation in self.routes:
            if method == request.method and (match := re.fullmatch(pattern, path, re.DOTALL)):
                return operation, match.groupdict(), query
        # 405: gcloud repeats a request for half a minute after 501, and clients may create what 404 says is missing.
        text = f"{self.title} does not serve {request.method} {path[:200]}.{self.hint}"
        raise VertexApiError(405, text, status="UNIMPLEMENTED")

    async def with_faults(
        self,
        request: Request,
        entry: dict[str, Any],
        fired: Sequence[Fault],
        perform: Callable[[], Awaitable[Response]],
    ) -> Response:
        """Return the answer that `perform` makes, or what the faults that the request meets leave of it."""
        entry["faults"] = [fault.kind for fault in fired]
        for fault in fired:
            if fault.kind == "latency":
                await asyncio.sleep(fault.seconds or 0.0)
            elif fault.kind == "drop_before":
                raise DroppedError
            elif fault.kind == "silent_before":
                await self._fall_silent(request, fault)
            elif fault.kind in ("status_before", "deny"):
                raise fault.error(VertexApiError, entry["operation"])
        answer = await perform()
        for fault in fired:
            if fault.kind == "drop_after":
                raise DroppedError
            if fault.kind == "silent_after":
                await self._fall_silent(request, fault)
            if fault.kind == "status_after":
                raise fault.error(VertexApiError, entry["operation"])
        return answer

    async def _fall_silent(self, request: Request, fault: Fault) -> None:
        connections = self._journal.connections
        await fall_silent(lambda: connections.is_closed(request.scope) or not self._faults.has(fault))


def check_parameters(query: Mapping[str, str], known: AbstractSet[str]) -> None:
    for parameter in query:
        if parameter not in known:
            text = (
                f'Invalid JSON payload received. Unknown name "{parameter[:100]}": Cannot bind query parameter. '
                f"Field '{parameter[:100]}' could not be found in request message."
            )
            raise invalid([(parameter, text)])
