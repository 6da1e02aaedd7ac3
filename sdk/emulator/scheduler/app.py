"""Cloud Scheduler's REST API as an ASGI application."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .. import data_folder, messages
from ..answers import HARMLESS, RestService, check_parameters
from ..connections import Journal
from ..errors import read_body, words
from ..faults import About, Fault, FaultRules
from ..vertex.errors import VertexApiError, unknown_name
from ..vertex.timing import EmulatorClock
from .dispatcher import Dispatcher, MoveClock
from .service import LOCATIONS, ScheduledJobs, location
from .table import SchedulerTable

_LOCATIONS = r"/v1/projects/(?P<project>[^/:]+(?::[^/:]+)?)/locations"
_PLACE = rf"{_LOCATIONS}/(?P<region>[^/:]+)"
_JOB = rf"{_PLACE}/jobs/(?P<id>[^/:]+)"
# Method, decoded path, operation.
_ROUTES = (
    ("GET", rf"{_LOCATIONS}/?", "locations.list"),
    ("GET", _PLACE, "locations.get"),
    ("GET", rf"{_PLACE}/jobs/?", "jobs.list"),
    ("POST", rf"{_PLACE}/jobs/?", "jobs.create"),
    ("GET", _JOB, "jobs.get"),
    ("PATCH", _JOB, "jobs.patch"),
    ("DELETE", _JOB, "jobs.delete"),
    ("POST", rf"{_JOB}:pause", "jobs.pause"),
    ("POST", rf"{_JOB}:resume", "jobs.resume"),
    ("POST", rf"{_JOB}:run", "jobs.run"),
)
_SERVED = re.compile(rf"{_LOCATIONS}(/[^/:]+(/jobs(/.*)?)?)?/?", re.DOTALL)
_PAGED = HARMLESS | words("pageSize pageToken legacyAppEngineCron filter")
_PARAMETERS = {
    "jobs.list": _PAGED,
    "locations.list": _PAGED,
    "jobs.delete": HARMLESS | words("legacyAppEngineCron"),
    "jobs.patch": HARMLESS | words("updateMask"),
}
# A job of 1 MB in base64, with what surrounds it.
_MAX_BODY_BYTES = 4 << 20


class SchedulerRoute(NamedTuple):
    operation: str
    project: str
    region: str = ""
    id: str = ""


class SchedulerApp(RestService):
    """The scheduled jobs of one data folder."""

    routes = _ROUTES
    title = "podlift's emulator of Cloud Scheduler"

    def __init__(
        self,
        folder: Path,
        clock: EmulatorClock,
        faults: FaultRules,
        journal: Journal,
        move: MoveClock,
        own_url: str,
    ) -> None:
        data_folder.make_subfolder(folder)
        super().__init__(faults, journal)
        self._table = SchedulerTable(folder / "jobs.sqlite")
        clock.restore(self._table.moves())
        self.dispatcher = Dispatcher(self._table, clock, faults, move, own_url)
        self._jobs = ScheduledJobs(self.dispatcher, clock)

    def close(self) -> None:
        self.dispatcher.close()
        self._table.close()

    @staticmethod
    def serves(path: str) -> bool:
        return _SERVED.fullmatch(path) is not None

    async def answer(self, request: Request, entry: dict[str, Any]) -> Response:
        operation, named, query = self.find_route(request)
        route = SchedulerRoute(operation, **named)
        _check_location(route)
        check_parameters(query, _PARAMETERS.get(route.operation, HARMLESS))
        entry["operation"] = route.operation
        body = await read_body(request.stream(), _MAX_BODY_BYTES, VertexApiError)
        entry["object"] = _id_in(body) if route.operation == "jobs.create" else route.id
        fired = self._faults.for_request(route.operation, About(entry["object"], route.region, "scheduler"))

        async def perform() -> Response:
            return JSONResponse(self._perform(route, query, body, fired))

        return await self.with_faults(request, entry, fired, perform)

    def _perform(self, route: SchedulerRoute, query: dict[str, str], body: bytes, fired: list[Fault]) -> dict[str, Any]:
        where, jobs = (route.project, route.region), self._jobs
        enum_numbers = "enum-encoding=int" in query.get("$alt", "")
        if route.operation == "locations.list":
            return jobs.locations(route.project)
        if route.operation == "locations.get":
            return location(*where)
        if route.operation == "jobs.list":
            answer = jobs.list(*where, query)
            shown = messages.to_response("Job[]", answer.pop("jobs", []), enum_numbers=enum_numbers)
            return {"jobs": shown, **answer} if shown else answer
        if route.operation == "jobs.delete":
            return jobs.delete(*where, route.id)
        if route.operation == "jobs.create":
            job = jobs.create(*where, body)
        elif route.operation == "jobs.patch":
            fails = any(fault.kind == "status_after" for fault in fired)
            job = jobs.patch(*where, route.id, body, query.get("updateMask", ""), fails=fails)
        elif route.operation == "jobs.get":
            job = jobs.get(*where, route.id)
        else:
            for name in messages.read_object(body):
                if name not in ("name", "legacyAppEngineCron"):
                    raise unknown_name(name)
            act = {"jobs.pause": jobs.pause, "jobs.resume": jobs.resume, "jobs.run": jobs.run}[route.operation]
            job = act(*where, route.id)
        return dict(messages.to_response("Job", job, enum_numbers=enum_numbers))


def _check_location(route: SchedulerRoute) -> None:
    if route.region and route.region not in LOCATIONS:
        text = f"Location {route.region[:100]!r} is not a valid location. Use ListLocations to list valid locations."
        raise VertexApiError(404 if route.operation == "locations.get" else 400, text)


def _id_in(body: bytes) -> str:
    """Return the id in the body of a new job, "" for none: faults are matched against it."""
    return str(messages.read_object(body).get("name", "")).rpartition("/")[2]
