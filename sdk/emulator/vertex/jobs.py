"""The custom jobs of one data folder, as the API's calls ask for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import lifecycle, listing, quotas, rules
from .drive import Driver, terms
from .environment import project_number as number
from .environment import replicas
from .errors import RefusedError, invalid, not_found
from .faults import Faults
from .filters import holds
from .states import Knobs, Life
from .tables import JobTable, Row
from .timing import EmulatorClock, written


@dataclass(kw_only=True)
class _Hidden:
    """How long a new job is missing from lists."""

    lists: float
    until: float


class Jobs:
    """All custom jobs. Any thread may use it.

    Args:
        table: where they are kept.
        driver: what lets them live.
        clock: the emulator's.
        faults: what goes wrong.
        knobs: how long the phases take.
    """

    def __init__(self, table: JobTable, driver: Driver, clock: EmulatorClock, faults: Faults, knobs: Knobs) -> None:
        self._table, self._driver, self._clock, self._faults, self._knobs = table, driver, clock, faults, knobs
        self._hidden: dict[int, _Hidden] = {}
        self._last = table.last()

    def create(self, project: str, region: str, job: dict[str, Any]) -> dict[str, Any]:
        """Make a job and return it as the API tells it.

        Raises:
            RefusedError: the service would not take it.
        """
        found = rules.problems(job, region)
        if found:
            raise invalid(found)
        name = job["displayName"]
        with self._driver.lock:
            if self._faults.job("quota", name):
                raise RefusedError(429, quotas.message(job))
            now = self._clock.now()
            row = Row(
                id=self._number(now),
                project=number(project),
                region=region,
                job=rules.completed(job),
                life=lifecycle.unborn(now),
            )
            life, acts = lifecycle.begin(terms(row), now, self._knobs)
            row = replace(row, life=life)
            self._table.add(row)
            if (late := self._faults.job("late_list", name)) is not None:
                lists = math.inf if late.lists is None and late.seconds is None else late.lists or 0
                self._hidden[row.id] = _Hidden(lists=lists, until=now + (late.seconds or 0.0))
            self._driver.add(row, acts)
            return self._told(row)

    def get(self, project: str, region: str, job: str) -> dict[str, Any]:
        """Return a job as the API tells it.

        Raises:
            RefusedError: there is none.
        """
        with self._driver.lock:
            return self._told(self._row(project, region, job))

    def list(self, project: str, region: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one page of the jobs of a place, the newest first.

        Raises:
            RefusedError: the filter, the page or the mask makes no sense.
        """
        text, size = query.get("filter", ""), listing.page_size(query.get("pageSize"))
        found, last = listing.read_filter(text), listing.behind(query.get("pageToken", ""), text)
        shown: list[tuple[int, dict[str, Any]]] = []
        with self._driver.lock:
            hidden = self._count_list()
            for row in self._table.newest(number(project), region, last[0] if last else None):
                told = self._told(row)
                if row.id in hidden or not holds(found, lambda each, told=told: listing.matches(each, told)):  # type: ignore[misc]
                    continue
                shown.append((row.id, listing.masked(told, query.get("readMask", ""))))
                if len(shown) > size:
                    break
        answer: dict[str, Any] = {"customJobs": [told for _, told in shown[:size]]} if shown else {}
        if len(shown) > size:
            answer["nextPageToken"] = listing.token(text, [shown[size - 1][0]])
        return answer

    def cancel(self, project: str, region: str, job: str) -> None:
        """Begin to cancel a job; nothing happens to one that is over.

        Raises:
            RefusedError: there is none.
        """
        with self._driver.lock:
            self._driver.cancel(self._row(project, region, job).id)

    def delete(self, project: str, region: str, job: str) -> dict[str, Any]:
        """Forget a job that is over and return the operation.

        Raises:
            RefusedError: there is none, or it is not over.
        """
        with self._driver.lock:
            row = self._row(project, region, job)
            if self._driver.is_live(row.id):
                text = f"The CustomJob is in state {row.life.state}; only one that has ended can be deleted. Cancel it first."
                raise RefusedError(400, text, status="FAILED_PRECONDITION")
            operation, place = self._number(self._clock.now()), f"projects/{row.project}/locations/{region}"
            self._table.delete(row.id, operation, place)
            self._hidden.pop(row.id, None)
            return _operation(place, operation)

    def operation(self, project: str, region: str, operation: str) -> dict[str, Any]:
        """Return an operation; all of them are done.

        Raises:
            RefusedError: there was none.
        """
        place = f"projects/{number(project)}/locations/{region}"
        with self._driver.lock:
            known = _is_number(operation) and self._table.operation(int(operation), place)
        if not known:
            raise not_found(f"operation {operation[:100]!r}")
        return _operation(place, int(operation))

    def asked(self, job: str) -> dict[str, Any] | None:
        """Return what a job has asked for; None if there is none."""
        with self._driver.lock:
            row = self._table.get(int(job)) if _is_number(job) else None
        return None if row is None else row.job

    def project(self, job: str) -> str:
        """Return the number of a job's project, "" if there is no such job."""
        with self._driver.lock:
            row = self._table.get(int(job)) if _is_number(job) else None
        return "" if row is None else row.project

    def display_name(self, job: str) -> str:
        """Return the display name of a job, "" if there is none: faults are matched against it."""
        return str((self.asked(job) or {}).get("displayName", ""))

    def happen(self, job: str, what: str, replica: str) -> bool:
        """Let a preemption ("preempt"), an "oom" or an "internal" error happen; False for a job that does not run.

        Raises:
            RefusedError: there is no such job or replica.
        """
        asked = self.asked(job)
        if asked is None:
            raise not_found(f"CustomJob {job[:100]!r}")
        known = [each.name for each in replicas(asked)]
        if what != "internal" and replica not in known:
            raise invalid([("replica", f"Unknown: {replica[:100]!r}. Known: {', '.join(known)}.")])
        return self._driver.happen(int(job), what, replica)

    def preempted(self, job: str, replica: str) -> bool:
        """True if the machine of that replica is being taken away."""
        return _is_number(job) and self._driver.preempted(int(job), replica)

    def clear(self) -> None:
        """End and forget all jobs."""
        self._driver.drop()
        with self._driver.lock:
            self._table.clear()
            self._hidden.clear()

    def _number(self, now: float) -> int:
        """Return a number of 19 digits above all that were given."""
        self._last = max(self._last + 1, int(now * 1e9))
        return self._last

    def _row(self, project: str, region: str, job: str) -> Row:
        row = self._table.get(int(job)) if _is_number(job) else None
        if row is None or (row.project, row.region) != (number(project), region):
            raise not_found(f'CustomJob "projects/{project}/locations/{region}/customJobs/{job[:100]}"')
        return row

    def _count_list(self) -> set[int]:
        """Count one list call and return the jobs that are not in it yet."""
        now = self._clock.now()
        hidden = {job for job, each in self._hidden.items() if each.lists > 0 or each.until > now}
        self._hidden = {job: each for job, each in self._hidden.items() if job in hidden}
        for each in self._hidden.values():
            each.lists -= 1
        return hidden

    def _told(self, row: Row) -> dict[str, Any]:
        """Return a job as the API tells it, in the emulator's own form."""
        life: Life = row.life
        told: dict[str, Any] = {
            "name": f"projects/{row.project}/locations/{row.region}/customJobs/{row.id}",
            "displayName": row.job["displayName"],
            "jobSpec": row.job["jobSpec"],
            "state": life.state,
            "createTime": written(life.created),
        }
        for name, time_s in (("startTime", life.started), ("endTime", life.ended), ("updateTime", life.updated)):
            if time_s is not None:
                told[name] = written(time_s)
        end = life.end
        # It appears about a minute after the end on Vertex AI.
        if end is not None and end.code and self._clock.now() >= (life.ended or math.inf) + self._knobs.error_s:
            told["error"] = {"code": end.code, "message": end.message}
        return {**told, **{name: row.job[name] for name in ("labels", "encryptionSpec") if name in row.job}}


def _operation(place: str, operation: int) -> dict[str, Any]:
    return {
        "name": f"{place}/operations/{operation}",
        "metadata": {"@type": "type.googleapis.com/google.cloud.aiplatform.v1.DeleteOperationMetadata"},
        "done": True,
        "response": {"@type": "type.googleapis.com/google.protobuf.Empty"},
    }


def _is_number(text: str) -> bool:
    # SQLite's numbers have 64 bits.
    return text.isascii() and text.isdigit() and len(text) <= 18 + 1 and int(text) < 2**63
