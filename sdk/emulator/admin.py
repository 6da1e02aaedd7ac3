"""Requests to the emulator itself: faults, recorded requests, the clock, and events that happen to running jobs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..errors import InputError, Problems
from . import errors
from .connections import Journal
from .faults import StorageFault, VertexFault, parse_storage_faults, parse_vertex_faults
from .gcs.app import StorageApp
from .gcs.errors import StorageApiError, internal_error
from .vertex import bodies
from .vertex.app import VertexApp
from .vertex.errors import invalid, not_found

MAX_BYTES = 1 << 20
_KNOWN = "GET /_faults, POST /_faults, GET /_requests, DELETE /_requests, POST /_reset"
_KNOWN_OF_VERTEX = "GET /_vertex/clock, POST /_vertex/clock, POST /_vertex/jobs/ID:preempt, :oom, :internal"


class Admin:
    def __init__(self, storage: StorageApp, vertex: VertexApp, journal: Journal) -> None:
        self._storage, self._vertex, self._journal = storage, vertex, journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await errors.with_error_response(self._answer(Request(scope, receive)), internal_error)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body = await _read(request)
        if request.url.path.startswith("/_vertex/"):
            return self._administer_jobs(request, body)
        endpoint = f"{request.method} {request.url.path}"
        if endpoint == "POST /_faults":
            try:
                of_storage, of_vertex = parse_faults(body)
            except InputError as error:
                return JSONResponse({"problems": list(error.problems)}, 400)
            self._storage.faults.replace(of_storage)
            self._vertex.faults.replace(of_vertex)
            self._vertex.scheduler.release_held()
        elif endpoint == "POST /_reset":
            await asyncio.to_thread(self._vertex.clear)
            self._storage.clear()
            self._journal.clear()
        elif endpoint == "DELETE /_requests":
            self._journal.clear()
        elif endpoint == "GET /_requests":
            return JSONResponse(self._journal.to_json())
        elif endpoint != "GET /_faults":
            return JSONResponse({"problems": [f"Unknown: {endpoint}. Known: {_KNOWN}."]}, 404)
        return JSONResponse({"faults": [*self._storage.faults.to_json(), *self._vertex.faults.to_json()]})

    def _administer_jobs(self, request: Request, body: bytes) -> Response:
        path, given = request.url.path.removeprefix("/_vertex/"), bodies.read_json(body or b"{}")
        if not isinstance(given, dict):
            raise invalid([("", "The body is not a JSON object.")])
        job, _, event = path.removeprefix("jobs/").partition(":")
        if path.startswith("jobs/") and request.method == "POST" and event in ("preempt", "oom", "internal"):
            happened = self._vertex.jobs.inject(job, event, str(given.get("replica", "workerpool0-0")))
            return JSONResponse({"happened": happened})
        clock = self._vertex.clock
        if path == "clock" and request.method == "POST":
            seconds = given.get("advance_s")
            if type(seconds) not in (int, float) or not clock.advance(float(seconds)):  # type: ignore[arg-type]
                raise invalid([("advance_s", "The clock moves ahead by a number of seconds, by 100 years in all.")])
            self._vertex.scheduler.clock_moved()
        elif path != "clock" or request.method != "GET":
            raise not_found(f"{request.method} /_vertex/{path[:100]} (known: {_KNOWN_OF_VERTEX})")
        return JSONResponse({"now": clock.now(), "frozen": clock.frozen})


def parse_faults(script: bytes | str) -> tuple[list[StorageFault], list[VertexFault]]:
    """Return the faults of a script by service: those of custom jobs have "api": "vertex"."""
    try:
        rules = json.loads(script)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The faults are not JSON: {error}.") from None
    if not isinstance(rules, list):
        raise InputError(f"The faults are a JSON list of objects. Received: {type(rules).__name__}.")
    of_vertex = [each for each in rules if isinstance(each, dict) and each.get("api") == "vertex"]
    problems = Problems()
    of_both: tuple[list[StorageFault], list[VertexFault]] = ([], [])
    with problems.collect():
        of_both[0].extend(parse_storage_faults(_without_api([each for each in rules if each not in of_vertex], "gcs")))
    with problems.collect():
        of_both[1].extend(parse_vertex_faults(_without_api(of_vertex, "vertex")))
    problems.raise_if_any()
    return of_both


def _without_api(rules: list[Any], api: str) -> list[Any]:
    """Return rules without this "api"; one with another value keeps it, and is rejected for an unknown field."""
    return [
        {name: value for name, value in rule.items() if (name, value) != ("api", api)}
        if isinstance(rule, dict)
        else rule
        for rule in rules
    ]


async def _read(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BYTES:
        raise _too_large()
    return await errors.read_body(request.stream(), MAX_BYTES, _too_large)


def _too_large(_: str = "") -> StorageApiError:
    text = f"A request to the emulator itself may have a body of {MAX_BYTES} bytes at most."
    # The rest of the body is not read.
    return StorageApiError(413, "uploadTooLarge", text, {"Connection": "close"})
