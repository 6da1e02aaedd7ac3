"""The processes that fire the slots of a schedule, and their differences: as data, for one state machine.

`docs/explanation/decisions/schedules.md` has the table. Deliveries are made by a service that starts keepers, by a server, by a
command, and by a user who requests an extra run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..hardware.pricing import Price
from ..job.plan import Plan

# Another process takes a slot over this long after the last renewal by its holder. A keeper has the lease of a claim for a job:
# a killed keeper is replaced within two minutes.
SERVER_LEASE_S, KEEPER_LEASE_S = 600.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A demand for the run of a slot: by a service at its time, perhaps again, by a server, or by a user.

    Args:
        job: full name of the keeper, or of the command, that stays with the slot until its run has ended; unchanged when it
            starts again. "" on a machine where several servers share the slots.
        created: the Unix time of its creation, by the clock of its creator.
        slot: its slot, a Unix time; None for the slot nearest to its creation.
        by_hand: True for a run requested by a user, in an extra slot.
        every: True for all slots that are due, as a server delivers them.
        busy: when a server fired others, from and until a Unix time: a slot in between is not late.
        lease_s: another process may take its slots over after this time.
        price: asks for the price of its machine for its longest life, once a limit depends on it; None if nothing is billed.
    """

    job: str = ""
    created: float
    slot: float | None = None
    by_hand: bool = False
    every: bool = False
    busy: tuple[float, float] = (0.0, 0.0)
    lease_s: float = SERVER_LEASE_S
    price: Callable[[], Price | None] = lambda: None

    @property
    def id(self) -> str:
        return self.job.rpartition("/")[2]


class Deliveries(Protocol):
    """Answers the container of a keeper, which has podlift's runtime archive and the standard library only."""

    def delivery(self, plan: Plan, environ: Mapping[str, str], clock: Clock) -> Delivery:
        """Return the delivery that started this container. `plan` is for firings, `environ` has its variables."""

    def keeper_price(self, plan: Plan, overlap: str) -> Price | None:
        """Return the price of a keeper for its longest life; None if nothing is billed."""

    def pause(self, trigger: str, clock: Clock) -> None:
        """Let a trigger deliver nothing more; PodliftError without the right to."""
