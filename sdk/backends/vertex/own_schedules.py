"""Which schedules of Vertex AI are podlift's, and whose. The container of a keeper uses this, too.

Vertex AI gives schedules their names, and accepts any number with one display name. podlift's full name of a schedule ends in
the display name; of several equal ones, the oldest counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...clock import Clock
from ..triggers import TriggerRejectedError
from . import keeper_labels
from .schedule_calls import MISSING, WRONG_STATE, Calls, Resource

REQUEST = "createPipelineJobRequest"
_STATES = {"1": "ACTIVE", "2": "PAUSED", "3": "COMPLETED"}
# Labels that the service adds begin so.
_GOOGLES = "vertex-ai-"


def pipeline_root(root: str, schedule: str) -> str:
    """Return the pipeline root of a schedule, which tells the root of its records."""
    return f"{root}{_below(schedule)}"


def _below(schedule: str) -> str:
    return f"/schedules/pipelines/{schedule}"


def parent_of(name: str) -> str:
    return name.rpartition("/schedules/")[0]


def named(name: str, clock: Clock) -> list[Resource]:
    """Return the schedules of a display name, the oldest first: podlift's, and others only if it has none."""
    found = Calls(clock).found(parent_of(name), name.rpartition("/")[2])
    ours = [each for each in found if owner(each)[0]]
    return [each for each in ours if owner(each) == owner(ours[0])] or found


def owner(schedule: Resource) -> tuple[str, str, str]:
    """Return the root, the name and the id of the schedule that a schedule of Vertex AI belongs to; "" if none of podlift's."""
    pipeline = pipeline_of(schedule)
    labels, config = _mapping(pipeline["labels"]), _mapping(pipeline["runtimeConfig"])
    name, directory = str(labels.get(keeper_labels.SCHEDULE, "")), str(config["gcsOutputDirectory"])
    if not name or not directory.endswith(_below(name)):
        return "", "", ""
    return directory.removesuffix(_below(name)), name, str(labels.get(keeper_labels.SCHEDULE_ID, ""))


def pipeline_of(schedule: Resource) -> Mapping[str, object]:
    """Return what is compared of the pipeline job that a schedule starts; the service adds fields of its own."""
    job = _mapping(_mapping(schedule.get(REQUEST)).get("pipelineJob"))
    config = _mapping(job.get("runtimeConfig"))
    return {
        "displayName": job.get("displayName", ""),
        "labels": {name: text for name, text in _mapping(job.get("labels")).items() if not name.startswith(_GOOGLES)},
        "pipelineSpec": job.get("pipelineSpec"),
        "runtimeConfig": {name: config.get(name) for name in ("gcsOutputDirectory", "parameterValues")},
        "serviceAccount": job.get("serviceAccount", ""),
    }


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def state(schedule: Resource) -> str:
    found = str(schedule.get("state", ""))
    return _STATES.get(found, found)


def set_paused(name: str, clock: Clock, *, paused: bool) -> None:
    calls, found, wanted = Calls(clock), named(name, clock), "PAUSED" if paused else "ACTIVE"
    if not found:
        raise TriggerRejectedError(f"Vertex AI has no schedule called {name.rpartition('/')[2]!r}.", MISSING)
    for each in found:
        if state(each) == wanted:
            continue
        own_name = str(each["name"])
        try:
            (calls.pause if paused else calls.resume)(own_name)
        except TriggerRejectedError as error:
            # It is in this state by now, if an earlier request without an answer did it.
            if error.status != WRONG_STATE or state(calls.get(own_name)) != wanted:
                raise
