"""Cloud Scheduler's REST API as an ASGI application."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .. import data_folder, messages
from ..answers import HARMLESS, RestCall, RestService
from ..connections import Journal
from ..errors import words
from ..faults import About, FaultRules
from ..vertex.errors import VertexApiError
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


class SchedulerApp(RestService):
    """The scheduled jobs of one data folder."""

    routes, parameters = _ROUTES, _PARAMETERS
    title = "podlift's emulator of Cloud Scheduler"
    # A job of 1 MB in base64, with its envelope.
    max_bytes = 4 << 20

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

    @classmethod
    def serves(cls, path: str) -> bool:
        return _SERVED.fullmatch(path) is not None

    def check_place(self, call: RestCall) -> None:
        if call.region and call.region not in LOCATIONS:
            text = f"Location {call.region[:100]!r} is not a valid location. Use ListLocations to list valid locations."
            raise VertexApiError(404 if call.operation == "locations.get" else 400, text)

    def about(self, call: RestCall) -> About:
        return About(_id_in(call.body) if call.operation == "jobs.create" else call.id, call.region, "scheduler")

    async def perform(self, call: RestCall) -> dict[str, Any]:
        where, jobs, operation = (call.project, call.region), self._jobs, call.operation
        if operation == "locations.list":
            return jobs.locations(call.project)
        if operation == "locations.get":
            return location(*where)
        if operation == "jobs.list":
            return call.page("Job", "jobs", jobs.list(*where, call.query))
        if operation == "jobs.delete":
            return jobs.delete(*where, call.id)
        if operation == "jobs.create":
            job = jobs.create(*where, call.body)
        elif operation == "jobs.patch":
            fails = any(fault.kind == "status_after" for fault in call.fired)
            job = jobs.patch(*where, call.id, call.body, call.query.get("updateMask", ""), fails=fails)
        elif operation == "jobs.get":
            job = jobs.get(*where, call.id)
        else:
            call.check_fields("name", "legacyAppEngineCron")
            act = {"jobs.pause": jobs.pause, "jobs.resume": jobs.resume, "jobs.run": jobs.run}[operation]
            job = act(*where, call.id)
        return dict(call.render("Job", job))


def _id_in(body: bytes) -> str:
    """Return the id in the body of a new job, "" for none: faults are matched against it."""
    return str(messages.read_object(body).get("name", "")).rpartition("/")[2]
