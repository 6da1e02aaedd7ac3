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
    """What is known of a schedule that is to have a trigger.

    Args:
        plan: the plan of its firings.
        schedule: its name.
        id: its id, which tells it from others of its name; "" before it is created.
        name: full name of the trigger that it has; "" for none.
        cron: its cron expression.
        time_zone: the zone of that.
        period_s: the shortest time between two slots.
        firings: how many slots lie in the next 30 days.
        overlap: what a slot does while an earlier run goes on.
        notify: its notifications.
        location: where the trigger is to be; "" for the service's own choice.
        digest: that of the schedule and its plan.
        max_cost_usd_per_month: its limit of a month.
        keeps: what its keeper keeps, as "module:function" (`sdk.backends.keeper_main`).
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
        settings: what of the service's own record is compared, with what it posts as JSON.
        files: what is read when it fires, by key in the store of the schedules; written once.
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
        time_zone: the zone of that.
        paused: True if it does not fire.
        description: its description, which names the schedule.
        root: the root of the schedule that it belongs to; "" if it is none of podlift's.
        schedule: the name of that.
        id: the id of that.
        settings: as in the request, with what it posts at each slot.
        last_attempt: when it last fired, a Unix time; None if it never did.
        status: what the service reports about that; "" if it succeeded.
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
    """A delivery whose keeper failed, perhaps before it could write a record.

    Args:
        state: FAILED, CANCELLED or EXPIRED.
        error: sentences that say why, with its last lines where they tell.
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
        """What a sentence calls the service."""

    @property
    def grace_s(self) -> float:
        """How long after a slot its record may be missing: the service repeats, and machines start."""

    def adapted(self, plan: Plan) -> Plan:
        """Return a plan for firings, without what the trigger brings itself. Pure."""

    def review(self, draft: TriggerDraft) -> list[Finding]:
        """Return what speaks against a trigger. Pure."""

    def lines(self, draft: TriggerDraft) -> list[tuple[str, str]]:
        """Return where the trigger is, who fires it with which rights, and the price, as (label, text). Pure."""

    def parent(self, plan: Plan, location: str) -> str:
        """Return where the triggers of such plans are kept."""

    def render(self, draft: TriggerDraft) -> TriggerRequest:
        """Return the request that `create` will send. Nothing is sent."""

    def upload(self, plan: Plan) -> None:
        """Store what the machines need that a firing starts first."""

    def create(self, request: TriggerRequest, clock: Clock) -> Trigger:
        """Create a trigger that does not exist; an equal one that appeared meanwhile is returned."""

    def get(self, name: str, clock: Clock) -> Trigger | None:
        """Return a trigger, None if there is none."""

    def kept(self, parent: str, clock: Clock) -> list[Trigger]:
        """Return podlift's triggers in a place."""

    def update(self, request: TriggerRequest, before: Trigger, clock: Clock) -> Trigger:
        """Change what differs; a paused trigger stays paused, and a broken one is made anew."""

    def pause(self, name: str, clock: Clock) -> None:
        """Stop firing. Pausing again has no effect."""

    def unpause(self, name: str, clock: Clock) -> None:
        """Fire again, from the next slot on."""

    def delete(self, name: str, clock: Clock) -> None:
        """Remove a trigger; one that does not exist is no error."""

    def fire_now(self, trigger: Trigger, clock: Clock, slot: float | None = None) -> str:
        """Start what the trigger starts, exactly once, and return its name: for a slot, or as a firing by hand."""

    def failed(self, plan: Plan, schedule: str, since: float, clock: Clock) -> list[FailedKeeper]:
        """Return what was started for a schedule since a Unix time and has failed, the newest first."""

    def alert(self, name: str) -> str:
        """Return a command that makes an alert of failed deliveries."""
