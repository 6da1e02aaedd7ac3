"""Keepers that have failed. One that crashes before it takes its slot leaves no record, only its job and its log."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial

from ...clock import Clock
from ...errors import MissingError, PodliftError
from ...spec.layout import RootPaths
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ...storage import emulator
from ...text import clipped
from ..containers import key_of
from ..triggers import FailedKeeper
from . import keeper_labels, logs, own_schedules, scheduled_keeper
from . import request as job_request
from .client import JobClient, unix_time
from .diagnose import diagnose, diagnose_program
from .keeper_labels import BY_CRON, BY_HAND, CAUSE, SLOT_TIME
from .schedule_calls import Calls
from .service import quoted
from .slot_labels import slot_of
from .states import PREFIX, VendorJob

_SUCCEEDED = f"{PREFIX}SUCCEEDED"
_REPLICA = "workerpool0-0"
_PIPELINE = "PIPELINE_STATE_"
_ENDED_BADLY = ("FAILED", "CANCELLED")
_MAIN_JOB = re.compile(r'"mainJob": "([^"]+)"')
_CONSOLE = "https://console.cloud.google.com/vertex-ai/pipelines/locations"
_LINES, _CHARACTERS, _LIMIT_S = 2, 400, 5.0


def found(plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
    """Return the failed keepers of a schedule since a Unix time, the newest first; only that one's log is read."""
    project, region = str(Vertex.of(plan.target).project), job_request.first_region(plan)
    labels, bucket = {keeper_labels.SCHEDULE: schedule}, plan.root.split("/")[2]
    # Another root may have a schedule of this name.
    folder = key_of(f"{RootPaths(plan.root).schedules}/{scheduled_keeper.folder(schedule)}")
    first = datetime.fromtimestamp(since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    jobs = JobClient(project, clock=clock).list(region, labels, f'state!="{_SUCCEEDED}"', f'create_time>="{first}"')
    ours = [job for job in jobs if job.args[:1] == (bucket,) and any(each.startswith(folder) for each in job.args)]
    ended = [job for job in ours if job.over and job.state != _SUCCEEDED]
    ended.sort(key=lambda job: job.created or 0.0, reverse=True)
    return [
        FailedKeeper(
            job=job.name,
            state=job.state.removeprefix(PREFIX),
            created=job.created or since,
            by_hand=(job.labels or {}).get(keeper_labels.SLOT) == keeper_labels.BY_HAND,
            slot=slot_of((job.labels or {}).get(keeper_labels.SLOT, "")),
            error=_error(job, project, clock if job is ended[0] else None),
            look=f"gcloud ai custom-jobs stream-logs {job.id} --region={region} --project={project}",
        )
        for job in ended
    ]


def of_pipelines(plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
    """Return the failed keepers of a schedule of Vertex AI, as `found` does; the newest one's custom job tells why."""
    project, region, calls = str(Vertex.of(plan.target).project), job_request.first_region(plan), Calls(clock)
    parent = f"projects/{project}/locations/{region}"
    first = datetime.fromtimestamp(since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {keeper_labels.SCHEDULE: schedule}
    jobs = calls.pipeline_jobs(parent, labels, f'state!="{_PIPELINE}SUCCEEDED"', f'create_time>="{first}"')
    root = own_schedules.pipeline_root(plan.root, schedule)
    ended = [each for each in jobs if _root(each) == root and _state(each) in _ENDED_BADLY]
    ended.sort(key=lambda each: str(each.get("createTime")), reverse=True)
    return [_failed(each, calls, clock, project, since, newest=each is ended[0]) for each in ended]


def _failed(
    pipeline: Mapping[str, object], calls: Calls, clock: Clock, project: str, since: float, *, newest: bool
) -> FailedKeeper:
    """Return what is known of a pipeline job; its custom job, which a list does not name, has the log and the slot."""
    name, job = str(pipeline["name"]), None
    region, labels = name.split("/")[3], pipeline.get("labels")
    main_job = _main_job(calls.get(name))
    with suppress(MissingError):
        job = JobClient(project, clock=clock).get(main_job) if main_job else None
    args = dict(each.partition("=")[::2] for each in job.args) if job else {}
    told, cause = args.get(SLOT_TIME, ""), args.get(CAUSE, BY_CRON)
    look = f"{_CONSOLE}/{region}/runs/{name.rpartition('/')[2]}?project={project}"
    if job is not None:
        look = f"gcloud ai custom-jobs stream-logs {job.id} --region={region} --project={project}"
    return FailedKeeper(
        job=name,
        state=_state(pipeline),
        created=unix_time(str(pipeline.get("createTime") or "")) or since,
        slot=slot_of(cause) if cause != BY_CRON else unix_time(told) if told.endswith("Z") else None,
        by_hand=isinstance(labels, Mapping) and labels.get(keeper_labels.SLOT) == BY_HAND,
        error=_error(job, project, clock if newest else None) if job else "",
        look=look,
    )


def _root(pipeline: Mapping[str, object]) -> object:
    config = pipeline.get("runtimeConfig")
    return config.get("gcsOutputDirectory") if isinstance(config, Mapping) else None


def _state(pipeline: Mapping[str, object]) -> str:
    return str(pipeline.get("state")).removeprefix(_PIPELINE)


def _main_job(pipeline: Mapping[str, object]) -> str:
    """Return the name of the custom job that is the keeper, "" if it has none."""
    match = _MAIN_JOB.search(json.dumps(pipeline.get("jobDetail")))
    return match[1] if match else ""


def _error(job: VendorJob, project: str, clock: Clock | None) -> str:
    """Return what the service reports about a job, and with a clock the end of its log if that says more."""
    meaning = diagnose(job.message, job.code)
    if meaning.certain:
        return quoted(meaning.message, emulator.asked())
    text = f'Vertex AI reports: "{meaning.vendor_text}".' if meaning.vendor_text else ""
    if clock is not None:
        body = logs.last_output(partial(_asked, clock=clock), project, job.id, _REPLICA)
        lines = [line.strip() for line in body.splitlines() if line.strip()][-_LINES:]
        known = diagnose_program(body)
        if lines:
            text = f"Its log ends: {clipped(' / '.join(lines), _CHARACTERS)}{f' {known.message}' if known else ''}"
    return quoted(text, emulator.asked())


def _asked(body: dict[str, object], clock: Clock) -> Mapping[str, object]:
    """Ask the log once; a keeper may not read it, and what the service reports about its job counts then."""
    try:
        return logs.query(body, clock, within_s=0.0, timeout_s=_LIMIT_S)
    except PodliftError:
        return {}
