"""Vertex AI, Cloud Logging, Service Usage and the metadata server as one ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ...clock import Clock
from .. import access, data_folder
from ..connections import Connections
from ..errors import DroppedError, read_body, with_error_response
from ..journal import Journal
from . import bodies, machines, metadata, routes, rules
from .entries import LogEntries
from .environment import project_number
from .errors import VertexApiError, invalid, too_large
from .faults import VertexFault, VertexFaults
from .jobs import CustomJobs
from .launcher import ReplicaLauncher
from .scheduler import JobScheduler
from .states import JobTimings
from .tables import JobTable
from .timing import EmulatorClock

_MAX_BODY_BYTES = 10 << 20
# The project whose metadata a process sees that belongs to no job.
_PROJECT = "podlift"


class VertexService:
    """The jobs of one data folder with their log entries, clock and faults."""

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
        data_folder.make_subfolder(folder)
        timings = timings or JobTimings()
        self.clock, self.faults, self.has_bucket = EmulatorClock(clock, frozen=frozen), VertexFaults(), has_bucket
        self._table = JobTable(folder / "jobs.sqlite")
        self.entries = LogEntries(folder / "entries.sqlite", self.clock)
        self.scheduler = JobScheduler(self._table, self.clock, self.entries, self.faults, timings, capacity)
        self.jobs = CustomJobs(self._table, self.scheduler, self.clock, self.faults, timings)

    def start(self, launcher: ReplicaLauncher) -> None:
        """Begin to run jobs."""
        self.scheduler.start(launcher)

    def clear(self) -> None:
        """End and remove all jobs, log entries and faults, and reset the clock."""
        self.faults.replace([])
        self.jobs.clear()
        self.entries.clear()
        self.clock.reset()

    def close(self) -> None:
        """End all containers and close the databases."""
        self.scheduler.close()
        self.entries.close()
        self._table.close()


class VertexApp:
    """Answers requests to the services beside Cloud Storage."""

    def __init__(self, service: VertexService, connections: Connections, journal: Journal) -> None:
        self._service, self._connections, self._journal = service, connections, journal

    @staticmethod
    def serves(path: str, headers: dict[str, str]) -> bool:
        return routes.served(path) or metadata.is_metadata_request(path, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._journal.request(scope, self._connections) as entry:
            answer = await with_error_response(self._answer(Request(scope, receive), entry), _internal)
            await answer(scope, receive, send)
            entry["status"] = answer.status_code

    async def _answer(self, request: Request, entry: dict[str, Any]) -> Response:
        query = dict(parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        headers = {name.lower(): text for name, text in request.headers.items()}
        if metadata.is_metadata_request(request.url.path, headers):
            entry["operation"] = "metadata.get"
            return await self._with_faults(entry, lambda: self._metadata(request, headers, query))
        route = routes.find(request.method, request.scope["raw_path"].decode("latin-1"), query)
        entry["operation"] = route.operation
        body = await read_body(request.stream(), _MAX_BODY_BYTES, too_large)
        job: dict[str, Any] = {}
        if route.operation == "customJobs.create":
            job = bodies.parse(body)
            entry["object"] = str(job.get("displayName", ""))
        else:
            entry["object"] = self._service.jobs.display_name(route.id)
        return await self._with_faults(entry, lambda: self._perform(route, query, body, job))

    async def _with_faults(self, entry: dict[str, Any], work: Callable[[], Awaitable[Response]]) -> Response:
        """Do the work, with the faults that happen before it, instead of it or after it."""
        fired = self._service.faults.for_request(entry["operation"], entry["object"])
        entry["faults"] = [fault.kind for fault in fired]
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
        self, route: routes.VertexRoute, query: dict[str, str], body: bytes, job: dict[str, Any]
    ) -> Response:
        jobs, location = self._service.jobs, (route.project, route.region)
        enum_numbers = "enum-encoding=int" in query.get("$alt", "")

        def shown(resource: dict[str, Any]) -> dict[str, Any]:
            return bodies.to_response("CustomJob", resource, enum_numbers=enum_numbers)

        if route.operation == "customJobs.create":
            self._check_bucket(job)
            return JSONResponse(shown(jobs.create(*location, job)))
        if route.operation == "customJobs.get":
            return JSONResponse(shown(jobs.get(*location, route.id)))
        if route.operation == "customJobs.list":
            page = jobs.list(*location, query)
            if "customJobs" in page:
                page["customJobs"] = [shown(each) for each in page["customJobs"]]
            return JSONResponse(page)
        if route.operation == "customJobs.cancel":
            _check_empty(body)
            jobs.cancel(*location, route.id)
            return JSONResponse({})
        if route.operation == "customJobs.delete":
            return JSONResponse(jobs.delete(*location, route.id))
        if route.operation == "operations.get":
            return JSONResponse(jobs.operation(*location, route.id))
        if route.operation == "quotas.get":
            exceeded = self._service.faults.contain(lambda fault: fault.kind == "quota")
            return JSONResponse(machines.quota_response(route.project, route.id, exceeded=exceeded))
        # A long list takes a while: in another thread it does not block the other requests.
        return JSONResponse(await asyncio.to_thread(self._service.entries.listed, bodies.read_json(body or b"{}")))

    def _check_bucket(self, job: dict[str, Any]) -> None:
        bucket = rules.output_bucket(job)
        if bucket is not None and not self._service.has_bucket(bucket):
            field = "custom_job.job_spec.base_output_directory.output_uri_prefix"
            raise invalid([(field, f"The Cloud Storage bucket {bucket!r} of the output directory does not exist.")])

    async def _metadata(self, request: Request, headers: dict[str, str], query: dict[str, str]) -> Response:
        replica, jobs = access.replica_identity(request.scope), self._service.jobs
        row = jobs.find(replica.job)
        return metadata.respond(
            request.url.path,
            headers,
            query,
            project=project_number(_PROJECT) if row is None else row.project,
            account="" if row is None else row.job["jobSpec"].get("serviceAccount", ""),
            preempted=jobs.preempted(replica.job, replica.name),
        )


def _internal(text: str) -> VertexApiError:
    return VertexApiError(500, text)


def _injected_error(fault: VertexFault) -> VertexApiError:
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    return VertexApiError(fault.status, f"Injected fault: {fault.kind} {fault.status}.", headers=headers)


def _check_empty(body: bytes) -> None:
    given = bodies.read_json(body or b"{}")
    for name in given if isinstance(given, dict) else [given]:
        if name != "name":
            text = f"Invalid JSON payload received. Unknown name {json.dumps(name)[:100]}: Cannot find field."
            raise invalid([("", text)])
