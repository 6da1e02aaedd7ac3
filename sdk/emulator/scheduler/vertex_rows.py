"""A schedule of Vertex AI as a job of the dispatcher, whose request creates a pipeline job. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...schedules.slots import Cron, check_portable
from ..errors import words
from ..messages import Problems, read_json, read_message
from ..vertex import pipeline_jobs
from ..vertex.bodies import MAX_NAME
from ..vertex.environment import project_number
from ..vertex.errors import invalid, not_emulated
from ..vertex.timing import format_time
from .post import Outcome

SCHEDULE = "vertex"  # the field of a row's job with the schedule as its client sent it
# Ids of Cloud Scheduler's jobs have no slash.
FOLDER = "schedules/"
_OUTPUTS = words(
    "name state createTime updateTime nextRunTime lastPauseTime lastResumeTime catchUp lastScheduledRunResponse"
    " startedRunCount"
)
_NOT_SERVED = words("startTime endTime maxRunCount maxConcurrentActiveRunCount createNotebookExecutionJobRequest")
_STATES = {"ENABLED": "ACTIVE", "PAUSED": "PAUSED", "DISABLED": "COMPLETED"}
_CRON = re.compile(r"(?:(?:CRON_)?TZ=(?P<zone>\S+)\s+)?(?P<cron>.*)", re.DOTALL)
_NEVER_AGAIN = {"retryCount": 0, "maxRetryDuration": "0s", "minBackoffDuration": "5s", "maxBackoffDuration": "5s"}
_DEADLINE = "60s"
_STATUSES = {
    0: "UNAVAILABLE",
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
}


def parse(body: bytes) -> dict[str, Any]:
    """Return the schedule of a body as its client sent it, without what the service sets."""
    schedule, problems = read_message("Schedule", read_json(body), "schedule")
    if problems:
        raise invalid(problems)
    return {name: value for name, value in schedule.items() if name not in _OUTPUTS}


def check(schedule: Mapping[str, Any], project: str, region: str) -> None:
    """Raise the error that names all mistakes of a schedule."""
    if unknown := [name for name in schedule if name in _NOT_SERVED]:
        raise not_emulated(f"schedules with {', '.join(unknown)}")
    found: Problems = []
    request, name = schedule.get("createPipelineJobRequest"), schedule.get("displayName", "")
    if not name or len(name) > MAX_NAME:
        found.append(("schedule.display_name", f"The display name has 1 to {MAX_NAME} characters. It has {len(name)}."))
    if schedule.get("maxConcurrentRunCount", 0) < 1:
        found.append(("schedule.max_concurrent_run_count", "The maximum number of concurrent runs is at least 1."))
    try:
        cron(schedule)
        check_portable(cron(schedule).expression, "Vertex AI")
    except InputError as error:
        found.append(("schedule.cron", f"Invalid cron expression. {' '.join(error.problems)}"))
    if request is None:
        found.append(("schedule", "Required field is not set: schedule.request."))
    elif _place(request.get("parent", "")) != (project_number(project), region):
        place = f"projects/{project}/locations/{region}"
        text = f"The parent has to be {place}. Received: {request.get('parent', '')[:200]!r}."
        found.append(("schedule.create_pipeline_job_request.parent", text))
    elif request.get("pipelineJobId"):
        text = "A schedule cannot name the ids of its pipeline jobs."
        found.append(("schedule.create_pipeline_job_request.pipeline_job_id", text))
    if found or request is None:
        raise invalid(found)
    pipeline_jobs.checked(request.get("pipelineJob", {}))


def _place(parent: str) -> tuple[str, str]:
    """Return the number of the project, and the region."""
    match = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)", parent)
    return (project_number(match[1]), match[2]) if match else ("", "")


def cron(schedule: Mapping[str, Any]) -> Cron:
    """Return the instants of a schedule; InputError if there are none."""
    match = _CRON.fullmatch(schedule.get("cron", ""))
    return Cron(match["cron"] if match else "", (match["zone"] if match else "") or "UTC")


def row(schedule: Mapping[str, Any], region: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of the dispatcher for a valid schedule; `more` are the fields that it has already."""
    request, slots = schedule["createPipelineJobRequest"], cron(schedule)
    target = {
        "uri": f"https://{region}-aiplatform.googleapis.com/v1/{request['parent']}/pipelineJobs",
        "httpMethod": "POST",
        "headers": {"Content-Type": "application/json"},
        "body": base64.b64encode(json.dumps(request["pipelineJob"]).encode()).decode(),
        "oauthToken": {},
    }
    return {
        **more,
        "schedule": slots.expression,
        "timeZone": slots.time_zone,
        "attemptDeadline": _DEADLINE,
        "retryConfig": _NEVER_AGAIN,
        "httpTarget": target,
        SCHEDULE: dict(schedule),
    }


def shown(job: Mapping[str, Any], next_slot: float | None) -> dict[str, Any]:
    """Return the schedule as the API shows it."""
    found = {
        "name": job["name"],
        **job[SCHEDULE],
        **{name: job[name] for name in _OUTPUTS if name in job and name not in ("name", "state")},
        "state": _STATES[job["state"]],
    }
    return found if next_slot is None else {**found, "nextRunTime": format_time(next_slot)}


def headers(job: Mapping[str, Any], slot: float) -> dict[str, str]:
    """Return what tells the pipeline job which schedule creates it, for which instant."""
    return dict(zip(pipeline_jobs.SCHEDULED, (job["name"], format_time(slot)), strict=True))


def answered(job: Mapping[str, Any], slot: float, outcome: Outcome) -> dict[str, Any]:
    """Return the job after a request. What Vertex AI writes into the response is not documented; here, it is a status."""
    status = _STATUSES.get(outcome.http_status, "INTERNAL")
    text = f"{status}: {outcome.text}" if outcome.code else "OK"
    response = {"scheduledRunTime": format_time(slot), "runResponse": text}
    count = job.get("startedRunCount", 0) + (not outcome.code)
    return {**job, "lastScheduledRunResponse": response, **({"startedRunCount": count} if count else {})}
