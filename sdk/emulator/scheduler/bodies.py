"""Reads, validates, completes and merges the JSON of a Cloud Scheduler job. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from ...errors import InputError
from ...schedules.slots import Cron, check_portable
from ..errors import words
from ..messages import MESSAGES, Problems, duration_s, field_names, read_json, read_message
from ..vertex.errors import VertexApiError, invalid
from .post import refusal

# The service sets these; values that a client sends are validated and ignored.
_OUTPUTS = words("name state status userUpdateTime scheduleTime lastAttemptTime")
_ID = re.compile(r"[A-Za-z0-9_-]{1,500}", re.ASCII)
_MAX_JOB_BYTES, _MAX_HEADER_BYTES, _MAX_URI, _MAX_DESCRIPTION = 1 << 20, 80_000, 2083, 500
_MAX_RETRIES, _DEADLINE_S = 5, (15, 1800)
_WITH_BODY = ("POST", "PUT", "PATCH")
_AGENT, _BINARY = "Google-Cloud-Scheduler", "application/octet-stream"
# The service sets these headers itself.
_OWN_HEADERS = re.compile(
    r"host|content-length|user-agent|x-google-.*|x-appengine-.*|x-cloudscheduler.*", re.IGNORECASE
)
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_RETRY = {
    "maxRetryDuration": "0s",
    "minBackoffDuration": "5s",
    "maxBackoffDuration": "3600s",
    "maxDoublings": 5,
}
_NAME = '"projects/<PROJECT_ID>/locations/<LOCATION_ID>/jobs/<JOB_ID>"'


def parse(body: bytes) -> dict[str, Any]:
    """Return the job of a body as its client sent it, with its name, and without the fields that the service sets."""
    job, problems = read_message("Job", read_json(body), "job")
    if problems:
        raise invalid(problems)
    return {name: value for name, value in job.items() if name == "name" or name not in _OUTPUTS}


def job_id(name: str, parent: str) -> str:
    """Return the id in the name of a new job of this place."""
    prefix, _, id = name.rpartition("/jobs/")
    if prefix != parent or not _ID.fullmatch(id):
        raise invalid([("job.name", f"Job name must be formatted: {_NAME}.")])
    return id


def cron(job: Mapping[str, Any]) -> Cron:
    """Return the schedule of a valid job."""
    return Cron(job.get("schedule", ""), _zone_name(job))


def zone(job: Mapping[str, Any]) -> ZoneInfo:
    """Return the time zone of a valid job."""
    return ZoneInfo(_zone_name(job))


def _zone_name(job: Mapping[str, Any]) -> str:
    name = str(job.get("timeZone", "UTC"))
    return "UTC" if name.lower() == "utc" else name


def problems(job: Mapping[str, Any], project: str) -> Problems:
    """Return the field and the sentence of every mistake; nothing for a valid job."""
    mistakes: Problems = []
    if len(job.get("description", "")) > _MAX_DESCRIPTION:
        text = f"The description has {len(job['description'])} characters; {_MAX_DESCRIPTION} are allowed."
        mistakes.append(("job.description", text))
    mistakes += [*_schedule(job), *_target(job, project), *_retries(job.get("retryConfig", {}))]
    if "attemptDeadline" in job and not _DEADLINE_S[0] <= duration_s(job["attemptDeadline"]) <= _DEADLINE_S[1]:
        text = f"The attempt deadline has to be in the interval [15s, 1800s]. Received: {job['attemptDeadline']}."
        mistakes.append(("job.attempt_deadline", text))
    if size_bytes(job) > _MAX_JOB_BYTES:
        mistakes.append(("job", f"The job has {size_bytes(job)} bytes; {_MAX_JOB_BYTES} (1 MB) are allowed."))
    return mistakes


def size_bytes(job: Mapping[str, Any]) -> int:
    """Return the size of a job; its body counts as bytes."""
    body = job.get("httpTarget", {}).get("body", "")
    return len(json.dumps(job).encode()) - len(body) // 4


def _schedule(job: Mapping[str, Any]) -> Problems:
    try:
        cron(job)
        check_portable(job["schedule"], "Cloud Scheduler")
    except InputError as error:
        why = " ".join(error.problems)
        if job.get("schedule", "").startswith("every "):
            why = "podlift's emulator reads unix-cron, not App Engine's legacy schedules."
        return [("job.schedule", f"Schedule or time zone is invalid. {why}")]
    return []


def _target(job: Mapping[str, Any], project: str) -> Problems:
    for name in ("pubsubTarget", "appEngineHttpTarget"):
        if name in job:
            text = f"podlift's emulator of Cloud Scheduler does not serve a {name}. It serves an httpTarget."
            raise VertexApiError(405, text, status="UNIMPLEMENTED")
    target, where = job.get("httpTarget"), "job.http_target"
    if target is None:
        return [(where, "Required field is not set: job.target. Exactly one target has to be set.")]
    mistakes: Problems = []
    uri, method, headers = target.get("uri", ""), target.get("httpMethod", "POST"), target.get("headers", {})
    if not uri.startswith(("http://", "https://")):
        mistakes.append(
            (f"{where}.uri", f'The URI has to begin with "http://" or "https://". Received: {uri[:100]!r}.')
        )
    elif len(uri) > _MAX_URI:
        mistakes.append((f"{where}.uri", f"The URI has {len(uri)} characters; {_MAX_URI} are allowed."))
    elif why := refusal(uri):
        mistakes.append((f"{where}.uri", why))
    if "body" in target and method not in _WITH_BODY:
        text = f"A body is allowed only if the HTTP method is POST, PUT or PATCH. Received: {method}."
        mistakes.append((f"{where}.body", text))
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size >= _MAX_HEADER_BYTES:
        text = f"The headers have {size} bytes; they must be smaller than {_MAX_HEADER_BYTES}."
        mistakes.append((f"{where}.headers", text))
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(
            r"[\t\x20-\x7e\x80-\xff]*", value
        ):
            mistakes.append((f"{where}.headers", f"Not a header of HTTP: {json.dumps({name: value})[:200]}."))
    for token in ("oauthToken", "oidcToken"):
        if token in target:
            mistakes += _account(target[token].get("serviceAccountEmail", ""), project, f"{where}.{token}")
    return mistakes


def _account(email: str, project: str, where: str) -> Problems:
    if not re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", email):
        text = f"Not the email address of a service account: {email[:100]!r}."
        return [(f"{where}.service_account_email", text)]
    owner = re.fullmatch(r"[^@]+@([a-z0-9.:-]+)\.iam\.gserviceaccount\.com", email)
    if owner and owner[1] != project and not project.isdigit():
        text = (
            'The principal (user or service account) lacks IAM permission "iam.serviceAccounts.actAs" for the resource '
            f'"{email}" (or the resource may not exist).'
        )
        raise VertexApiError(403, text)
    return []


def _retries(config: Mapping[str, Any]) -> Problems:
    where = "job.retry_config"
    mistakes: Problems = []
    count = config.get("retryCount", 0)
    if not 0 <= count <= _MAX_RETRIES:
        mistakes.append(
            (f"{where}.retry_count", f"The retry count has to be from 0 to {_MAX_RETRIES}. Received: {count}.")
        )
    if config.get("maxDoublings", 0) < 0:
        mistakes.append((f"{where}.max_doublings", f"It has to be 0 or more. Received: {config['maxDoublings']}."))
    for name, field in (
        ("maxRetryDuration", "max_retry_duration"),
        ("minBackoffDuration", "min_backoff_duration"),
        ("maxBackoffDuration", "max_backoff_duration"),
    ):
        if name in config and duration_s(config[name]) < 0:
            mistakes.append((f"{where}.{field}", f"The duration must not be negative. Received: {config[name]}."))
    return mistakes


def with_defaults(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid job as the service stores and shows it."""
    target = dict(job["httpTarget"])
    target.setdefault("httpMethod", "POST")
    headers = {name: value for name, value in target.get("headers", {}).items() if not _OWN_HEADERS.fullmatch(name)}
    if "body" in target and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = _BINARY
    target["headers"] = {**headers, "User-Agent": _AGENT}
    if "oauthToken" in target:
        target["oauthToken"] = {"scope": _SCOPE, **target["oauthToken"]}
    if "oidcToken" in target:
        target["oidcToken"] = {"audience": target["uri"], **target["oidcToken"]}
    return {
        "timeZone": "Etc/UTC",
        "attemptDeadline": "180s",
        **job,
        "httpTarget": target,
        "retryConfig": {**_RETRY, **job.get("retryConfig", {})},
    }


def merged(job: Mapping[str, Any], changes: Mapping[str, Any], mask: str) -> dict[str, Any]:
    """Return a job with the fields of the mask as they are in `changes`, or without them; no mask stands for all fields."""
    outputs = {name: value for name, value in job.items() if name in _OUTPUTS}
    if not mask:
        return {**outputs, **{name: value for name, value in changes.items() if name not in _OUTPUTS}}
    result: dict[str, Any] = json.loads(json.dumps(job))
    for path in mask.split(","):
        steps = _steps(path.strip())
        if steps[0] not in _OUTPUTS:
            _copy(result, changes, steps)
    target = result.get("httpTarget", {})
    for token in ("oauthToken", "oidcToken"):
        if not target.get(token, {}).get("serviceAccountEmail"):
            target.pop(token, None)
    return {**result, **outputs}


def _steps(path: str) -> list[str]:
    """Return the fields of a path of a mask, in camelCase."""
    kind, steps = "Job", []
    for part in path.split("."):
        name = field_names(kind).get(part) if kind in MESSAGES else None
        if name is None:
            raise invalid([("update_mask", f"Invalid update mask: a job has no field {path[:100]!r}.")])
        steps.append(name)
        kind = MESSAGES[kind][name]
    return steps


def _copy(result: dict[str, Any], changes: Mapping[str, Any], steps: list[str]) -> None:
    for name in steps[:-1]:
        result, changes = result.setdefault(name, {}), changes.get(name, {})
    if steps[-1] in changes:
        result[steps[-1]] = changes[steps[-1]]
    else:
        result.pop(steps[-1], None)
