"""The calls of Vertex AI's API about schedules of pipeline jobs, which fire by the clock of Cloud Scheduler's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from .. import messages
from ..vertex import listing
from ..vertex.environment import project_number
from ..vertex.errors import VertexApiError, invalid, not_emulated, not_found
from ..vertex.timing import EmulatorClock, format_time
from . import vertex_rows
from .dispatcher import ENABLED, PAUSED, Dispatcher
from .table import JobKey, ScheduledJob

_FIELDS = ("displayName", "cron", "maxConcurrentRunCount", "allowQueueing", "createPipelineJobRequest")


class PipelineSchedules:
    """All schedules. Safe to use from any thread. Its methods raise `VertexApiError` for what the service rejects.

    `new_operation` records the operation of a deletion in a project and region, and returns it.
    """

    def __init__(
        self, dispatcher: Dispatcher, clock: EmulatorClock, new_operation: Callable[[str, str], dict[str, Any]]
    ) -> None:
        self._dispatcher, self._clock, self._new_operation = dispatcher, clock, new_operation

    def create(self, project: str, region: str, body: bytes) -> dict[str, Any]:
        schedule = vertex_rows.parse(body)
        vertex_rows.check(schedule, project, region)
        with self._dispatcher.lock:
            number = int(self._clock.now() * 1e9)
            while self._dispatcher.get(_key(project, region, str(number))) is not None:
                number += 1
            name = f"projects/{project_number(project)}/locations/{region}/schedules/{number}"
            more = {"name": name, "state": ENABLED, "createTime": self._now(), "updateTime": self._now()}
            job = vertex_rows.row(schedule, region, more)
            return self._store(ScheduledJob(key=_key(project, region, str(number)), job=job))

    def get(self, project: str, region: str, schedule: str) -> dict[str, Any]:
        return _resource(self._row(project, region, schedule))

    def list(self, project: str, region: str, query: Mapping[str, str]) -> dict[str, Any]:
        def newest(before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
            place = _key(project, region, "")[:2]
            rows = [row for row in self._dispatcher.all_jobs() if row.key[:2] == place and _number(row)]
            for row in sorted(rows, key=_number, reverse=True):
                if before is None or _number(row) < before:
                    yield _number(row), _resource(row)

        shown, token = listing.read_page(newest, query, "Schedule")
        answer: dict[str, Any] = {"schedules": shown} if shown else {}
        return {**answer, "nextPageToken": token} if token else answer

    def patch(self, project: str, region: str, schedule: str, body: bytes, mask: str) -> dict[str, Any]:
        """Change the fields of a mask. Runs that are not started yet follow the changed schedule."""
        changes, names = vertex_rows.parse(body), messages.field_names("Schedule")
        wanted = [names.get(path.strip(), path.strip()) for path in mask.split(",")]
        if unknown := [name for name in wanted if name not in _FIELDS]:
            text = f"Invalid update mask: {unknown[0][:100]!r}. podlift's emulator changes {', '.join(_FIELDS)}."
            raise invalid([("update_mask", text)])
        with self._dispatcher.lock:
            row = self._row(project, region, schedule)
            changed = {**row.job[vertex_rows.SCHEDULE], **{name: changes.get(name) for name in wanted}}
            changed = {name: value for name, value in changed.items() if value is not None}
            vertex_rows.check(changed, project, region)
            job = vertex_rows.row(changed, region, {**row.job, "updateTime": self._now()})
            return self._store(replace(row, job=job))

    def pause(self, project: str, region: str, schedule: str) -> None:
        self._change_state(project, region, schedule, ENABLED, PAUSED, "lastPauseTime")

    def resume(self, project: str, region: str, schedule: str, body: bytes) -> None:
        """Fire again, from the next slot on."""
        if messages.read_object(body).get("catchUp"):
            raise not_emulated("schedules that catch up")
        self._change_state(project, region, schedule, PAUSED, ENABLED, "lastResumeTime")

    def delete(self, project: str, region: str, schedule: str) -> dict[str, Any]:
        with self._dispatcher.lock:
            self._dispatcher.delete(self._row(project, region, schedule).key)
        return self._new_operation(project, region)

    def display_name(self, project: str, region: str, schedule: str) -> str:
        """Return the display name of a schedule, "" for an unknown one: faults are matched against it."""
        row = self._dispatcher.get(_key(project, region, schedule))
        return "" if row is None else str(row.job[vertex_rows.SCHEDULE]["displayName"])

    def _row(self, project: str, region: str, schedule: str) -> ScheduledJob:
        row = self._dispatcher.get(_key(project, region, schedule))
        if row is None:
            raise not_found(f'Schedule "projects/{project}/locations/{region}/schedules/{schedule[:100]}"')
        return row

    def _change_state(self, project: str, region: str, schedule: str, before: str, after: str, field: str) -> None:
        with self._dispatcher.lock:
            row = self._row(project, region, schedule)
            if row.job["state"] != before:
                text = f"The Schedule is in state {_resource(row)['state']}."
                raise VertexApiError(400, text, status="FAILED_PRECONDITION")
            self._store(replace(row, job={**row.job, "state": after, field: self._now()}))

    def _store(self, row: ScheduledJob) -> dict[str, Any]:
        row = self._dispatcher.scheduled(row)
        self._dispatcher.store(row)
        return _resource(row)

    def _now(self) -> str:
        return format_time(self._clock.now())


def _key(project: str, region: str, schedule: str) -> JobKey:
    return JobKey(project_number(project), region, f"{vertex_rows.FOLDER}{schedule}")


def _number(row: ScheduledJob) -> int:
    """Return the number of a schedule, 0 for a job of Cloud Scheduler."""
    return int(row.key.id.removeprefix(vertex_rows.FOLDER)) if row.key.id.startswith(vertex_rows.FOLDER) else 0


def _resource(row: ScheduledJob) -> dict[str, Any]:
    return vertex_rows.shown(row.job, None if row.execution is None else row.execution.slot)
