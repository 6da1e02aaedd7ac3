"""The triggers of schedules on Vertex AI: jobs of Cloud Scheduler, each of which posts a keeper job at every slot.

Sources: REST reference of Cloud Scheduler v1, projects.locations.jobs; the messages Job, HttpTarget and RetryConfig of
google.cloud.scheduler_v1 (read 2026-11-23).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....clock import Clock
from ....errors import InputError
from ....job.findings import Finding
from ....job.plan import Plan
from ...containers import upload_archives
from ...triggers import FailedKeeper, Trigger, TriggerDraft, TriggerRejectedError, TriggerRequest
from ..checks import schedule as schedule_checks
from ..job import request as job_request
from ..options import Vertex
from . import failed_keepers, scheduled_keeper, scheduler_calls, trigger_text
from .keeper_labels import BY_HAND, label_of
from .scheduler_calls import HOST, TITLE, call

PREFIX = "podlift-"
_ATTEMPT_S, _FIRST_RETRY_S, _MOST_RETRIES = 60, 30, 3
# However long the period is: a keeper that starts later than this is no longer useful for the slot.
_LONGEST_RETRIES_S = 3 * 3600
_LARGEST = 1_000_000
# Repeated deliveries, and the start of the keeper's container.
_GRACE_S = 1800.0


class CloudScheduler:
    """The trigger service of the backend called "vertex"."""

    title = TITLE
    grace_s = _GRACE_S

    def adapted(self, plan: Plan) -> Plan:
        """Return the plan without its keeper; the firing's keeper waits for the run."""
        findings = tuple(finding for finding in plan.findings if "no effect without a keeper" not in finding.message)
        return replace(plan, findings=findings, fired=True)

    def review(self, draft: TriggerDraft) -> list[Finding]:
        plan = draft.plan
        findings = list(
            schedule_checks.run(
                plan.job,
                Vertex.of(plan.target),
                plan.facts,
                root=plan.root,
                notify=draft.notify,
                location=draft.location,
            )
        )
        size = len(json.dumps(self.render(draft).body))
        if size >= _LARGEST:
            findings.append(
                Finding(
                    "error",
                    f"The job of Cloud Scheduler is too large: {size:,} bytes. Allowed: less than {_LARGEST:,}. Next: fewer or "
                    "shorter vertex_labels, or a shorter vertex_image.",
                )
            )
        return findings

    def lines(self, draft: TriggerDraft) -> list[tuple[str, str]]:
        name = self._name(draft).rpartition("/")[2]
        location, retries = _location(draft.plan, draft.location), _retries(draft.period_s)
        return list(trigger_text.of_cloud_scheduler(draft, name, location, retries))

    def parent(self, plan: Plan, location: str) -> str:
        project = Vertex.of(plan.target).project or job_request.NO_PROJECT
        return f"projects/{project}/locations/{_location(plan, location)}"

    def _name(self, draft: TriggerDraft) -> str:
        if draft.name.rpartition("/jobs/")[0] == self.parent(draft.plan, draft.location):
            # Another checkout of the project may be in a folder of another name.
            return draft.name
        name = f"{PREFIX}{job_request.project_of(draft.plan)}-{draft.schedule}"
        return f"{self.parent(draft.plan, draft.location)}/jobs/{name}"

    def render(self, draft: TriggerDraft) -> TriggerRequest:
        files = scheduled_keeper.files(draft)
        posted = scheduled_keeper.body(draft, files)
        options = Vertex.of(draft.plan.target)
        region, project = job_request.first_region(draft.plan), options.project or job_request.NO_PROJECT
        # Also for an emulator, which stands in for this address.
        uri = f"https://{region}-aiplatform.googleapis.com/v1/projects/{project}/locations/{region}/customJobs"
        target: dict[str, object] = {
            "uri": uri,
            "httpMethod": "POST",
            # The default is application/octet-stream, which Vertex AI rejects.
            "headers": {"Content-Type": "application/json"},
            "body": base64.b64encode(json.dumps(posted, sort_keys=True).encode()).decode(),
            # Not oidcToken, which Google's own APIs do not accept.
            "oauthToken": {
                "serviceAccountEmail": scheduled_keeper.keeper(draft.plan, draft.overlap).account,
                "scope": scheduler_calls.CLOUD,
            },
        }
        body: dict[str, object] = {
            "name": self._name(draft),
            "description": scheduler_calls.description(draft),
            "schedule": draft.cron,
            "timeZone": draft.time_zone,
            "attemptDeadline": f"{_ATTEMPT_S}s",
            "retryConfig": _retry_config(draft.period_s),
            "httpTarget": target,
        }
        url = f"{HOST}/v1/{self.parent(draft.plan, draft.location)}/jobs"
        return TriggerRequest(
            name=self._name(draft),
            body=body,
            settings=scheduler_calls.settings(body),
            files={files.key: files.spec},
            url=url,
        )

    def upload(self, plan: Plan) -> None:
        """Store the archives that a keeper starts from."""
        upload_archives(plan)

    def create(self, request: TriggerRequest, clock: Clock) -> Trigger:
        """Create a job of Cloud Scheduler. Its name is its identity: after a lost reply, a second one is refused."""
        parent = request.name.rpartition("/jobs/")[0]
        try:
            return call("POST", f"{parent}/jobs", scheduler_calls.trigger, clock, body=request.body)
        except TriggerRejectedError as error:
            there = self.get(request.name, clock) if error.status == scheduler_calls.EXISTS else None
            if there is None:
                raise
            return _same(there, request)

    def get(self, name: str, clock: Clock) -> Trigger | None:
        return scheduler_calls.get(name, clock)

    def list_all(self, parent: str, clock: Clock) -> list[Trigger]:
        def page(answer: Any) -> tuple[list[Trigger], str]:
            return [*map(scheduler_calls.trigger, answer.get("jobs") or ())], str(answer.get("nextPageToken") or "")

        jobs, token = call("GET", f"{parent}/jobs", page, clock)
        while token:
            more, token = call("GET", f"{parent}/jobs", page, clock, query={"pageToken": token})
            jobs += more
        return [job for job in jobs if job.name.rpartition("/")[2].startswith(PREFIX)]

    def update(self, request: TriggerRequest, before: Trigger, clock: Clock) -> Trigger:
        if before.broken:
            self.delete(request.name, clock)
            return self.create(request, clock)
        mask = {
            "updateMask": ",".join(name for name, value in request.settings.items() if value != before.settings[name])
        }
        try:
            return call("PATCH", request.name, scheduler_calls.trigger, clock, query=mask, body=request.body)
        except TriggerRejectedError as error:
            # It was deleted a moment ago.
            if error.status != scheduler_calls.MISSING:
                raise
            return self.create(request, clock)

    def pause(self, name: str, clock: Clock) -> None:
        scheduler_calls.set_paused(name, clock, paused=True)

    def unpause(self, name: str, clock: Clock) -> None:
        scheduler_calls.set_paused(name, clock, paused=False)

    def delete(self, name: str, clock: Clock) -> None:
        try:
            call("DELETE", name, dict, clock)
        except TriggerRejectedError as error:
            # An earlier request may have removed it.
            if error.status != scheduler_calls.MISSING:
                raise

    def fire_now(self, trigger: Trigger, clock: Clock, slot: float | None = None) -> str:
        return scheduler_calls.fire(trigger, clock, BY_HAND if slot is None else label_of(slot))

    def failed(self, plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
        return failed_keepers.find(plan, schedule, since, clock)

    def alert(self, name: str) -> str:
        return scheduler_calls.alert(name)


def _same(there: Trigger, request: TriggerRequest) -> Trigger:
    """Return a job that exists already if it is the requested one."""
    if there.digest == request.digest:
        return there
    owner = f"the schedule {there.schedule!r} (id {there.id}) of {there.root}" if there.root else "nothing of podlift"
    raise InputError(
        f"Cloud Scheduler has another job {request.name.rpartition('/')[2]!r} already, of {owner}. Nothing was changed there. "
        f"Next: another name for the schedule, or delete that job: gcloud scheduler jobs delete {request.name}"
    )


def _location(plan: Plan, location: str) -> str:
    return location or job_request.first_region(plan)


def _retries(period_s: float) -> int:
    """Return how often a delivery is repeated, so that the last one still belongs to its slot."""
    waits = [0, *(_FIRST_RETRY_S * (2**count - 1) + _ATTEMPT_S * count for count in range(1, _MOST_RETRIES + 1))]
    return max(count for count, wait_s in enumerate(waits) if wait_s < period_s / 2)


def _retry_config(period_s: float) -> Mapping[str, object]:
    """Return the retries. Cloud Scheduler repeats until both limits are reached, the number and the duration."""
    count = _retries(period_s)
    if not count:
        return {"retryCount": 0}
    longest_s = math.ceil(min(period_s / 2, _LONGEST_RETRIES_S + 1)) - 1
    return {"retryCount": count, "minBackoffDuration": f"{_FIRST_RETRY_S}s", "maxRetryDuration": f"{longest_s}s"}
