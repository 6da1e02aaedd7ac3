"""Vertex AI, Cloud Logging, Service Usage and the metadata server as one ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ...checks import vertex_body
from ...process.redirect.tokens import ReplicaIdentity
from .. import data_folder, messages
from ..answers import HARMLESS, RestService, check_parameters
from ..connections import Journal
from ..errors import read_body, words
from ..faults import About, FaultRules
from ..project.state import CALLER, agents
from . import bodies, machines
from .entries import LogEntries
from .environment import project_number
from .errors import VertexApiError, invalid, unknown_name
from .jobs import CustomJobs
from .lifecycle import JobTimings
from .pipelines import TrainingPipelines
from .referenced import References
from .scheduler import JobRow, JobScheduler, JobTable, join_all
from .timing import EmulatorClock

_METADATA = "/computeMetadata/v1/"
_FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_TOKEN_S = 3599
_PLACE = r"/v1/projects/(?P<project>[^/:]+(?::[^/:]+)?)/locations/(?P<region>[^/:]+)"
_OPERATIONS = f"{_PLACE}/operations/(?P<id>[^/:]+)"
_SERVICE = r"/v1beta1/projects/(?P<project>[^/:]+)/services/aiplatform\.googleapis\.com"
# Method, decoded path, operation.
_ROUTES = (
    ("POST", "/v2/entries:list", "entries.list"),
    ("GET", f"{_SERVICE}/consumerQuotaMetrics/(?P<id>.+)", "quotas.get"),
    ("GET", f"{_PLACE}/customJobs/?", "customJobs.list"),
    ("POST", f"{_PLACE}/customJobs/?", "customJobs.create"),
    ("GET", f"{_PLACE}/customJobs/(?P<id>[^/]+)", "customJobs.get"),
    ("DELETE", f"{_PLACE}/customJobs/(?P<id>[^/]+)", "customJobs.delete"),
    ("POST", f"{_PLACE}/customJobs/(?P<id>[^/]*):cancel", "customJobs.cancel"),
    ("GET", f"{_PLACE}/trainingPipelines/?", "trainingPipelines.list"),
    ("POST", f"{_PLACE}/trainingPipelines/?", "trainingPipelines.create"),
    ("GET", f"{_PLACE}/trainingPipelines/(?P<id>[^/]+)", "trainingPipelines.get"),
    ("DELETE", f"{_PLACE}/trainingPipelines/(?P<id>[^/]+)", "trainingPipelines.delete"),
    ("POST", f"{_PLACE}/trainingPipelines/(?P<id>[^/]*):cancel", "trainingPipelines.cancel"),
    ("GET", _OPERATIONS, "operations.get"),
    ("POST", f"{_OPERATIONS}:wait", "operations.wait"),
)
_LISTED = HARMLESS | words("filter pageSize pageToken readMask")
_KINDS = {"customJobs": "CustomJob", "trainingPipelines": "TrainingPipeline"}
_PARAMETERS = {f"{collection}.list": _LISTED for collection in _KINDS}
_CREATED = {f"{collection}.create": kind for collection, kind in _KINDS.items()}
_MAX_BODY_BYTES = 10 << 20
# What Cloud Scheduler sends unless its job names another type.
_BINARY = "application/octet-stream"
# The project whose metadata a process sees that belongs to no job.
_PROJECT = "podlift"


def _is_metadata_request(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a path is the metadata server's: one of its own, or the root by which clients detect it."""
    return path.startswith("/computeMetadata") or (path == "/" and "metadata-flavor" in headers)


def _metadata_response(
    path: str, headers: Mapping[str, str], query: Mapping[str, str], tree: dict[str, Any]
) -> Response:
    if headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in headers:
        text = "Your client does not have permission to get this URL: it needs the header Metadata-Flavor: Google."
        return PlainTextResponse(text, 403, _FLAVOR)
    if path in ("/", "/computeMetadata", "/computeMetadata/", _METADATA.rstrip("/"), _METADATA):
        return PlainTextResponse("computeMetadata/\n", 200, _FLAVOR)
    node: Any = tree
    for part in path.removeprefix(_METADATA).strip("/").split("/"):
        node = node.get(part) if isinstance(node, dict) else None
    if node is None:
        raise VertexApiError(404, f"The metadata server has no {path!r}.", headers=_FLAVOR)
    if isinstance(node, _Json):
        return Response(json.dumps(node), 200, _FLAVOR, "application/json")
    if not isinstance(node, dict):
        return PlainTextResponse(str(node), 200, _FLAVOR)
    if query.get("recursive", "").lower() == "true":
        shown = {name: value for name, value in node.items() if not isinstance(value, _Json)}
        return Response(json.dumps(shown), 200, _FLAVOR, "application/json")
    lines = "".join(f"{name}/\n" if isinstance(value, dict) else f"{name}\n" for name, value in node.items())
    return PlainTextResponse(lines, 200, _FLAVOR)


class _Json(dict[str, Any]):
    """A leaf that is JSON itself."""


def _metadata_tree(project: str, email: str, *, preempted: bool) -> dict[str, Any]:
    account = {
        "aliases": ["default"],
        "email": email,
        "scopes": [_SCOPES],
        "token": _Json(access_token="podlift-emulator", expires_in=_TOKEN_S, token_type="Bearer"),  # noqa: S106
    }
    # As in the cloud, a job runs in a project of Google's, and a program that takes it for the user's own fails.
    tenant = project_number(f"{project}-tp")
    return {
        "project": {"project-id": f"t{tenant}-tp", "numeric-project-id": tenant},
        "instance": {
            "service-accounts": {"default": account, email: account},
            "preempted": "TRUE" if preempted else "FALSE",
        },
        "universe": {"universe-domain": "googleapis.com", "universe_domain": "googleapis.com"},
    }


class VertexRoute(NamedTuple):
    operation: str
    project: str = ""
    region: str = ""
    id: str = ""


class VertexApp(RestService):
    """The jobs of one data folder with their log entries, clock and faults, and the answers to requests about them."""

    routes = _ROUTES
    title = "podlift's emulator of Vertex AI"
    hint = " It serves customJobs and trainingPipelines (v1, REST), and Cloud Scheduler's jobs in place of schedules."

    def __init__(
        self,
        folder: Path,
        references: References,
        clock: EmulatorClock,
        timings: JobTimings,
        capacity: int,
        faults: FaultRules,
        journal: Journal,
    ) -> None:
        data_folder.make_subfolder(folder)
        super().__init__(faults, journal)
        self._references, self.clock = references, clock
        self._table = JobTable(folder / "jobs.sqlite")
        self._entries = LogEntries(folder / "entries.sqlite", clock)
        self.scheduler = JobScheduler(self._table, clock, self._entries, self._faults, timings, capacity)
        self.jobs = CustomJobs(self._table, self.scheduler, clock, self._faults, timings)
        self.pipelines = TrainingPipelines(folder / "pipelines.sqlite", self.jobs, self._create_job)

    async def clear(self) -> None:
        """Remove all jobs, pipelines and log entries, reset the clock, and wait until all containers have ended."""
        # No request is answered before the await: none makes a pipeline whose job is removed.
        runners = self.jobs.clear()
        self.pipelines.clear()
        self.clock.reset()
        await asyncio.to_thread(join_all, runners)
        await asyncio.to_thread(self._entries.clear)

    def close(self) -> None:
        self.scheduler.close()
        self.pipelines.close()
        self._entries.close()
        self._table.close()

    @staticmethod
    def serves(path: str, headers: Mapping[str, str]) -> bool:
        return path.startswith(("/v1/", "/v1beta1/", "/v2/")) or _is_metadata_request(path, headers)

    async def answer(self, request: Request, entry: dict[str, Any]) -> Response:
        if _is_metadata_request(request.url.path, request.headers):
            entry["operation"], about = "metadata.get", About()

            async def perform() -> Response:
                return self._metadata(request, request.query_params)
        else:
            operation, named, query = self.find_route(request)
            route = VertexRoute(operation, **named)
            if route.region:
                if wrong := list(vertex_body.location(route.region)):
                    raise invalid(wrong)
                check_parameters(query, _PARAMETERS.get(operation, HARMLESS))
            entry["operation"] = route.operation
            body = await read_body(request.stream(), _MAX_BODY_BYTES, VertexApiError)
            kind = _CREATED.get(route.operation)
            if kind and request.headers.get("content-type") == _BINARY:
                raise VertexApiError(400, f"The body of this request is JSON. Received: Content-Type: {_BINARY}.")
            created = {} if kind is None else bodies.parse(body, kind)
            service = self._service(route.operation.partition(".")[0])
            entry["object"] = str(created.get("displayName", "")) or service.display_name(route.id)
            about = About(entry["object"], route.region)

            async def perform() -> Response:
                self._references.check_account(bodies.account_of(created), self._caller(request))
                return await self._perform(route, query, body, created)

        fired = self._faults.for_request(entry["operation"], about)
        return await self.with_faults(request, entry, fired, perform)

    async def _perform(
        self, route: VertexRoute, query: dict[str, str], body: bytes, created: dict[str, Any]
    ) -> Response:
        if route.operation.partition(".")[0] in _KINDS:
            answer = self._perform_on_resources(route, query, body, created)
        elif route.operation in ("operations.get", "operations.wait"):
            answer = self.jobs.operation(route.project, route.region, route.id)
        elif route.operation == "quotas.get":
            exceeded = self._faults.contain("quota")
            answer = machines.quota_response(route.project, route.id, exceeded=exceeded)
        else:
            # A long list takes a while: in another thread it does not block the other requests.
            answer = await asyncio.to_thread(self._entries.listed, messages.read_object(body))
        return JSONResponse(answer)

    def _service(self, collection: str) -> CustomJobs | TrainingPipelines:
        return self.pipelines if collection == "trainingPipelines" else self.jobs

    def _perform_on_resources(
        self, route: VertexRoute, query: dict[str, str], body: bytes, created: dict[str, Any]
    ) -> dict[str, Any]:
        collection, _, verb = route.operation.partition(".")
        location, kind, service = (route.project, route.region), _KINDS[collection], self._service(collection)
        create: Callable[[str, str, dict[str, Any]], dict[str, Any]] = self._create_job
        delete: Callable[[str, str, str], dict[str, Any]] = self.pipelines.delete_job
        if isinstance(service, TrainingPipelines):
            create, delete = service.create, service.delete
        if verb == "delete":
            return delete(*location, route.id)
        if verb == "cancel":
            for name in messages.read_object(body):
                if name != "name":
                    raise unknown_name(name)
            service.cancel(*location, route.id)
            return {}
        enum_numbers = "enum-encoding=int" in query.get("$alt", "")
        if verb == "list":
            answer = service.list(*location, query)
            shown = messages.to_response(f"{kind}[]", answer.pop(collection, []), enum_numbers=enum_numbers)
            return {collection: shown, **answer} if shown else answer
        resource = create(*location, created) if verb == "create" else service.get(*location, route.id)
        answer = messages.to_response(kind, resource, enum_numbers=enum_numbers)
        return dict(answer)

    def _create_job(
        self, project: str, region: str, job: dict[str, Any], spec: str = "custom_job.job_spec"
    ) -> dict[str, Any]:
        """Create a custom job; `spec` is the field of the request that holds its specification."""
        self._references.check_job(project, region, job, spec)
        return self.jobs.create(project, region, job)

    def _caller(self, request: Request) -> str:
        """Return the account of the job whose container has sent a request; else the user of the emulated project."""
        row = self.jobs.find(_replica(request).job)
        return CALLER if row is None else _account(row)

    def _metadata(self, request: Request, query: Mapping[str, str]) -> Response:
        replica = _replica(request)
        row = self.jobs.find(replica.job)
        project = project_number(_PROJECT) if row is None else row.project
        email = _account(row) if row else agents(project)[0]
        tree = _metadata_tree(project, email, preempted=self.jobs.preempted(replica.job, replica.name))
        return _metadata_response(request.url.path, request.headers, query, tree)


def _replica(request: Request) -> ReplicaIdentity:
    replica: ReplicaIdentity = request.scope.get("podlift.replica", ReplicaIdentity())
    return replica


def _account(row: JobRow) -> str:
    """Return the account that the programs of a job have."""
    own: str = row.job["jobSpec"].get("serviceAccount", "")
    return own or agents(row.project)[0]
