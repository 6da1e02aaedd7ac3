"""The seam between schedules and the services that start them: a trigger is a service's own record of a schedule.

A backend without one is started by `podlift schedule serve`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..clock import Clock
from ..errors import PodliftError
from ..job.findings import Finding
from ..job.plan import Plan
from .deliveries import Delivery


class TriggerRejectedError(PodliftError):
    """The service rejected a request; nothing was changed there. `status` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class TriggerDraft:
    """A schedule, as the service needs it for its trigger.

    Args:
        plan: the plan of its firings.
        schedule: the name of the schedule.
        id: its id, which distinguishes successive schedules with the same name; "" before it is created.
        name: full name of its trigger; "" for none.
        cron: its cron expression.
        time_zone: the time zone of the expression.
        period_s: the shortest time between two slots.
        firings: the number of slots in the next 30 days.
        overlap: the action of a slot during an earlier run.
        notify: its notifications.
        location: the location of the trigger; "" for the service's own choice.
        digest: the digest of the schedule and its plan.
        max_cost_usd_per_month: its monthly limit.
        keeps: the entry point of its keeper, as "module:function" (`sdk.backends.keeper_main`).
        zone: the data of the time zone, for an image that has none, by its name in base64.
    """

    plan: Plan
    schedule: str
    id: str = ""
    name: str = ""
    cron: str
    time_zone: str
    period_s: float
    firings: int = 0
    overlap: str = "skip"
    notify: Sequence[str] = ()
    location: str = ""
    digest: str = ""
    max_cost_usd_per_month: float | None = None
    keeps: str
    zone: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TriggerRequest:
    """The request for a trigger, as printable data.

    Args:
        name: the trigger's full name at its service.
        body: the request itself.
        settings: the fields of the service's record that are compared; the posted body is decoded JSON.
        files: the files that a firing reads, by key in the store of the schedules; written once.
        url: where the request is sent.
    """

    name: str
    body: Mapping[str, object]
    settings: Mapping[str, object]
    files: Mapping[str, bytes] = field(default_factory=dict)
    url: str = ""

    @property
    def digest(self) -> str:
        return digest_of(self.settings)


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """A trigger as its service has it: the only truth about whether a schedule fires, and when.

    Args:
        name: its full name.
        cron: its cron expression.
        time_zone: the time zone of the expression.
        paused: True if it does not fire.
        description: its description, which names the schedule.
        root: the root of its schedule; "" if podlift did not create it.
        schedule: the name of its schedule.
        id: the id of its schedule.
        settings: as in the request, with the body that it posts at each slot.
        last_attempt: when it last fired, a Unix time; None if it never did.
        status: the error of the last attempt; "" if it succeeded.
        broken: why the service does not fire it although it is not paused; "" if it does.
        next: when it fires next.
    """

    name: str
    cron: str
    time_zone: str
    paused: bool
    description: str
    root: str = ""
    schedule: str = ""
    id: str = ""
    settings: Mapping[str, object]
    last_attempt: float | None = None
    status: str = ""
    broken: str = ""
    next: float | None = None

    @property
    def digest(self) -> str:
        return digest_of(self.settings)


@dataclass(frozen=True, kw_only=True)
class FailedKeeper(Delivery):
    """A delivery with a failed keeper, perhaps without a record.

    Args:
        state: FAILED, CANCELLED or EXPIRED.
        error: the cause as sentences, with the last lines of its log where they help.
        look: the command that shows its log.
    """

    state: str
    error: str
    look: str


def digest_of(settings: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class TriggerService(Protocol):
    """Keeps triggers. Names are full ones; lost replies are looked up, so that no call leaves two triggers."""

    @property
    def title(self) -> str:
        """The name of the service in a sentence."""

    @property
    def grace_s(self) -> float:
        """How long after a slot its record may be missing: the service repeats, and machines start."""

    def adapted(self, plan: Plan) -> Plan:
        """Return a plan for firings, without the parts that the trigger provides itself. Pure."""

    def review(self, draft: TriggerDraft) -> list[Finding]:
        """Return the findings for a trigger. Pure."""

    def lines(self, draft: TriggerDraft) -> list[tuple[str, str]]:
        """Return where the trigger is, who fires it with which rights, and the price, as (label, text). Pure."""

    def parent(self, plan: Plan, location: str) -> str:
        """Return where the triggers of such plans are kept."""

    def render(self, draft: TriggerDraft) -> TriggerRequest:
        """Return the request that `create` will send. Nothing is sent."""

    def upload(self, plan: Plan) -> None:
        """Store the files for the first machines of a firing."""

    def create(self, request: TriggerRequest, clock: Clock) -> Trigger:
        """Create a trigger, or return an equal one that appeared meanwhile."""

    def get(self, name: str, clock: Clock) -> Trigger | None:
        """Return a trigger, None if it does not exist."""

    def list_all(self, parent: str, clock: Clock) -> list[Trigger]:
        """Return podlift's triggers below a parent."""

    def update(self, request: TriggerRequest, before: Trigger, clock: Clock) -> Trigger:
        """Change the fields that differ; a paused trigger stays paused, and a broken one is recreated."""

    def pause(self, name: str, clock: Clock) -> None:
        """Stop firing. Pausing again has no effect."""

    def unpause(self, name: str, clock: Clock) -> None:
        """Fire again, from the next slot on."""

    def delete(self, name: str, clock: Clock) -> None:
        """Remove a trigger. A missing one is no error."""

    def fire_now(self, trigger: Trigger, clock: Clock, slot: float | None = None) -> str:
        """Start the trigger's job exactly once, and return its name: for a slot, or as a firing by hand."""

    def failed(self, plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
        """Return the failed keepers of a schedule since a Unix time, newest first."""

    def alert(self, name: str) -> str:
        """Return a command that makes an alert of failed deliveries."""
