"""Requests to the emulator itself: faults, recorded requests, the clock, and events that happen to running jobs."""

from __future__ import annotations

import asyncio
import math

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ..errors import InputError
from . import errors, messages
from .builds.app import BuildsApp
from .connections import Journal
from .faults import FaultRules, parse_faults
from .gcs.app import StorageApp
from .gcs.errors import StorageApiError
from .project.state import ProjectState
from .scheduler.app import SchedulerApp
from .vertex.app import VertexApp
from .vertex.errors import invalid, not_found

MAX_BYTES = 1 << 20
_ENDPOINTS = (
    "GET /_faults, POST /_faults, GET /_requests, DELETE /_requests, GET /_clock, POST /_clock, GET /_attempts,"
    " POST /_reset, GET /_project, POST /_project"
)
_VERTEX_ENDPOINTS = "POST /_vertex/jobs/ID:preempt, :kill, :oom, :internal, :expire"

_EVENTS = ("preempt", "kill", "oom", "internal", "expire")


class Admin:
    def __init__(
        self,
        storage: StorageApp,
        vertex: VertexApp,
        scheduler: SchedulerApp,
        project: ProjectState,
        builds: BuildsApp,
        faults: FaultRules,
        journal: Journal,
    ) -> None:
        self._storage, self._vertex, self._faults, self._journal = storage, vertex, faults, journal
        self._project = project
        self._builds = builds
        self._dispatcher = scheduler.dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await errors.with_error_response(self._answer(Request(scope, receive)), StorageApiError)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body = await _read(request)
        if request.url.path == "/_clock":
            return await self._move_clock(request, body)
        if request.url.path.startswith("/_vertex/"):
            return self._administer_jobs(request, body)
        if request.url.path == "/_project" and request.method in ("GET", "POST"):
            return self._set_up(request, body)
        endpoint = f"{request.method} {request.url.path}"
        if endpoint == "POST /_faults":
            try:
                self._faults.replace(parse_faults(body))
            except InputError as error:
                return JSONResponse({"problems": list(error.problems)}, 400)
            self._vertex.scheduler.release_held()
            self._dispatcher.faults_changed()
        elif endpoint == "POST /_reset":
            self._faults.replace([])
            await asyncio.to_thread(self._dispatcher.clear)
            await self._vertex.clear()
            self._storage.clear()
            self._project.clear()
            self._builds.clear()
            self._journal.clear()
        elif endpoint == "DELETE /_requests":
            self._journal.clear()
        elif endpoint == "GET /_requests":
            return JSONResponse(self._journal.to_json())
        elif endpoint == "GET /_attempts":
            return JSONResponse({"attempts": self._dispatcher.attempts()})
        elif endpoint != "GET /_faults":
            return JSONResponse({"problems": [f"Unknown: {endpoint}. Known: {_ENDPOINTS}."]}, 404)
        return JSONResponse({"faults": self._faults.to_json()})

    def _set_up(self, request: Request, body: bytes) -> Response:
        if request.method == "POST":
            try:
                self._project.set_up(messages.read_object(body))
            except InputError as error:
                return JSONResponse({"problems": list(error.problems)}, 400)
        return JSONResponse(self._project.to_json())

    def _administer_jobs(self, request: Request, body: bytes) -> Response:
        path, fields = request.url.path.removeprefix("/_vertex/"), messages.read_object(body)
        job, _, event = path.removeprefix("jobs/").partition(":")
        if path.startswith("jobs/") and request.method == "POST" and event in _EVENTS:
            happened = self._vertex.jobs.inject(job, event, str(fields.get("replica", "workerpool0-0")))
            return JSONResponse({"happened": happened})
        raise not_found(f"{request.method} /_vertex/{path[:100]} (known: {_VERTEX_ENDPOINTS})")

    async def _move_clock(self, request: Request, body: bytes) -> Response:
        """Answer about the clock, and move it, with the jobs of Vertex AI if the request includes them."""
        clock, attempts = self._vertex.clock, None
        if request.method not in ("GET", "POST"):
            raise not_found(f"{request.method} {request.url.path} (known: {_ENDPOINTS}, {_VERTEX_ENDPOINTS})")
        if request.method == "POST":
            fields = messages.read_object(body)
            seconds, jobs = fields.get("advance_s"), fields.get("jobs", False)
            if type(jobs) is not bool:
                raise invalid([("jobs", f"It is true or false. Received: {str(jobs)[:100]!r}.")])
            if isinstance(seconds, (int, float)) and type(seconds) is not bool and clock.reaches(seconds):
                # In another thread: the requests of scheduled jobs are answered meanwhile.
                attempts = await asyncio.to_thread(self._dispatcher.advance, float(seconds), jobs=jobs)
            if attempts is None:
                raise invalid([("advance_s", "The clock moves ahead by a number of seconds, by 100 years in all.")])
        at = _instant(request.query_params.get("at"), clock.now())
        answer = {"now": clock.now(), "frozen": clock.frozen, "ahead_s": clock.ahead_at(at), "attempts": attempts or []}
        return JSONResponse(answer)


def _instant(text: str | None, now: float) -> float:
    try:
        time = now if text is None else float(text)
    except ValueError:
        time = math.nan
    if not math.isfinite(time):
        raise invalid([("at", f"It is a Unix time in seconds. Received: {str(text)[:100]!r}.")])
    return time


async def _read(request: Request) -> bytes:
    def error(code: int, message: str) -> StorageApiError:
        # The rest of the body is not read.
        return StorageApiError(code, message, {"Connection": "close"})

    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BYTES:
        raise error(413, f"A request to the emulator itself may have a body of {MAX_BYTES} bytes at most.")
    return await errors.read_body(request.stream(), MAX_BYTES, error)
