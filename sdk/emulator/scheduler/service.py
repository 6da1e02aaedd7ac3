"""The calls of Cloud Scheduler's API about jobs and locations."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import words
from ..vertex.environment import project_number
from ..vertex.errors import VertexApiError, invalid
from ..vertex.listing import page_size, page_token, read_page_token
from ..vertex.timing import EmulatorClock, format_time
from . import bodies
from .dispatcher import ENABLED, PAUSED, UPDATE_FAILED, Dispatcher
from .table import JobKey, ScheduledJob

_MAX_PAGE, _LISTED = 500, "jobs"
LOCATIONS = sorted(
    words(
        "africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 asia-south1 asia-south2"
        " asia-southeast1 asia-southeast2 australia-southeast1 australia-southeast2 europe-central2 europe-north1"
        " europe-southwest1 europe-west1 europe-west10 europe-west12 europe-west2 europe-west3 europe-west4 europe-west6"
        " europe-west8 europe-west9 me-central1 me-west1 northamerica-northeast1 northamerica-northeast2"
        " southamerica-east1 southamerica-west1 us-central1 us-east1 us-east4 us-east5 us-south1 us-west1 us-west2"
        " us-west3 us-west4"
    )
)


class ScheduledJobs:
    """All jobs. Safe to use from any thread. Its methods raise `VertexApiError` where the service rejects a request."""

    def __init__(self, dispatcher: Dispatcher, clock: EmulatorClock) -> None:
        self._dispatcher, self._clock = dispatcher, clock

    def create(self, project: str, region: str, body: bytes) -> dict[str, Any]:
        job = bodies.parse(body)
        parent = f"projects/{project}/locations/{region}"
        name = job.get("name") or f"{parent}/jobs/{secrets.token_hex(10)}"
        key = JobKey(project_number(project), region, bodies.job_id(name, parent))
        _check(job, project)
        with self._dispatcher.lock:
            if self._dispatcher.get(key) is not None:
                raise VertexApiError(409, f"Job {name} already exists.")
            new_job = {**bodies.with_defaults(job), "name": name, "state": ENABLED}
            return self._store(ScheduledJob(key=key, job={**new_job, "userUpdateTime": self._now()}))

    def get(self, project: str, region: str, job: str) -> dict[str, Any]:
        return _resource(self._row(project, region, job))

    def list(self, project: str, region: str, query: Mapping[str, str]) -> tuple[Sequence[dict[str, Any]], str]:
        """Return a page of jobs by their names, and the token of the next one, "" for none."""
        size = page_size(query.get("pageSize"), _MAX_PAGE, _MAX_PAGE)
        after, *_ = read_page_token(query.get("pageToken", ""), _LISTED, str) or [""]
        number = project_number(project)
        rows = [row for row in self._dispatcher.all_jobs() if row.key[:2] == (number, region) and row.key.id > after]
        rows.sort(key=lambda row: row.key.id)
        token = page_token(_LISTED, [rows[size - 1].key.id]) if len(rows) > size else ""
        return [_resource(row) for row in rows[:size]], token

    def patch(
        self, project: str, region: str, job: str, body: bytes, mask: str, *, fails: bool = False
    ) -> dict[str, Any]:
        """Change a job; `fails` leaves it as an update that did not return successfully may leave it."""
        changes = bodies.parse(body)
        with self._dispatcher.lock:
            row = self._row(project, region, job)
            changed = bodies.merged(row.job, changes, mask)
            _check(changed, project)
            # After a failed update, the next one that succeeds enables the job.
            state = UPDATE_FAILED if fails else ENABLED if changed["state"] == UPDATE_FAILED else changed["state"]
            changed = {**bodies.with_defaults(changed), "state": state, "userUpdateTime": self._now()}
            return self._store(replace(row, job=changed))

    def pause(self, project: str, region: str, job: str) -> dict[str, Any]:
        return self._change_state(project, region, job, ENABLED, PAUSED)

    def resume(self, project: str, region: str, job: str) -> dict[str, Any]:
        return self._change_state(project, region, job, PAUSED, ENABLED)

    def run(self, project: str, region: str, job: str) -> dict[str, Any]:
        """Make an attempt now, whatever the state of the job; the answer does not wait for its end."""
        with self._dispatcher.lock:
            self._dispatcher.run_now(self._row(project, region, job))
            return self.get(project, region, job)

    def delete(self, project: str, region: str, job: str) -> dict[str, Any]:
        with self._dispatcher.lock:
            self._dispatcher.delete(self._row(project, region, job).key)
        return {}

    def locations(self, project: str) -> dict[str, Any]:
        return {"locations": [location(project, region) for region in LOCATIONS]}

    def _row(self, project: str, region: str, job: str) -> ScheduledJob:
        row = self._dispatcher.get(JobKey(project_number(project), region, job))
        if row is None:
            raise VertexApiError(404, "Job not found.")
        return row

    def _change_state(self, project: str, region: str, job: str, before: str, after: str) -> dict[str, Any]:
        with self._dispatcher.lock:
            row = self._row(project, region, job)
            if row.job["state"] != before:
                text = f"The job is in state {row.job['state']}; it has to be {before} for this."
                raise VertexApiError(400, text, status="FAILED_PRECONDITION")
            return self._store(replace(row, job={**row.job, "state": after, "userUpdateTime": self._now()}))

    def _store(self, row: ScheduledJob) -> dict[str, Any]:
        row = self._dispatcher.scheduled(row)
        self._dispatcher.store(row)
        return _resource(row)

    def _now(self) -> str:
        return format_time(self._clock.now())


def location(project: str, region: str) -> dict[str, Any]:
    labels = {"cloud.googleapis.com/region": region}
    return {"name": f"projects/{project}/locations/{region}", "locationId": region, "labels": labels}


def _check(job: Mapping[str, Any], project: str) -> None:
    if problems := bodies.problems(job, project):
        raise invalid(problems)


def _resource(row: ScheduledJob) -> dict[str, Any]:
    execution = row.execution
    if execution is None:
        return row.job
    return {**row.job, "scheduleTime": format_time(execution.at if execution.retries else execution.slot)}
