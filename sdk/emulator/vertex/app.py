"""Vertex AI, Cloud Logging, Service Usage and the metadata server as one ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...backends.vertex.checks import job_rules
from ...process.redirect.tokens import ReplicaIdentity
from .. import data_folder, messages
from ..answers import HARMLESS, RestCall, RestService
from ..connections import Journal
from ..errors import words
from ..faults import About, FaultRules
from ..project.state import CALLER, agents
from . import bodies, machines
from .entries import LogEntries
from .environment import project_number
from .errors import VertexApiError, invalid
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
_PARAMETERS = {
    "customJobs.list": _LISTED,
    "trainingPipelines.list": _LISTED,
    "quotas.get": HARMLESS | words("view"),
}
# The type that Cloud Scheduler sends unless its job names another one.
_BINARY = "application/octet-stream"
# The project in the metadata for a process outside of jobs.
_PROJECT = "podlift"


def _is_metadata_request(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a path belongs to the metadata server: below its prefix, or the root by which clients detect it."""
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
        values = {name: value for name, value in node.items() if not isinstance(value, _Json)}
        return Response(json.dumps(values), 200, _FLAVOR, "application/json")
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


class VertexApp(RestService):
    """The jobs of one data folder with their log entries, clock and faults, and the answers to requests about them."""

    routes, parameters, max_bytes = _ROUTES, _PARAMETERS, 10 << 20
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
        self.jobs = CustomJobs(self._table, self.scheduler, references, clock, self._faults, timings)
        self.pipelines = TrainingPipelines(folder / "pipelines.sqlite", self.jobs)
        self._collections = {service.name: service for service in (self.jobs, self.pipelines)}

    async def clear(self) -> None:
        """Remove all jobs, pipelines and log entries, reset the clock, and wait until all containers have ended."""
        # No request is answered before the await: none makes a pipeline for a removed job.
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

    @classmethod
    def serves(cls, path: str, headers: Mapping[str, str] | None = None) -> bool:
        return path.startswith(("/v1/", "/v1beta1/", "/v2/")) or _is_metadata_request(path, headers or {})

    async def answer(self, request: Request, entry: dict[str, Any]) -> Response:
        if not _is_metadata_request(request.url.path, request.headers):
            return await super().answer(request, entry)
        entry["operation"] = "metadata.get"

        async def perform() -> Response:
            return self._metadata(request, request.query_params)

        return await self.with_faults(request, entry, self._faults.for_request("metadata.get", About()), perform)

    def check_place(self, call: RestCall) -> None:
        if call.region and (wrong := list(job_rules.location(call.region))):
            raise invalid(wrong)

    def about(self, call: RestCall) -> About:
        collection, _, verb = call.operation.partition(".")
        service = self._collections.get(collection, self.jobs)
        if verb == "create":
            if call.request.headers.get("content-type") == _BINARY:
                raise VertexApiError(400, f"The body of this request is JSON. Received: Content-Type: {_BINARY}.")
            call.created = bodies.parse(call.body, service.kind)
        return About(str(call.created.get("displayName", "")) or service.display_name(call.id), call.region)

    async def perform(self, call: RestCall) -> dict[str, Any]:
        collection, _, verb = call.operation.partition(".")
        if collection in self._collections:
            return self._perform_on(self._collections[collection], verb, call)
        if collection == "operations":
            return self.jobs.operation(call.project, call.region, call.id)
        if collection == "quotas":
            return machines.quota_response(call.project, call.id, exceeded=self._faults.contain("quota"))
        # A long list takes a while: in another thread it does not block the other requests.
        return await asyncio.to_thread(self._entries.listed, messages.read_object(call.body))

    def _perform_on(self, service: CustomJobs | TrainingPipelines, verb: str, call: RestCall) -> dict[str, Any]:
        where = (call.project, call.region)
        if verb == "list":
            return call.page(service.kind, service.name, service.list(*where, call.query))
        if verb == "delete":
            return service.delete(*where, call.id)
        if verb == "cancel":
            call.check_fields("name")
            service.cancel(*where, call.id)
            return {}
        if verb == "create":
            self._references.check_account(bodies.account_of(call.created), self._caller(call.request))
            resource = service.create(*where, call.created)
        else:
            resource = service.get(*where, call.id)
        return dict(call.render(service.kind, resource))

    def _caller(self, request: Request) -> str:
        """Return the account of the job with the container that sent a request; else the user of the emulated project."""
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
