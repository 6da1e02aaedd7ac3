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
from ..gcs.errors import DroppedError, StorageApiError
from ..gcs.journal import Journal
from ..gcs.replies import Connections
from . import bodies, metadata, quotas, routes, rules
from .drive import JobScheduler
from .entries import LogEntries
from .environment import project_number
from .errors import VertexApiError, invalid, not_found
from .faults import VertexFault, VertexFaults
from .gangs import ReplicaLauncher
from .jobs import CustomJobs
from .states import JobTimings
from .tables import JobTable
from .timing import EmulatorClock

_MAX_BODY_BYTES = 10 << 20
# Whose metadata a process sees that belongs to no job.
_PROJECT = "podlift"


class VertexService:
    """What stands behind the application: the jobs of one data folder, their lines, the clock, the faults.

    Args:
        folder: where everything is kept; made if it is not there.
        clock: the machine's.
        has_bucket: tells whether there is a bucket of that name.
        timings: how long the phases take.
        capacity: how many replicas run at the same time.
        frozen: whether only a request moves the clock.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        has_bucket: Callable[[str], bool],
        *,
        timings: JobTimings | None = None,
        capacity: int = 64,
        frozen: bool = False,
    ) -> None:
        private.make_subfolder(folder)
        timings = timings or JobTimings()
        self.clock, self.faults, self.has_bucket = EmulatorClock(clock, frozen=frozen), VertexFaults(), has_bucket
        self._table = JobTable(folder / "jobs.sqlite")
        self.entries = LogEntries(folder / "entries.sqlite", self.clock)
        self.scheduler = JobScheduler(self._table, self.clock, self.entries, self.faults, timings, capacity)
        self.jobs = CustomJobs(self._table, self.scheduler, self.clock, self.faults, timings)

    def start(self, launcher: ReplicaLauncher) -> None:
        """Begin to run jobs; `launcher` makes what runs their containers."""
        self.scheduler.start(launcher)

    def clear(self) -> None:
        """End and forget all jobs, lines and faults, and put the clock back."""
        self.faults.replace([])
        self.jobs.clear()
        self.entries.clear()
        self.clock.reset()

    def close(self) -> None:
        """End all containers and let go of the folder."""
        self.scheduler.close()
        self.entries.close()
        self._table.close()


class VertexApp:
    """Answers requests of those who were let in.

    Args:
        vertex: what is served.
        connections: those of the server that runs it.
        journal: where requests are recorded.
    """

    def __init__(self, vertex: VertexService, connections: Connections, journal: Journal) -> None:
        self._vertex, self._connections, self._journal = vertex, connections, journal

    @staticmethod
    def serves(path: str, headers: dict[str, str]) -> bool:
        """True for a path of these services."""
        return routes.served(path) or metadata.is_metadata_request(path, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        began, status = time.perf_counter(), 0
        request = Request(scope, receive)
        journal_entry: dict[str, Any] = {"operation": "unknown", "object": "", "faults": []}
        try:
            answer = await with_error_response(self._answer(request, journal_entry))
            await answer(scope, receive, send)
            status = answer.status_code
        except DroppedError:
            self._connections.reset(scope)
        except ClientDisconnect:
            pass
        finally:
            self._journal.record(
                status=status,
                method=request.method,
                path=scope["path"],
                seconds=round(time.perf_counter() - began, 6),
                **journal_entry,
            )

    async def _answer(self, request: Request, journal_entry: dict[str, Any]) -> Response:
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        headers = {name.lower(): text for name, text in request.headers.items()}
        if metadata.is_metadata_request(request.url.path, headers):
            journal_entry["operation"] = "metadata.get"
            return await self._with_faults(
                "metadata.get", "", journal_entry, lambda: self._metadata(request, headers, query)
            )
        route = routes.find(request.method, request.scope["raw_path"].decode("latin-1"), query)
        journal_entry["operation"] = route.operation
        body = await _read(request)
        if route.operation == "customJobs.create":
            job = bodies.parse(body)
            name = str(job.get("displayName", ""))
        else:
            job, name = {}, self._vertex.jobs.display_name(route.id)
        journal_entry["object"] = name
        enum_numbers = "enum-encoding=int" in query.get("$alt", "")
        return await self._with_faults(
            route.operation,
            name,
            journal_entry,
            lambda: self._perform(route, query, body, job, enum_numbers=enum_numbers),
        )

    async def _with_faults(
        self, operation: str, name: str, journal_entry: dict[str, Any], work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Do the work, or what faults want instead of it, before it or after it."""
        fired = self._vertex.faults.for_request(operation, name)
        journal_entry["faults"] = [fault.kind for fault in fired]
        for fault in fired:
            if fault.kind == "latency":
                await asyncio.sleep(fault.seconds or 0.0)
            elif fault.kind == "drop_before":
                raise DroppedError
            elif fault.kind == "status_before":
                raise _injected_error(fault)
        answer = await work()
        for fault in fired:
            if fault.kind == "drop_after":
                raise DroppedError
            if fault.kind == "status_after":
                raise _injected_error(fault)
        return answer

    async def _perform(
        self, route: routes.VertexRoute, query: dict[str, str], body: bytes, job: dict[str, Any], *, enum_numbers: bool
    ) -> Response:
        jobs, place = self._vertex.jobs, (route.project, route.region)
        if route.operation == "customJobs.create":
            self._check_bucket(job)
            return _job(jobs.create(*place, job), enum_numbers=enum_numbers)
        if route.operation == "customJobs.get":
            return _job(jobs.get(*place, route.id), enum_numbers=enum_numbers)
        if route.operation == "customJobs.list":
            resource = jobs.list(*place, query)
            if "customJobs" in resource:
                resource["customJobs"] = [
                    bodies.to_response("CustomJob", each, enum_numbers=enum_numbers) for each in resource["customJobs"]
                ]
            return JSONResponse(resource)
        if route.operation == "customJobs.cancel":
            _check_empty(body)
            jobs.cancel(*place, route.id)
            return JSONResponse({})
        if route.operation == "customJobs.delete":
            return JSONResponse(jobs.delete(*place, route.id))
        if route.operation == "operations.get":
            return JSONResponse(jobs.operation(*place, route.id))
        if route.operation == "quotas.get":
            exceeded = self._vertex.faults.is_active("quota")
            return JSONResponse(quotas.quota_response(route.project, route.id, exceeded=exceeded))
        # Long lists are looked through beside the other requests.
        request_body = bodies.read_json(body or b"{}")
        return JSONResponse(await asyncio.to_thread(self._vertex.entries.listed, request_body))

    def _check_bucket(self, job: dict[str, Any]) -> None:
        bucket = rules.output_bucket(job)
        if bucket is not None and not self._vertex.has_bucket(bucket):
            where = "custom_job.job_spec.base_output_directory.output_uri_prefix"
            raise invalid([(where, f"The Cloud Storage bucket {bucket!r} of the output directory does not exist.")])

    async def _metadata(self, request: Request, headers: dict[str, str], query: dict[str, str]) -> Response:
        peer = door.replica_identity(request.scope)
        jobs = self._vertex.jobs
        account = (jobs.job_spec(peer.job) or {}).get("jobSpec", {}).get("serviceAccount", "")
        return metadata.respond(
            request.url.path,
            headers,
            query,
            project=jobs.project_number_of(peer.job) or project_number(_PROJECT),
            account=account,
            preempted=jobs.preempted(peer.job, peer.name),
        )


async def with_error_response(work: Awaitable[Response]) -> Response:
    """Return the answer, also if it is an error."""
    try:
        return await work
    except (VertexApiError, StorageApiError) as error:
        return error.response()
    except (DroppedError, ClientDisconnect):
        raise
    except Exception as error:
        traceback.print_exc()
        return VertexApiError(500, f"{type(error).__name__}: {error}").response()


async def administer(vertex: VertexService, request: Request) -> Response:
    """Answer what tests ask about custom jobs below /_vertex/.

    Raises:
        RefusedError: it is not a known request.
    """
    path, body = request.url.path.removeprefix("/_vertex/"), await administration.read_body(request)
    given = bodies.read_json(body or b"{}")
    if not isinstance(given, dict):
        raise invalid([("", "The body is no JSON object.")])
    job, _, verb = path.removeprefix("jobs/").partition(":")
    if path.startswith("jobs/") and request.method == "POST" and verb in ("preempt", "oom", "internal"):
        happened = vertex.jobs.inject(job, verb, str(given.get("replica", "workerpool0-0")))
        return JSONResponse({"happened": happened})
    if path == "clock" and request.method == "POST":
        seconds = given.get("advance_s")
        if type(seconds) not in (int, float) or not vertex.clock.advance(float(seconds)):  # type: ignore[arg-type]
            raise invalid([("advance_s", "The clock moves ahead by a number of seconds, by 100 years in all.")])
        vertex.scheduler.clock_moved()
    elif path != "clock" or request.method != "GET":
        known = "GET /_vertex/clock, POST /_vertex/clock, POST /_vertex/jobs/ID:preempt, :oom, :internal"
        raise not_found(f"{request.method} /_vertex/{path[:100]} (known: {known})")
    return JSONResponse({"now": vertex.clock.now(), "frozen": vertex.clock.frozen})


def _job(resource: dict[str, Any], *, enum_numbers: bool) -> Response:
    return JSONResponse(bodies.to_response("CustomJob", resource, enum_numbers=enum_numbers))


def _injected_error(fault: VertexFault) -> VertexApiError:
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    return VertexApiError(fault.status, f"Injected fault: {fault.kind} {fault.status}.", headers=headers)


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
            raise VertexApiError(413, f"This request may have a body of {_MAX_BODY_BYTES} bytes at most.")
    return bytes(found)
