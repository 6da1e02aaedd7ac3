"""Vertex AI, Cloud Logging and the metadata server as one ASGI application."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ...clock import Clock
from .. import administration, door, private
from ..gcs.errors import ApiError, DroppedError
from ..gcs.journal import Journal
from ..gcs.replies import Connections
from . import bodies, metadata, quotas, routes, rules
from .drive import Driver
from .entries import Entries
from .environment import project_number as number
from .errors import RefusedError, invalid, not_found
from .faults import Fault, Faults
from .gangs import Gangs
from .jobs import Jobs
from .states import Knobs
from .tables import JobTable
from .timing import EmulatorClock

_MAX_BODY_BYTES = 10 << 20
# Whose metadata a process sees that belongs to no job.
_PROJECT = "podlift"


class Vertex:
    """What stands behind the application: the jobs of one data folder, their lines, the clock, the faults.

    Args:
        folder: where everything is kept; made if it is not there.
        clock: the machine's.
        has_bucket: tells whether there is a bucket of that name.
        knobs: how long the phases take.
        capacity: how many replicas run at the same time.
        frozen: whether only a request moves the clock.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        has_bucket: Callable[[str], bool],
        *,
        knobs: Knobs | None = None,
        capacity: int = 64,
        frozen: bool = False,
    ) -> None:
        private.subfolder(folder)
        knobs = knobs or Knobs()
        self.clock, self.faults, self.has_bucket = EmulatorClock(clock, frozen=frozen), Faults(), has_bucket
        self._table = JobTable(folder / "jobs.sqlite")
        self.entries = Entries(folder / "entries.sqlite", self.clock)
        self.driver = Driver(self._table, self.clock, self.entries, self.faults, knobs, capacity)
        self.jobs = Jobs(self._table, self.driver, self.clock, self.faults, knobs)

    def start(self, gangs: Gangs) -> None:
        """Begin to run jobs; `gangs` makes what runs their containers."""
        self.driver.start(gangs)

    def clear(self) -> None:
        """End and forget all jobs, lines and faults, and put the clock back."""
        self.faults.replace([])
        self.jobs.clear()
        self.entries.clear()
        self.clock.reset()

    def close(self) -> None:
        """End all containers and let go of the folder."""
        self.driver.close()
        self.entries.close()
        self._table.close()


class Application:
    """Answers requests of those who were let in.

    Args:
        vertex: what is served.
        connections: those of the server that runs it.
        journal: where requests are noted.
    """

    def __init__(self, vertex: Vertex, connections: Connections, journal: Journal) -> None:
        self._vertex, self._connections, self._journal = vertex, connections, journal

    @staticmethod
    def serves(path: str, headers: dict[str, str]) -> bool:
        """True for a path of these services."""
        return routes.served(path) or metadata.asked(path, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began, status = time.perf_counter(), 0
        request = Request(scope, receive)
        noted: dict[str, Any] = {"operation": "unknown", "object": "", "faults": []}
        try:
            answer = await guarded(self._answer(request, noted))
            await answer(scope, receive, send)
            status = answer.status_code
        except DroppedError:
            self._connections.reset(scope)
        except ClientDisconnect:
            pass
        finally:
            self._journal.note(
                status=status,
                method=request.method,
                path=scope["path"],
                seconds=round(time.perf_counter() - began, 6),
                **noted,
            )

    async def _answer(self, request: Request, noted: dict[str, Any]) -> Response:
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        headers = {name.lower(): text for name, text in request.headers.items()}
        if metadata.asked(request.url.path, headers):
            noted["operation"] = "metadata.get"
            return await self._faulty("metadata.get", "", noted, lambda: self._metadata(request, headers, query))
        route = routes.find(request.method, request.scope["raw_path"].decode("latin-1"), query)
        noted["operation"] = route.operation
        body = await _read(request)
        if route.operation == "customJobs.create":
            job = bodies.parse(body)
            name = str(job.get("displayName", ""))
        else:
            job, name = {}, self._vertex.jobs.display_name(route.id)
        noted["object"] = name
        numbers = "enum-encoding=int" in query.get("$alt", "")
        return await self._faulty(
            route.operation, name, noted, lambda: self._done(route, query, body, job, numbers=numbers)
        )

    async def _faulty(
        self, operation: str, name: str, noted: dict[str, Any], work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Do the work, or what faults want instead of it, before it or after it."""
        fired = self._vertex.faults.request(operation, name)
        noted["faults"] = [fault.kind for fault in fired]
        for fault in fired:
            if fault.kind == "latency":
                await asyncio.sleep(fault.seconds or 0.0)
            elif fault.kind == "drop_before":
                raise DroppedError
            elif fault.kind == "status_before":
                raise _injected(fault)
        answer = await work()
        for fault in fired:
            if fault.kind == "drop_after":
                raise DroppedError
            if fault.kind == "status_after":
                raise _injected(fault)
        return answer

    async def _done(
        self, route: routes.Route, query: dict[str, str], body: bytes, job: dict[str, Any], *, numbers: bool
    ) -> Response:
        jobs, place = self._vertex.jobs, (route.project, route.region)
        if route.operation == "customJobs.create":
            self._check_bucket(job)
            return _job(jobs.create(*place, job), numbers=numbers)
        if route.operation == "customJobs.get":
            return _job(jobs.get(*place, route.id), numbers=numbers)
        if route.operation == "customJobs.list":
            told = jobs.list(*place, query)
            if "customJobs" in told:
                told["customJobs"] = [bodies.shown("CustomJob", each, numbers=numbers) for each in told["customJobs"]]
            return JSONResponse(told)
        if route.operation == "customJobs.cancel":
            _check_empty(body)
            jobs.cancel(*place, route.id)
            return JSONResponse({})
        if route.operation == "customJobs.delete":
            return JSONResponse(jobs.delete(*place, route.id))
        if route.operation == "operations.get":
            return JSONResponse(jobs.operation(*place, route.id))
        if route.operation == "quotas.get":
            exceeded = self._vertex.faults.stands("quota")
            return JSONResponse(quotas.shown(route.project, route.id, exceeded=exceeded))
        # Long lists are looked through beside the other requests.
        asked = bodies.read_json(body or b"{}")
        return JSONResponse(await asyncio.to_thread(self._vertex.entries.listed, asked))

    def _check_bucket(self, job: dict[str, Any]) -> None:
        bucket = rules.bucket(job)
        if bucket is not None and not self._vertex.has_bucket(bucket):
            where = "custom_job.job_spec.base_output_directory.output_uri_prefix"
            raise invalid([(where, f"The Cloud Storage bucket {bucket!r} of the output directory does not exist.")])

    async def _metadata(self, request: Request, headers: dict[str, str], query: dict[str, str]) -> Response:
        peer = door.replica(request.scope)
        jobs = self._vertex.jobs
        account = (jobs.asked(peer.job) or {}).get("jobSpec", {}).get("serviceAccount", "")
        return metadata.answer(
            request.url.path,
            headers,
            query,
            project=jobs.project(peer.job) or number(_PROJECT),
            account=account,
            preempted=jobs.preempted(peer.job, peer.name),
        )


async def guarded(work: Awaitable[Response]) -> Response:
    """Return the answer, also if it is an error."""
    try:
        return await work
    except (RefusedError, ApiError) as error:
        return error.response()
    except (DroppedError, ClientDisconnect):
        raise
    except Exception as error:
        traceback.print_exc()
        return RefusedError(500, f"{type(error).__name__}: {error}").response()


async def administer(vertex: Vertex, request: Request) -> Response:
    """Answer what tests ask about custom jobs below /_vertex/.

    Raises:
        RefusedError: it is nothing that can be asked.
    """
    path, body = request.url.path.removeprefix("/_vertex/"), await administration.body(request)
    given = bodies.read_json(body or b"{}")
    if not isinstance(given, dict):
        raise invalid([("", "The body is no JSON object.")])
    job, _, verb = path.removeprefix("jobs/").partition(":")
    if path.startswith("jobs/") and request.method == "POST" and verb in ("preempt", "oom", "internal"):
        happened = vertex.jobs.happen(job, verb, str(given.get("replica", "workerpool0-0")))
        return JSONResponse({"happened": happened})
    if path == "clock" and request.method == "POST":
        seconds = given.get("advance_s")
        if type(seconds) not in (int, float) or not vertex.clock.advance(float(seconds)):  # type: ignore[arg-type]
            raise invalid([("advance_s", "The clock moves ahead by a number of seconds, by 100 years in all.")])
        vertex.driver.poke()
    elif path != "clock" or request.method != "GET":
        known = "GET /_vertex/clock, POST /_vertex/clock, POST /_vertex/jobs/ID:preempt, :oom, :internal"
        raise not_found(f"{request.method} /_vertex/{path[:100]} (known: {known})")
    return JSONResponse({"now": vertex.clock.now(), "frozen": vertex.clock.frozen})


def _job(told: dict[str, Any], *, numbers: bool) -> Response:
    return JSONResponse(bodies.shown("CustomJob", told, numbers=numbers))


def _injected(fault: Fault) -> RefusedError:
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    return RefusedError(fault.status, f"A fault that was asked for: {fault.kind} {fault.status}.", headers=headers)


def _check_empty(body: bytes) -> None:
    found = bodies.read_json(body or b"{}")
    for name in found if isinstance(found, dict) else [found]:
        if name != "name":
            text = f"Invalid JSON payload received. Unknown name {json.dumps(name)[:100]}: Cannot find field."
            raise invalid([("", text)])


async def _read(request: Request) -> bytes:
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > _MAX_BODY_BYTES:
            raise RefusedError(413, f"This request may have a body of {_MAX_BODY_BYTES} bytes at most.")
    return bytes(found)
