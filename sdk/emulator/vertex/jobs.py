"""The custom jobs of one data folder, with the calls of the API, and the base class that they share with training pipelines."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..faults import About, FaultRules
from . import bodies, listing, machines
from .environment import project_number, replicas
from .errors import VertexApiError, invalid, not_found
from .launcher import JobRunner
from .lifecycle import CANCELLED, FAILED, QUEUED, TERMINAL, JobStatus, JobTimings
from .referenced import References
from .scheduler import JobRow, JobScheduler, JobTable, ResourceRow
from .timing import EmulatorClock, format_time

R = TypeVar("R", bound=ResourceRow)


class Collection(Generic[R]):
    """All resources of a kind. Safe to use from any thread. Its methods raise `VertexApiError` as the service does."""

    kind, name = "", ""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock

    def get(self, project: str, region: str, resource: str) -> dict[str, Any]:
        with self.lock:
            return self._resource(self._row(project, region, resource))

    def list(self, project: str, region: str, query: Mapping[str, str]) -> tuple[Sequence[dict[str, Any]], str]:
        """Return a page of the resources of a location, the newest first, and the token of the next one, "" for none."""
        number = project_number(project)
        with self.lock:
            return listing.read_page(lambda before: self._newest(number, region, before), query, self.kind)

    def display_name(self, resource: str) -> str:
        """Return the display name of a resource, "" for an unknown one: faults are matched against it."""
        row = self.find(resource)
        return "" if row is None else row.display_name

    def find(self, resource: str) -> R | None:
        """Return the row of a resource, wherever it is."""
        raise NotImplementedError

    def _newest(self, project: str, region: str, before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield ids and resources with ids below the given one, the newest first; `project` is a number."""
        raise NotImplementedError

    def _resource(self, row: R) -> dict[str, Any]:
        raise NotImplementedError

    def _row(self, project: str, region: str, resource: str) -> R:
        row = self.find(resource)
        if row is None or (row.project, row.region) != (project_number(project), region):
            raise not_found(f'{self.kind} "projects/{project}/locations/{region}/{self.name}/{resource[:100]}"')
        return row

    def _check_deletable(self, job_state: str, state: str) -> None:
        if job_state not in TERMINAL:
            text = f"The {self.kind} is in state {state}; only one that has ended can be deleted. Cancel it first."
            raise VertexApiError(400, text, status="FAILED_PRECONDITION")


@dataclass(kw_only=True)
class _Unlisted:
    """How long lists do not show a new job."""

    lists: float
    until: float


class CustomJobs(Collection[JobRow]):
    kind, name = "CustomJob", "customJobs"

    def __init__(
        self,
        table: JobTable,
        scheduler: JobScheduler,
        references: References,
        clock: EmulatorClock,
        faults: FaultRules,
        timings: JobTimings,
    ) -> None:
        super().__init__(scheduler.lock)
        self._table, self._scheduler, self._references = table, scheduler, references
        self._clock, self._faults, self._timings = clock, faults, timings
        self._hidden: dict[int, _Unlisted] = {}
        self._last = table.last()

    def create(
        self, project: str, region: str, job: dict[str, Any], spec: str = "custom_job.job_spec"
    ) -> dict[str, Any]:
        """Create a custom job; `spec` is the field of the request that holds its specification."""
        self._references.check_job(project, region, job, spec)
        problems = bodies.problems(job, region)
        if problems:
            raise invalid(problems)
        about = About(str(job["displayName"]), region)
        with self.lock:
            if self._faults.for_job("quota", about):
                exceeded = ",".join(machines.quota_metrics(job))
                raise VertexApiError(429, f"The following quota metrics exceed quota limits: {exceeded}")
            now = self._clock.now()
            row = JobRow(
                id=self.new_id(),
                project=project_number(project),
                region=region,
                job=bodies.with_defaults(job),
                status=JobStatus(state=QUEUED, stage="queued", created=now, updated=now),
            )
            row = self._scheduler.add(row)
            if (late := self._faults.for_job("late_list", about)) is not None:
                lists = math.inf if late.lists is None and late.seconds is None else late.lists or 0
                self._hidden[row.id] = _Unlisted(lists=lists, until=now + (late.seconds or 0.0))
            return self._resource(row)

    def cancel(self, project: str, region: str, job: str) -> None:
        with self.lock:
            self._scheduler.cancel(self._row(project, region, job).id)

    def delete(self, project: str, region: str, job: str) -> dict[str, Any]:
        """Delete a job that has ended, and return the operation. A pipeline continues to show the end of its job."""
        with self.lock:
            row = self._row(project, region, job)
            self._check_deletable(row.status.state, row.status.state)
            # First: a kill between the two leaves an operation that no answer names.
            operation = self.new_operation(project, region)
            self._table.delete(row.id)
            self._hidden.pop(row.id, None)
            return operation

    def of_pipeline(self, job: int) -> dict[str, Any]:
        """Return a job that belongs to a pipeline, also after it was deleted."""
        with self.lock:
            row = self._table.get(job)
            if row is None:
                raise not_found(f"CustomJob {job}")
            return self._resource(row)

    def new_operation(self, project: str, region: str) -> dict[str, Any]:
        """Record and return the operation that deletes a resource."""
        operation, location = self.new_id(), f"projects/{project_number(project)}/locations/{region}"
        with self.lock:
            self._table.add_operation(operation, location)
        return _operation(location, operation)

    def operation(self, project: str, region: str, operation: str) -> dict[str, Any]:
        location = f"projects/{project_number(project)}/locations/{region}"
        with self.lock:
            exists = is_number(operation) and self._table.operation(int(operation), location)
        if not exists:
            raise not_found(f"operation {operation[:100]!r}")
        return _operation(location, int(operation))

    def find(self, job: str) -> JobRow | None:
        with self.lock:
            row = self._table.get(int(job)) if is_number(job) else None
        return None if row is None or row.deleted else row

    def inject(self, job: str, what: str, replica: str) -> bool:
        row = self.find(job)
        if row is None:
            raise not_found(f"CustomJob {job[:100]!r}")
        names = [member.name for member in replicas(row.job)]
        if what in ("preempt", "kill", "oom") and replica not in names:
            raise invalid([("replica", f"Unknown: {replica[:100]!r}. Known: {', '.join(names)}.")])
        return self._scheduler.inject(int(job), what, replica)

    def preempted(self, job: str, replica: str) -> bool:
        return is_number(job) and self._scheduler.preempted(int(job), replica)

    def clear(self) -> Sequence[JobRunner]:
        """Remove all jobs, and return the runners of their containers, which are ending."""
        with self.lock:
            self._table.clear()
            self._hidden.clear()
            return self._scheduler.drop_all()

    def new_id(self) -> int:
        """Return a number of 19 digits above all earlier ones."""
        with self.lock:
            self._last = max(self._last + 1, int(self._clock.now() * 1e9))
            return self._last

    def _newest(self, project: str, region: str, before: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
        hidden = self._count_list()
        for row in self._table.newest(project, region, before):
            if row.id not in hidden:
                yield row.id, self._resource(row)

    def _count_list(self) -> set[int]:
        """Count one list call and return the jobs that it does not show yet."""
        now = self._clock.now()
        hidden = {job for job, hiding in self._hidden.items() if hiding.lists > 0 or hiding.until > now}
        self._hidden = {job: hiding for job, hiding in self._hidden.items() if job in hidden}
        for hiding in self._hidden.values():
            hiding.lists -= 1
        return hidden

    def _resource(self, row: JobRow) -> dict[str, Any]:
        status, outcome = row.status, row.status.outcome
        resource: dict[str, Any] = {
            "name": f"projects/{row.project}/locations/{row.region}/customJobs/{row.id}",
            "displayName": row.job["displayName"],
            "jobSpec": row.job["jobSpec"],
            "state": status.state,
            "createTime": format_time(status.created),
        }
        times = {"startTime": status.started, "endTime": status.ended, "updateTime": status.updated}
        resource.update({name: format_time(time_s) for name, time_s in times.items() if time_s is not None})
        # On Vertex AI it appears about a minute after the end.
        is_shown = self._clock.now() >= (status.ended or math.inf) + status.behind + self._timings.error_s
        if outcome is not None and outcome.code and is_shown and status.state in (FAILED, CANCELLED):
            resource["error"] = {"code": outcome.code, "message": outcome.message}
        return {**resource, **{name: row.job[name] for name in ("labels", "encryptionSpec") if name in row.job}}


def _operation(location: str, operation: int) -> dict[str, Any]:
    return {
        "name": f"{location}/operations/{operation}",
        "metadata": {"@type": "type.googleapis.com/google.cloud.aiplatform.v1.DeleteOperationMetadata"},
        "done": True,
        "response": {"@type": "type.googleapis.com/google.protobuf.Empty"},
    }


def is_number(text: str) -> bool:
    # Integers of SQLite have 64 bits.
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63
