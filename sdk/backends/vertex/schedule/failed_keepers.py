"""Failed keepers. A keeper that crashes before it takes its slot leaves no record, only its job and its log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial

from ....clock import Clock
from ....errors import PodliftError
from ....job.layout import RootPaths
from ....job.plan import Plan
from ....text import clipped
from ...containers import key_of
from ...triggers import FailedKeeper
from ..client import JobClient
from ..job import logs
from ..job import request as job_request
from ..job.diagnose import diagnose, diagnose_program
from ..job.states import PREFIX, VendorJob
from ..options import Vertex
from ..service import quoted
from . import keeper_labels, scheduled_keeper

_SUCCEEDED = f"{PREFIX}SUCCEEDED"
_REPLICA = "workerpool0-0"
_LINES, _CHARACTERS, _LIMIT_S = 2, 400, 5.0


def find(plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
    """Return the failed keepers of a schedule since a Unix time, the newest first; only that one's log is read."""
    project, region = str(Vertex.of(plan.target).project), job_request.first_region(plan)
    labels, bucket = {keeper_labels.SCHEDULE: schedule}, plan.root.split("/")[2]
    # Another root may have a schedule of this name.
    folder = key_of(f"{RootPaths(plan.root).schedules}/{scheduled_keeper.folder(schedule)}")
    first = datetime.fromtimestamp(since, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    jobs = JobClient(project, clock=clock).list(region, labels, f'state!="{_SUCCEEDED}"', f'create_time>="{first}"')
    ours = [job for job in jobs if job.args[:1] == (bucket,) and any(text.startswith(folder) for text in job.args)]
    ended = [job for job in ours if job.over and job.state != _SUCCEEDED]
    ended.sort(key=lambda job: job.created or 0.0, reverse=True)
    return [
        FailedKeeper(
            job=job.name,
            state=job.state.removeprefix(PREFIX),
            created=job.created or since,
            by_hand=(job.labels or {}).get(keeper_labels.SLOT) == keeper_labels.BY_HAND,
            slot=keeper_labels.slot_of((job.labels or {}).get(keeper_labels.SLOT, "")),
            error=_error(job, project, clock if job is ended[0] else None),
            look=f"gcloud ai custom-jobs stream-logs {job.id} --region={region} --project={project}",
        )
        for job in ended
    ]


def _error(job: VendorJob, project: str, clock: Clock | None) -> str:
    """Return the service's report about a job; with a clock, also the end of its log if the report names no cause."""
    meaning = diagnose(job.message, job.code)
    if meaning.certain:
        return quoted(meaning.message)
    text = f'Vertex AI reports: "{meaning.vendor_text}".' if meaning.vendor_text else ""
    if clock is not None:
        body = logs.last_output(partial(_query_log, clock=clock), project, job.id, _REPLICA)
        lines = [line.strip() for line in body.splitlines() if line.strip()][-_LINES:]
        cause = diagnose_program(body)
        if lines:
            text = f"Its log ends: {clipped(' / '.join(lines), _CHARACTERS)}{f' {cause.message}' if cause else ''}"
    return quoted(text)


def _query_log(body: dict[str, object], clock: Clock) -> Mapping[str, object]:
    """Query the log once; a keeper may lack the right, and the service's report about its job counts then."""
    try:
        return logs.query(body, clock, within_s=0.0, timeout_s=_LIMIT_S)
    except PodliftError:
        return {}
