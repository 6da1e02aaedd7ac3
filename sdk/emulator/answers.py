"""How Vertex AI and Cloud Scheduler answer a request: with its faults, and never with a parameter that they do not know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .connections import Journal, fall_silent
from .errors import DroppedError, with_error_response, words
from .faults import Fault, FaultRules
from .vertex.errors import VertexApiError, invalid

# The parameters that every method of Google's APIs has.
HARMLESS = words("alt $alt prettyPrint $prettyPrint key quotaUser fields $.xgafv $httpMethod")


async def serve(
    scope: Scope,
    receive: Receive,
    send: Send,
    journal: Journal,
    answer: Callable[[Request, dict[str, Any]], Awaitable[Response]],
) -> None:
    """Send what `answer` makes of a request and its entry in the journal."""
    with journal.request(scope) as entry:
        response = await with_error_response(answer(Request(scope, receive), entry), VertexApiError)
        await response(scope, receive, send)
        entry["status"] = response.status_code


def check_parameters(query: Mapping[str, str], known: AbstractSet[str]) -> None:
    for parameter in query:
        if parameter not in known:
            text = (
                f'Invalid JSON payload received. Unknown name "{parameter[:100]}": Cannot bind query parameter. '
                f"Field '{parameter[:100]}' could not be found in request message."
            )
            raise invalid([(parameter, text)])


async def answer_with_faults(
    request: Request,
    entry: dict[str, Any],
    fired: Sequence[Fault],
    rules: FaultRules,
    journal: Journal,
    perform: Callable[[], Awaitable[Response]],
) -> Response:
    """Return the answer that `perform` makes, or what the faults that the request meets leave of it."""
    entry["faults"] = [fault.kind for fault in fired]

    async def silence(fault: Fault) -> None:
        await fall_silent(lambda: journal.connections.is_closed(request.scope) or not rules.has(fault))

    for fault in fired:
        if fault.kind == "latency":
            await asyncio.sleep(fault.seconds or 0.0)
        elif fault.kind == "drop_before":
            raise DroppedError
        elif fault.kind == "silent_before":
            await silence(fault)
        elif fault.kind in ("status_before", "deny"):
            raise fault.error(VertexApiError, entry["operation"])
    answer = await perform()
    for fault in fired:
        if fault.kind == "drop_after":
            raise DroppedError
        if fault.kind == "silent_after":
            await silence(fault)
        if fault.kind == "status_after":
            raise fault.error(VertexApiError, entry["operation"])
    return answer
