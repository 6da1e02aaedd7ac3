"""Calls of Cloud Scheduler's API, by Google's client: with time limits, and repeated where that is harmless."""

from __future__ import annotations

import base64
import json
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import requests

from ...clock import Clock
from ...errors import InputError, PodliftError, UnavailableError
from ...storage import emulator
from ...storage.retry import Retries
from ..triggers import Trigger, TriggerDraft, TriggerRejectedError, TriggerRequest
from . import client, create_job, keeper_labels
from .client import JobClient, OutcomeUnknownError, VertexRejectedError

if TYPE_CHECKING:
    from google.cloud.scheduler_v1 import CloudSchedulerClient
    from google.cloud.scheduler_v1 import Job as SchedulerJob

# The default of Cloud Scheduler.
CLOUD = "https://www.googleapis.com/auth/cloud-platform"
EXISTS, MISSING, _WRONG_STATE = 409, 404, 400
# Google's client repeats a call for ten minutes.
_ONCE: Any = {"retry": None, "timeout": 20.0}
_REPEAT_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 45.0, 0.5, 8.0
_BUSY, _BROKEN = 429, 500
_TRIES = 3
_OWNER = re.compile(r"podlift schedule=(?P<schedule>\S+) id=(?P<id>\S*) sha256=\S* root=(?P<root>.+)")
# Google's client begins the text of an error with the request.
_URL = re.compile(r"^[A-Z]+ https?://\S+: ")
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
# What a text of Cloud Scheduler means, and what helps; the first match counts.
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
    """Return the description of a job, which says whose it is: Cloud Scheduler's jobs have no labels."""
    return f"podlift schedule={draft.schedule} id={draft.id} sha256={draft.digest} root={draft.plan.root}"


def settings(job: Any) -> Mapping[str, object]:
    """Return what is compared of a job in JSON; the service adds fields, such as defaults and headers."""
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
        found = json.loads(base64.b64decode(body))
    except ValueError:
        return body
    return found if isinstance(found, dict) else body


class Service:
    """Cloud Scheduler, or the emulator that stands in for it here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        address = emulator.checked_address()
        self._client = _client(address)

    def create(self, request: TriggerRequest) -> Trigger:
        """Send the request once."""
        parent = request.name.rpartition("/jobs/")[0]
        return self._once(request.name, lambda: self._client.create_job(parent=parent, job=_job(request), **_ONCE))

    def get(self, name: str) -> Trigger | None:
        try:
            return self._again(name, lambda: self._client.get_job(name=name, **_ONCE))
        except TriggerRejectedError as error:
            if error.status == MISSING:
                return None
            raise

    def kept(self, parent: str) -> list[Trigger]:
        # Its pages are requested while they are read.
        return self._repeated(parent, lambda: [_trigger(job) for job in self._client.list_jobs(parent=parent, **_ONCE)])

    def update(self, request: TriggerRequest, paths: Sequence[str]) -> Trigger:
        about = {"job": _job(request), "update_mask": {"paths": list(paths)}}
        return self._again(request.name, lambda: self._client.update_job(request=about, **_ONCE))

    def pause(self, name: str) -> None:
        self._set_paused(name, lambda: self._client.pause_job(name=name, **_ONCE), paused=True)

    def unpause(self, name: str) -> None:
        self._set_paused(name, lambda: self._client.resume_job(name=name, **_ONCE), paused=False)

    def _set_paused(self, name: str, call: Callable[[], SchedulerJob], *, paused: bool) -> None:
        try:
            self._again(name, call)
        except TriggerRejectedError as error:
            # A job that is in this state already is rejected, also if an earlier request without an answer did it.
            found = self.get(name) if error.status == _WRONG_STATE else None
            if found is None or found.paused is not paused:
                raise

    def delete(self, name: str) -> None:
        try:
            self._repeated(name, lambda: self._client.delete_job(name=name, **_ONCE))
        except TriggerRejectedError as error:
            # An earlier request may have removed it.
            if error.status != MISSING:
                raise

    def _again(self, name: str, call: Callable[[], SchedulerJob]) -> Trigger:
        return self._repeated(name, lambda: _trigger(call()))

    def _repeated(self, name: str, call: Callable[[], _T]) -> _T:
        """Call until there is an answer: for requests that may be executed twice."""
        tries = Retries.within(_REPEAT_S, self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        return tries.until_answered(lambda: _translated(name, call))

    def _once(self, name: str, call: Callable[[], SchedulerJob]) -> Trigger:
        return _translated(name, lambda: _trigger(call()))


@lru_cache(maxsize=2)
def _client(address: str) -> CloudSchedulerClient:
    try:
        from google.cloud.scheduler_v1 import CloudSchedulerClient
    except ImportError:
        raise InputError(
            "Schedules on Vertex AI need the package google-cloud-scheduler. Next: pip install 'podlift[schedule]'."
        ) from None
    from google.auth.credentials import AnonymousCredentials

    if address:
        anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
        found = CloudSchedulerClient(transport="rest", credentials=anonymous, client_options={"api_endpoint": address})
        # Ignore proxies and .netrc of this machine.
        vars(found.transport)["_session"].trust_env = False
        return found
    try:
        return CloudSchedulerClient(transport="rest", credentials=client.credentials())
    except VertexRejectedError as error:
        raise InputError(str(error)) from error


def _job(request: TriggerRequest) -> SchedulerJob:
    from google.cloud.scheduler_v1 import Job as SchedulerJob

    found: SchedulerJob = SchedulerJob.from_json(json.dumps(request.body))
    return found


def _trigger(job: SchedulerJob) -> Trigger:
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped,unused-ignore]

    about = MessageToDict(type(job).pb(job))
    compared = settings(about)
    owner = _OWNER.fullmatch(str(compared["description"]))
    return Trigger(
        name=about["name"],
        cron=about.get("schedule", ""),
        time_zone=about.get("timeZone", ""),
        paused=about.get("state") == "PAUSED",
        description=str(compared["description"]),
        root=owner["root"] if owner else "",
        schedule=owner["schedule"] if owner else "",
        id=owner["id"] if owner else "",
        settings=compared,
        last_attempt=client.unix_time(about.get("lastAttemptTime")),
        status=_status(about.get("status") or {}),
        broken=_BROKEN_STATES.get(str(about.get("state")), ""),
        next=client.unix_time(about.get("scheduleTime")),
    )


def _status(status: Any) -> str:
    """Return what the service says about the last attempt, "" if it succeeded."""
    code, text = int(status.get("code") or 0), str(status.get("message") or "")
    if not code:
        return ""
    name = _CODES[code] if code < len(_CODES) else str(code)
    meant = _meant(text, "") if re.search(_PERIMETER, text) else ""
    return f"{name}{f': {text}' if text else ''}{f' {meant}' if meant else ''}"


# --- Errors -------------------------------------------------------------------------------------------------------------


def _translated(name: str, call: Callable[[], _T]) -> _T:
    """Return what a call of Google's client returns; its errors become podlift's."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError, TransportError

    try:
        return call()
    except GoogleAPICallError as error:
        raise _failure(int(error.code or 0), emulator.mask_token(str(error.message)), name) from error
    except TransportError as error:
        raise UnavailableError(f"Google's servers for credentials cannot be reached: {error}") from error
    except GoogleAuthError as error:
        raise InputError(
            f"The credentials are not accepted: {error}. Next: gcloud auth application-default login."
        ) from error
    except (requests.RequestException, OSError) as error:
        reason = emulator.mask_token(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise UnavailableError(f"Cloud Scheduler cannot be reached: {reason}. Next: check the network.") from error


def _failure(status: int, text: str, name: str) -> PodliftError:
    if status in (0, _BUSY) or status >= _BROKEN:
        return UnavailableError(f"Cloud Scheduler failed: {status or 'no status'} {_URL.sub('', text)}")
    project = name.split("/")[1] if "/" in name else "PROJECT"
    text = _URL.sub("", text)
    said = text if text.endswith(".") else f"{text}."
    return TriggerRejectedError(
        f'Cloud Scheduler rejected a request about {name}: {status} "{said}" {_meant(text, project)}'.rstrip(), status
    )


def _meant(text: str, project: str) -> str:
    for pattern, meaning in _MEANINGS:
        match = re.search(pattern, text)
        if match is not None:
            return meaning.format(project=project, **match.groupdict())
    return ""


# --- A keeper that is created here, and alerts -------------------------------------------------------------------------------


def fire(trigger: Trigger, clock: Clock, slot: str) -> str:
    """Create the keeper of a slot, once: the label of the request finds one whose reply was lost."""
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
            found = _sought(jobs, match["region"], token, clock)
            if found:
                return found
        except VertexRejectedError as error:
            raise PodliftError(f"The keeper of the firing was rejected. {error}") from error
    raise UnavailableError(
        "It is unknown whether the firing was started: Vertex AI did not answer. Next: podlift schedule status "
        f"{trigger.schedule}, in some minutes."
    )


def _sought(jobs: JobClient, region: str, token: str, clock: Clock) -> str:
    """Return the job of a request whose reply was lost, "" if there is none."""
    for wait_s in create_job.SEARCH_DELAYS_S:
        clock.sleep(wait_s)
        found = jobs.list(region, {keeper_labels.REQUEST: token})
        if found:
            return found[0].name
    return ""


def alert(name: str) -> str:
    """Return the gcloud command of an alert on the log of failed deliveries."""
    project, job = name.split("/")[1], name.rpartition("/")[2]
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
