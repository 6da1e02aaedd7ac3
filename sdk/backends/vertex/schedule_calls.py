"""Calls of Vertex AI's API about schedules and pipeline jobs: with time limits, and repeated where that is harmless."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ...clock import Clock
from ...errors import InputError, PodliftError, UnavailableError
from ...storage.retry import Retries
from ..triggers import TriggerRejectedError
from . import client
from .client import VertexRejectedError

EXISTS, MISSING, WRONG_STATE = 409, 404, 400
REPEAT_S, FIRST_WAIT_S, LONGEST_WAIT_S = 45.0, 0.5, 8.0
_SLOW_DOWN = 429
_WRITE_S = 30.0
_PAGE = "100"
# What a text of Vertex AI means, and what helps; the first match counts.
_MEANINGS = (
    (
        r"actAs|serviceAccountUser",
        "You may not let Vertex AI use this service account. Next: grant yourself roles/iam.serviceAccountUser on it.",
    ),
    (
        r"SERVICE_DISABLED|has not been used in project|API .{0,40}(is )?disabled",
        "The API is not enabled. Next: gcloud services enable aiplatform.googleapis.com --project={project}.",
    ),
    (
        r"aiplatform\.(schedules|pipelineJobs)\.\w+|PERMISSION_DENIED|[Pp]ermission",
        "A right is missing. Next: grant it, or roles/aiplatform.user, in the project {project}.",
    ),
)
Resource = Mapping[str, object]
_T = TypeVar("_T")


class Calls:
    """Vertex AI, or the emulator that stands in for it here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def create(self, parent: str, schedule: Resource) -> Resource:
        """Send the request once: a second one would make a second schedule."""
        _check_schedule(schedule)
        return _translated(parent, lambda: client.send("POST", parent, "/schedules", dict, _WRITE_S, body=schedule))

    def found(self, parent: str, display_name: str = "") -> list[Resource]:
        """Return the schedules of a place, with a display name only those of it, the oldest first."""
        listed = self._listed(parent, "schedules", f'display_name="{display_name}"' if display_name else "")
        return sorted(listed, key=lambda each: (str(each.get("createTime")), str(each.get("name"))))

    def update(self, name: str, schedule: Resource, fields: Sequence[str]) -> Resource:
        query = {"updateMask": ",".join(fields)}
        return self._repeated(name, lambda: client.send("PATCH", name, "", dict, query=query, body=schedule))

    def pause(self, name: str) -> None:
        self._repeated(name, lambda: client.send("POST", name, ":pause", dict, body={}))

    def resume(self, name: str) -> None:
        # What was missed meanwhile is the schedule's own matter: its rule for missed slots.
        self._repeated(name, lambda: client.send("POST", name, ":resume", dict, body={"catchUp": False}))

    def get(self, name: str) -> Resource:
        return self._repeated(name, lambda: client.send("GET", name, "", dict))

    def delete(self, name: str) -> None:
        try:
            self._repeated(name, lambda: client.send("DELETE", name, "", dict))
        except TriggerRejectedError as error:
            # An earlier request may have removed it.
            if error.status != MISSING:
                raise

    def start(self, parent: str, pipeline: Resource, id: str) -> str:
        """Create a pipeline job of this id, exactly once, and return its name: an id is given only once."""

        def send() -> Resource:
            query = {"pipelineJobId": id}
            return client.send("POST", parent, "/pipelineJobs", dict, _WRITE_S, query=query, body=pipeline)

        try:
            return str(self._repeated(parent, send)["name"])
        except TriggerRejectedError as error:
            if error.status != EXISTS:
                raise
            # The reply to an earlier request was lost.
            return str(self.get(f"{parent}/pipelineJobs/{id}")["name"])

    def pipeline_jobs(self, parent: str, labels: Mapping[str, str], *conditions: str) -> list[Resource]:
        named = [f'labels.{name}="{value}"' for name, value in labels.items()]
        return self._listed(parent, "pipelineJobs", " AND ".join([*named, *conditions]))

    def _listed(self, parent: str, collection: str, filter: str) -> list[Resource]:
        found, token = list[Resource](), ""
        while True:
            query = {"filter": filter, "pageSize": _PAGE, "pageToken": token}
            page = self._repeated(parent, lambda: client.send("GET", parent, f"/{collection}", dict, query=query))  # noqa: B023
            found += page.get(collection) or []
            token = str(page.get("nextPageToken") or "")
            if not token:
                return found

    def _repeated(self, name: str, call: Callable[[], _T]) -> _T:
        """Call until there is an answer: for requests that may be executed twice."""
        tries = Retries.within(REPEAT_S, self._clock, FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        return tries.until_answered(lambda: _translated(name, call))


def _translated(name: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except VertexRejectedError as error:
        raise _failure(error, name) from error


def _failure(error: VertexRejectedError, name: str) -> PodliftError:
    if error.status == _SLOW_DOWN:
        return UnavailableError(f"Vertex AI asks to slow down: {error}")
    if not error.status:
        return InputError(str(error))
    said, project = str(error), name.split("/")[1]
    meanings = (meaning for pattern, meaning in _MEANINGS if re.search(pattern, said))
    meant = next(meanings, "").format(project=project)
    text = said if said.endswith(".") else f"{said}."
    return TriggerRejectedError(
        f'Vertex AI rejected a request about {name}: {error.status} "{text}" {meant}'.rstrip(), error.status
    )


def _check_schedule(schedule: Resource) -> None:
    """Reject a schedule with unknown fields, by Google's own type, whose import takes a second."""
    from google.cloud.aiplatform_v1 import Schedule

    Schedule.from_json(json.dumps(schedule))
