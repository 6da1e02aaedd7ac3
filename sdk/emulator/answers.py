"""How every service but Cloud Storage answers a request: with its faults, and never with a parameter that it does not know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from . import messages
from .connections import Journal, fall_silent
from .errors import DroppedError, read_body, with_error_response, words
from .faults import About, Fault, FaultRules
from .vertex.errors import VertexApiError, invalid, unknown_name

# The parameters that every method of Google's APIs has.
HARMLESS = words("alt $alt prettyPrint $prettyPrint key quotaUser fields $.xgafv $httpMethod")


# Method, a pattern of the decoded path, operation, which may have {parts} of the path.
Routes = Sequence[tuple[str, str, str]]


@dataclass(kw_only=True)
class RestCall:
    """A request: its operation, the named parts of its path, the parameters of its query, its body, and its faults."""

    request: Request
    operation: str
    named: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes = b""
    created: dict[str, Any] = field(
        default_factory=dict
    )  # The resource in the body, where a service reads it beforehand
    fired: Sequence[Fault] = ()

    @property
    def project(self) -> str:
        return self.named.get("project", "")

    @property
    def region(self) -> str:
        return self.named.get("region", "")

    @property
    def id(self) -> str:
        return self.named.get("id", "")

    def check_fields(self, *allowed: str) -> None:
        """Reject a body with other fields."""
        for name in messages.read_object(self.body):
            if name not in allowed:
                raise unknown_name(name)

    def render(self, kind: str, resource: Any) -> Any:
        """Return a resource, or a list of them, in the form that the client has requested."""
        return messages.to_response(kind, resource, enum_numbers="enum-encoding=int" in self.query.get("$alt", ""))

    def page(self, kind: str, collection: str, listing: tuple[Sequence[dict[str, Any]], str]) -> dict[str, Any]:
        """Return the answer to a list call: a page, and the token of the next one, "" for none."""
        resources, token = listing
        answer: dict[str, Any] = {collection: self.render(f"{kind}[]", resources)} if resources else {}
        return {**answer, "nextPageToken": token} if token else answer


class RestService:
    """A service as an ASGI application: it performs a call, unless a fault keeps it from that."""

    routes: Routes
    # For the answer to a request that it does not serve.
    title, hint = "podlift's emulator", ""
    # The allowed query parameters of an operation, and of all operations.
    parameters: Mapping[str, AbstractSet[str]] = {}
    every_parameter: AbstractSet[str] = HARMLESS
    max_bytes = 1 << 20

    def __init__(self, faults: FaultRules, journal: Journal) -> None:
        self._faults, self._journal = faults, journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._journal.request(scope) as entry:
            response = await with_error_response(self.answer(Request(scope, receive), entry), VertexApiError)
            await response(scope, receive, send)
            entry["status"] = response.status_code

    @classmethod
    def serves(cls, path: str) -> bool:
        # Most requests are about objects.
        return path.startswith(("/v1/", "/v1beta1/")) and any(re.fullmatch(route[1], path) for route in cls.routes)

    def about(self, call: RestCall) -> About:
        """Return the subject of a call, once its body is read: faults are matched against it."""
        return About(call.id, call.region)

    def check_place(self, call: RestCall) -> None:
        """Reject a location that the service does not have."""

    async def perform(self, call: RestCall) -> dict[str, Any]:
        raise NotImplementedError

    async def answer(self, request: Request, entry: dict[str, Any]) -> Response:
        """Make the answer to a request, and complete its entry in the journal."""
        call = self._find_route(request)
        self.check_place(call)
        check_parameters(call.query, self.parameters.get(call.operation, self.every_parameter))
        entry["operation"] = call.operation
        call.body = await read_body(request.stream(), self.max_bytes, VertexApiError)
        about = self.about(call)
        entry["object"], call.fired = about.name, self._faults.for_request(call.operation, about)

        async def perform() -> Response:
            return JSONResponse(await self.perform(call))

        return await self.with_faults(request, entry, call.fired, perform)

    def _find_route(self, request: Request) -> RestCall:
        path = unquote(request.scope["raw_path"].decode("latin-1"))
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        for method, pattern, operation in self.routes:
            if method == request.method and (match := re.fullmatch(pattern, path, re.DOTALL)):
                named = match.groupdict()
                return RestCall(request=request, operation=operation.format(**named), named=named, query=query)
        # 405: gcloud repeats a request for half a minute after 501, and clients may create a resource after a 404.
        text = f"{self.title} does not serve {request.method} {path[:200]}.{self.hint}"
        raise VertexApiError(405, text, status="UNIMPLEMENTED")

    async def with_faults(
        self,
        request: Request,
        entry: dict[str, Any],
        fired: Sequence[Fault],
        perform: Callable[[], Awaitable[Response]],
    ) -> Response:
        """Return the answer of `perform`, changed by the faults of the request."""
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


def check_parameters(query: Mapping[str, str], allowed: AbstractSet[str]) -> None:
    for parameter in query:
        if parameter not in allowed:
            text = (
                f'Invalid JSON payload received. Unknown name "{parameter[:100]}": Cannot bind query parameter. '
                f"Field '{parameter[:100]}' could not be found in request message."
            )
            raise invalid([(parameter, text)])
