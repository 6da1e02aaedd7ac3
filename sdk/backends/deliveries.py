"""The seam between the keeper of a schedule and the service whose job it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..hardware.pricing import Price
from ..job.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One start of a keeper: a service delivered a slot, perhaps again, or a user asked for a firing.

    Args:
        job: full name of the keeper's job, which stays the same when its container starts again.
        created: when the service created it, a Unix time.
        by_hand: True for a firing that a user asked for, which is a slot of its own.
        slot: the slot that it names, a Unix time; None for the one that is nearest to its creation.
    """

    job: str
    created: float
    by_hand: bool = False
    slot: float | None = None

    @property
    def id(self) -> str:
        return self.job.rpartition("/")[2]


class Deliveries(Protocol):
    """What a keeper's container asks the service; it has podlift's runtime archive and the standard library only."""

    def delivery(self, plan: Plan, environ: Mapping[str, str], clock: Clock) -> Delivery:
        """Return what started this container. `plan` is that of the firings, `environ` the container's variables."""

    def keeper_price(self, plan: Plan, overlap: str) -> Price | None:
        """Return the price of a keeper for its longest life; None if nothing is billed."""

    def pause(self, trigger: str, clock: Clock) -> None:
        """Let a trigger deliver nothing more; PodliftError without the right to."""
