"""Calls of Cloud Scheduler, also from a keeper's container: with time limits, and repeated until there is an answer."""

from __future__ import annotations

import base64
import json
import re
import secrets
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ....clock import Clock
from ....errors import InputError, PodliftError, UnavailableError
from ...triggers import Trigger, TriggerDraft, TriggerRejectedError
from .. import client
from ..client import JobClient, OutcomeUnknownError, VertexRejectedError
from ..job import create_job
from ..service import url
from . import keeper_labels

TITLE = "Cloud Scheduler"
HOST = "https://cloudscheduler.googleapis.com"
# The default of Cloud Scheduler.
CLOUD = "https://www.googleapis.com/auth/cloud-platform"
EXISTS, MISSING, _WRONG_STATE = 409, 404, 400
_NO_LOGIN, _BUSY = (0, 401), 429
_LIMIT_S = 20.0
_TRIES = 3
_OWNER = re.compile(r"podlift schedule=(?P<schedule>\S+) id=(?P<id>\S*) sha256=\S* root=(?P<root>.+)")
_POSTED_TO = re.compile(r"projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/customJobs$")
# google.rpc.Code
_CODES = (
    "", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
_BROKEN_STATES = {
    "DISABLED": "its state is DISABLED: Cloud Scheduler has stopped it because of an error",
    "UPDATE_FAILED": "its state is UPDATE_FAILED: the last update was not completed",
}
_PERIMETER = r"VPC Service Controls|vpcServiceControls|prohibited by organization's policy"
_NEAREST_LOCATION = "Next: --location REGION with one that has it (gcloud scheduler locations list)."
# Error texts of Cloud Scheduler, with meaning and advice; the first match counts.
_MEANINGS = (
    (
        _PERIMETER,
        "The project is inside a perimeter of VPC Service Controls, across which Cloud Scheduler cannot post to Vertex AI. "
        "Next: create the schedule with --trigger serve, and run podlift schedule serve on a machine inside the perimeter, or "
        "podlift schedule run NAME --due by a cron there.",
    ),
    (
        r"Location must equal (?P<location>[\w-]+)",
        "The project's App Engine app decides where its Cloud Scheduler is. Next: --location {location}.",
    ),
    (
        r"not a valid location|[Ll]ocation \S+ is not (found|supported)|Unsupported location",
        "Cloud Scheduler is not in every region. " + _NEAREST_LOCATION,
    ),
    (
        r"jobs\.create.{0,200}may not exist",
        "You lack roles/cloudscheduler.admin in the project {project}, or Cloud Scheduler is not in this region. Next: grant "
        "the role, or --location REGION with a region that has it (gcloud scheduler locations list).",
    ),
    (
        r"SERVICE_DISABLED|has not been used in project|API .{0,40}(is )?disabled",
        "The API is not enabled. Next: gcloud services enable cloudscheduler.googleapis.com --project={project}.",
    ),
    (
        r"actAs|serviceAccountUser",
        "You may not let Cloud Scheduler use this service account. Next: grant yourself roles/iam.serviceAccountUser on it.",
    ),
    (
        r"cloudscheduler\.jobs\.\w+|PERMISSION_DENIED|[Pp]ermission",
        "A right is missing. Next: grant it, or roles/cloudscheduler.admin, in the project {project}.",
    ),
)  # fmt: skip
_T = TypeVar("_T")


def description(draft: TriggerDraft) -> str:
    """Return the description of a job, which names its schedule: Cloud Scheduler's jobs have no labels."""
    return f"podlift schedule={draft.schedule} id={draft.id} sha256={draft.digest} root={draft.plan.root}"


def settings(job: Any) -> Mapping[str, object]:
    """Return the compared fields of a job in JSON; the service adds fields, such as defaults and headers."""
    target, retry = job.get("httpTarget") or {}, job.get("retryConfig") or {}
    count = int(retry.get("retryCount") or 0)
    limits = ("minBackoffDuration", "maxRetryDuration") if count else ()
    token = target.get("oauthToken") or {}
    headers = {str(name).lower(): text for name, text in (target.get("headers") or {}).items()}
    return {
        "description": job.get("description", ""),
        "schedule": job.get("schedule", ""),
        "timeZone": job.get("timeZone", ""),
        "attemptDeadline": job.get("attemptDeadline", ""),
        "retryConfig": {"retryCount": count, **{name: retry.get(name, "") for name in limits}},
        "httpTarget": {
            "uri": target.get("uri", ""),
            "httpMethod": target.get("httpMethod", ""),
            "contentType": headers.get("content-type", ""),
            "body": _posted(str(target.get("body", ""))),
            "oauthToken": {"scope": CLOUD, **token} if token else {},
        },
    }


def _posted(body: str) -> Mapping[str, object] | str:
    """Return the decoded body of a job; as it is if it is no JSON."""
    try:
        posted = json.loads(base64.b64decode(body))
    except ValueError:
        return body
    return posted if isinstance(posted, dict) else body


def _project_of(name: str) -> str:
    """Return the project in the name of a trigger, "" if it has none."""
    return name.partition("projects/")[2].partition("/")[0]


def call(
    method: str,
    path: str,
    convert: Callable[[Any], _T],
    clock: Clock,
    *,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
) -> _T:
    """Send a request until there is an answer, and return that, converted: each of these may be executed twice."""
    send = partial(
        client.exchange, method, f"{url(HOST)}/v1/{path}", convert, _LIMIT_S,
        query=query, body=body, service=TITLE, project=_project_of(path),
    )  # fmt: skip
    try:
        return client.repeated("", send, clock, service=TITLE)
    except VertexRejectedError as error:
        if error.status in _NO_LOGIN:
            raise InputError(str(error)) from error
        raise _failure(error.status, str(error), path) from error


def get(name: str, clock: Clock) -> Trigger | None:
    try:
        return call("GET", name, trigger, clock)
    except TriggerRejectedError as error:
        if error.status == MISSING:
            return None
        raise


def set_paused(name: str, clock: Clock, *, paused: bool) -> None:
    try:
        call("POST", f"{name}:{'pause' if paused else 'resume'}", trigger, clock, body={})
    except TriggerRejectedError as error:
        # The service rejects it if the job has this state already, perhaps by an earlier request with a lost answer.
        there = get(name, clock) if error.status == _WRONG_STATE else None
        if there is None or there.paused is not paused:
            raise


def trigger(job: Any) -> Trigger:
    """Convert a Job of the API. Raises ValueError, TypeError or AttributeError if it is not one."""
    compared = settings(job)
    owner = _OWNER.fullmatch(str(compared["description"]))
    return Trigger(
        name=str(job.get("name", "")),
        cron=job.get("schedule", ""),
        time_zone=job.get("timeZone", ""),
        paused=job.get("state") == "PAUSED",
        description=str(compared["description"]),
        root=owner["root"] if owner else "",
        schedule=owner["schedule"] if owner else "",
        id=owner["id"] if owner else "",
        settings=compared,
        last_attempt=client.unix_time(job.get("lastAttemptTime")),
        status=_status(job.get("status") or {}),
        broken=_BROKEN_STATES.get(str(job.get("state")), ""),
        next=client.unix_time(job.get("scheduleTime")),
    )


def _status(status: Any) -> str:
    """Return the service's error of the last attempt, "" if it succeeded."""
    code, text = int(status.get("code") or 0), str(status.get("message") or "")
    if not code:
        return ""
    name = _CODES[code] if code < len(_CODES) else str(code)
    meant = _meant(text, "") if re.search(_PERIMETER, text) else ""
    return f"{name}{f': {text}' if text else ''}{f' {meant}' if meant else ''}"


def _failure(status: int, text: str, name: str) -> PodliftError:
    sentence = text if text.endswith(".") else f"{text}."
    return TriggerRejectedError(
        f'{TITLE} rejected a request about {name}: {status} "{sentence}" {_meant(text, _project_of(name))}'.rstrip(),
        status,
    )


def _meant(text: str, project: str) -> str:
    for pattern, meaning in _MEANINGS:
        match = re.search(pattern, text)
        if match is not None:
            return meaning.format(project=project, **match.groupdict())
    return ""


# --- A keeper that is created here, and alerts -------------------------------------------------------------------------------


def fire(trigger: Trigger, clock: Clock, slot: str) -> str:
    """Create the keeper of a slot, once: after a lost reply, the label of the request finds it."""
    target = trigger.settings["httpTarget"]
    match = _POSTED_TO.search(str(target["uri"])) if isinstance(target, Mapping) else None
    posted = target.get("body") if isinstance(target, Mapping) else None
    if match is None or not isinstance(posted, Mapping):
        raise InputError(
            f"The job {trigger.name} of Cloud Scheduler posts something else than a job of Vertex AI. Next: podlift schedule "
            "create again, which mends it."
        )
    token = secrets.token_hex(8)
    labels = posted.get("labels")
    ours = {**(labels if isinstance(labels, Mapping) else {}), keeper_labels.SLOT: slot}
    body = {**posted, "labels": {**ours, keeper_labels.REQUEST: token}}
    jobs = JobClient(match["project"], clock=clock)
    for _ in range(_TRIES):
        try:
            return jobs.create(match["region"], body).name
        except OutcomeUnknownError:
            job = _sought(jobs, match["region"], token, clock)
            if job:
                return job
        except VertexRejectedError as error:
            raise PodliftError(f"The keeper of the firing was rejected. {error}") from error
    raise UnavailableError(
        "It is unknown whether the firing was started: Vertex AI did not answer. Next: podlift schedule status "
        f"{trigger.schedule}, in some minutes."
    )


def _sought(jobs: JobClient, region: str, token: str, clock: Clock) -> str:
    """Return the job of a request with a lost reply, "" if there is none."""
    for wait_s in create_job.SEARCH_DELAYS_S:
        clock.sleep(wait_s)
        listed = jobs.list(region, {keeper_labels.REQUEST: token})
        if listed:
            return listed[0].name
    return ""


def alert(name: str) -> str:
    """Return the gcloud command of an alert on the log of failed deliveries."""
    project, job = _project_of(name), name.rpartition("/")[2]
    words = f'resource.type="cloud_scheduler_job" AND resource.labels.job_id="{job}" AND severity>=ERROR'
    policy = {
        "displayName": f"{job}: not delivered",
        "combiner": "OR",
        "conditions": [{"displayName": "failed delivery", "conditionMatchedLog": {"filter": words}}],
        "alertStrategy": {"notificationRateLimit": {"period": "3600s"}},
    }
    return (
        f"gcloud alpha monitoring policies create --project={project} --notification-channels=CHANNEL "
        f"--policy={shlex.quote(json.dumps(policy))}"
    )
