"""The triggers of schedules as Vertex AI's own schedules, each of which starts a keeper's pipeline job at every slot.

For projects inside a perimeter of VPC Service Controls, across which Cloud Scheduler cannot post to Vertex AI. Vertex AI gives
schedules their names, and accepts any number with one display name: podlift looks before and after it creates one.

Source: the messages Schedule and UpdateScheduleRequest of google.cloud.aiplatform_v1 (read 2026-11-23).
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping

from ...checks import vertex_schedule
from ...clock import Clock
from ...errors import InputError, UnavailableError
from ...spec.findings import Finding
from ...spec.plan import Plan
from ...spec.policies import Vertex
from ...storage import emulator
from ...storage.retry import Retries
from ..triggers import FailedKeeper, Trigger, TriggerDraft, TriggerRejectedError, TriggerRequest
from . import create_job, keeper_pipeline, own_schedules, scheduled_keeper, slot_labels, trigger_text
from . import request as job_request
from .client import unix_time
from .cloud_scheduler import PREFIX, adapted, upload
from .failed_keepers import of_pipelines
from .keeper_labels import BY_HAND, CAUSE, SLOT
from .own_schedules import REQUEST, parent_of, pipeline_of, set_paused
from .schedule_calls import FIRST_WAIT_S, LONGEST_WAIT_S, MISSING, REPEAT_S, Calls, Resource
from .scheduler_calls import alert_command

# The start of a pipeline and of the keeper's container.
_GRACE_S = 1800.0
_MOST_AT_ONCE = 100
_FIELDS = {
    "cron": "cron",
    "maxConcurrentRunCount": "max_concurrent_run_count",
    "allowQueueing": "allow_queueing",
    REQUEST: "create_pipeline_job_request",
}
_CRON = re.compile(r"(?:(?:CRON_)?TZ=(?P<zone>\S+)\s+)?(?P<cron>.*)", re.DOTALL)
# What Vertex AI writes into the response of a run is not documented: the name of a google.rpc.Code counts as a failure.
_FAILED = re.compile(
    r"CANCELLED|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|RESOURCE_EXHAUSTED"
    r"|FAILED_PRECONDITION|ABORTED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|UNAUTHENTICATED"
)


class VertexSchedules:
    """The second trigger service of the backend called "vertex"."""

    title = "Vertex AI"
    grace_s = _GRACE_S

    def adapted(self, plan: Plan) -> Plan:
        return adapted(plan)

    def review(self, draft: TriggerDraft) -> list[Finding]:
        plan, target = draft.plan, Vertex.of(draft.plan.target)
        found = list(vertex_schedule.run(plan.job, target, plan.facts, root=plan.root, notify=draft.notify))
        region = job_request.first_region(plan)
        if draft.location not in ("", region):
            found.append(
                Finding(
                    "error",
                    f"location: with via='vertex' a schedule is in the region of its keeper, {region}. Received: "
                    f"{draft.location!r}. Next: omit it.",
                )
            )
        return found

    def lines(self, draft: TriggerDraft) -> list[tuple[str, str]]:
        name = self._name(draft).rpartition("/")[2]
        return list(trigger_text.of_vertex(draft, name, job_request.first_region(draft.plan)))

    def parent(self, plan: Plan, location: str) -> str:
        project = Vertex.of(plan.target).project or job_request.NO_PROJECT
        return f"projects/{project}/locations/{job_request.first_region(plan)}"

    def _name(self, draft: TriggerDraft) -> str:
        parent = self.parent(draft.plan, draft.location)
        if draft.name.rpartition("/schedules/")[0] == parent:
            # Another checkout of the project may be in a folder of another name.
            return draft.name
        return f"{parent}/schedules/{PREFIX}{scheduled_keeper.project_of(draft.plan)}-{draft.schedule}"

    def render(self, draft: TriggerDraft) -> TriggerRequest:
        found, name, parent = scheduled_keeper.files(draft), self._name(draft), self.parent(draft.plan, draft.location)
        display_name = name.rpartition("/")[2]
        body: dict[str, object] = {
            "displayName": display_name,
            "cron": f"TZ={draft.time_zone} {draft.cron}",
            "maxConcurrentRunCount": str(_at_once(draft)),
            "allowQueueing": True,
            REQUEST: {"parent": parent, "pipelineJob": keeper_pipeline.body(draft, found, display_name)},
        }
        region = job_request.first_region(draft.plan)
        url = f"https://{region}-aiplatform.googleapis.com/v1/{parent}/schedules"
        return TriggerRequest(name=name, body=body, settings=settings(body), files={found.key: found.spec}, url=url)

    def upload(self, plan: Plan) -> None:
        upload(plan)

    def create(self, request: TriggerRequest, clock: Clock) -> Trigger:
        """Create a schedule. Vertex AI would make a second one without a word: it is looked for before and after."""
        calls, tries = Calls(clock), Retries.within(REPEAT_S, clock, FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        made = self.get(request.name, clock)
        while made is None:
            try:
                made = _trigger(request.name, calls.create(parent_of(request.name), request.body))
            except UnavailableError:
                made = self._sought(request.name, clock)
                if made is None and not tries.again():
                    raise
        return self._only(made, request, clock)

    def _sought(self, name: str, clock: Clock) -> Trigger | None:
        """Return the schedule of a request whose reply was lost, as soon as it is listed."""
        for wait_s in create_job.SEARCH_DELAYS_S:
            clock.sleep(wait_s)
            found = self.get(name, clock)
            if found is not None:
                return found
        return None

    def _only(self, made: Trigger, request: TriggerRequest, clock: Clock) -> Trigger:
        """Return the schedule that stays, the oldest of this name, after the removal of the others."""
        # None of them are podlift's if the first one is not.
        ours = [each for each in own_schedules.named(request.name, clock) if own_schedules.owner(each)[0]]
        for each in ours[1:]:
            Calls(clock).delete(str(each["name"]))
        found = _trigger(request.name, ours[0]) if ours else made
        if found.digest == request.digest:
            return found
        owner = (
            f"the schedule {found.schedule!r} (id {found.id}) of {found.root}" if found.root else "nothing of podlift"
        )
        raise InputError(
            f"Vertex AI has another schedule called {request.name.rpartition('/')[2]!r} already, of {owner}. Nothing was "
            "changed there. Next: another name for the schedule, or delete that one in the console."
        )

    def get(self, name: str, clock: Clock) -> Trigger | None:
        named = own_schedules.named(name, clock)
        return _trigger(name, named[0]) if named else None

    def kept(self, parent: str, clock: Clock) -> list[Trigger]:
        found = dict[str, Trigger]()
        for each in Calls(clock).found(parent):
            name = f"{parent}/schedules/{each.get('displayName')}"
            if own_schedules.owner(each)[0]:
                found.setdefault(name, _trigger(name, each))
        return list(found.values())

    def update(self, request: TriggerRequest, before: Trigger, clock: Clock) -> Trigger:
        if before.broken:
            self.delete(request.name, clock)
            return self.create(request, clock)
        fields = [path for name, path in _FIELDS.items() if request.settings[name] != before.settings[name]]
        named = own_schedules.named(request.name, clock)
        try:
            changed = [Calls(clock).update(str(each["name"]), request.body, fields) for each in named]
        except TriggerRejectedError as error:
            if error.status != MISSING:
                raise
            changed = []
        # None if it was deleted a moment ago.
        return _trigger(request.name, changed[0]) if changed else self.create(request, clock)

    def pause(self, name: str, clock: Clock) -> None:
        set_paused(name, clock, paused=True)

    def resume(self, name: str, clock: Clock) -> None:
        set_paused(name, clock, paused=False)

    def delete(self, name: str, clock: Clock) -> None:
        for each in own_schedules.named(name, clock):
            Calls(clock).delete(str(each["name"]))

    def fire_now(self, trigger: Trigger, clock: Clock, slot: float | None = None) -> str:
        """Start the keeper's pipeline; its id is ours, so that a lost reply starts no second one."""
        request = trigger.settings[REQUEST]
        posted = request.get("pipelineJob") if isinstance(request, Mapping) else None
        posted = posted if isinstance(posted, Mapping) else {}
        labels, config = posted.get("labels"), posted.get("runtimeConfig")
        if not isinstance(labels, Mapping) or not isinstance(config, Mapping):
            raise InputError(
                f"The schedule {trigger.name} of Vertex AI starts something else than a keeper. Next: podlift schedule "
                "create again, which mends it."
            )
        cause = BY_HAND if slot is None else slot_labels.label_of(slot)
        pipeline = {
            **posted,
            "labels": {**labels, SLOT: cause},
            "runtimeConfig": {**config, "parameterValues": {CAUSE: cause}},
        }
        id = f"{PREFIX}{trigger.schedule}-{secrets.token_hex(8)}"
        return Calls(clock).start(parent_of(trigger.name), pipeline, id)

    def failed(self, plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
        return of_pipelines(plan, schedule, since, clock)

    def alert(self, name: str) -> str:
        title = name.rpartition("/")[2]
        words = f'resource.type="aiplatform.googleapis.com/PipelineJob" AND resource.labels.pipeline_job_id:"{title}"'
        return alert_command(name.split("/")[1], f"{title}: failed", f"{words} AND severity>=ERROR")


def settings(schedule: Resource) -> Mapping[str, object]:
    """Return what is compared of a schedule in JSON."""
    return {
        "displayName": schedule.get("displayName", ""),
        "cron": schedule.get("cron", ""),
        "maxConcurrentRunCount": str(schedule.get("maxConcurrentRunCount", "")),
        "allowQueueing": bool(schedule.get("allowQueueing")),
        REQUEST: {"pipelineJob": pipeline_of(schedule)},
    }


def _at_once(draft: TriggerDraft) -> int:
    """Return how many keepers may be there at a time: each waits for its run. Vertex AI lets further ones wait."""
    life_s = scheduled_keeper.keeper(draft.plan, draft.overlap).life_s
    return min(math.ceil(life_s / draft.period_s) + 1, _MOST_AT_ONCE)


def _trigger(name: str, schedule: Resource) -> Trigger:
    root, owner, id = own_schedules.owner(schedule)
    match, state = _CRON.fullmatch(str(schedule.get("cron", ""))), own_schedules.state(schedule)
    last = schedule.get("lastScheduledRunResponse")
    last = last if isinstance(last, Mapping) else {}
    response = str(last.get("runResponse", ""))
    return Trigger(
        name=name,
        cron=match["cron"] if match else "",
        time_zone=(match["zone"] if match else "") or "UTC",
        paused=state == "PAUSED",
        description="",
        root=root,
        schedule=owner,
        id=id,
        settings=settings(schedule),
        last_attempt=unix_time(str(last.get("scheduledRunTime") or "")),
        status=emulator.mask_token(response) if _FAILED.search(response) else "",
        broken=""
        if state in ("ACTIVE", "PAUSED")
        else f"its state is {state}: Vertex AI starts nothing for it any more",
        next=unix_time(str(schedule.get("nextRunTime") or "")),
    )
