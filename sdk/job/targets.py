"""Targets of runs: the base class of every backend's options. The backends' folders hold the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ..hardware import pricing
from ..hardware.catalog import PriceTable
from . import option_classes
from .findings import Facts, Finding
from .policies import Limits, Resources, Retry
from .values import Value

if TYPE_CHECKING:
    from typing_extensions import Self

Start = Literal["auto", "fork", "spawn", "standby", "anew"]
# Vertex AI documents no longer jobs.
LONGEST_S = 7 * 86400.0
_KEEPER_MARGIN_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """A small job that waits for a run: its service account, the account of the jobs that it submits, and its machine."""

    account: str
    program_account: str | None
    rental: pricing.Rental
    life_s: float  # the longest time for which it waits
    image: str | None = None  # None for the program's image

    @property
    def machine(self) -> str:
        image = f" with the image {self.image}" if self.image else ""
        return f"one {self.rental.pools[0].machine} in {self.rental.regions[0]}{image}"

    @property
    def limit_s(self) -> float:
        """The time limit of its job, which the price counts: the keeper ends earlier by itself."""
        return min(self.life_s + _KEEPER_MARGIN_S, LONGEST_S)

    @property
    def price(self) -> pricing.Price:
        return pricing.price(replace(self.rental, timeout_s=self.limit_s))


@dataclass(frozen=True, kw_only=True)
class Target(Value):
    """The target of a run: the options of one backend, and the properties that every target has."""

    # The heading of the options in the help; the placeholder of an option's value, by field; and the setting that replaces a
    # name from the service's own tools in the project's file.
    title: ClassVar[str] = ""
    metavars: ClassVar[Mapping[str, str]] = {}
    instead: ClassVar[Mapping[str, str]] = {}
    # The fields that `podlift init` proposes, after a look at the account of the backend's service.
    proposed: ClassVar[tuple[str, ...]] = ()
    # Settings of the trials of a sweep, unless the user gives them.
    swept: ClassVar[Mapping[str, object]] = {}

    @classmethod
    def of(cls, target: Target) -> Self:
        """Return a target that is known to be of this class."""
        if not isinstance(target, cls):
            raise TypeError(f"Expected a {cls.__name__}. Received: {target!r}.")
        return target

    @property
    def shape(self) -> Literal["chief", "workers"]:
        """A chief and workers, or workers only."""
        return "chief"

    @property
    def start(self) -> Start:
        """How task processes of this machine start, and whether one with TensorFlow stands by for restarts."""
        return "spawn"

    @property
    def bucket(self) -> str | None:
        """The target's own setting of a bucket for runs."""
        return None

    @property
    def isolated(self) -> bool:
        """True if the tasks reach no other machine."""
        return False

    @property
    def real_gpus(self) -> bool:
        """True if tasks of this machine use its own GPUs."""
        return False

    def rentals(
        self, resources: Resources, limits: Limits, table: PriceTable | None = None
    ) -> tuple[pricing.Rental, ...]:
        """Return the machines that a job rents in each of its locations, if any; `table` has prices that were read."""
        return ()

    def kept_by(self, limits: Limits, retry: Retry, table: PriceTable | None = None) -> Keeper | None:
        """Return the keeper, which waits for the run and submits its next jobs, if one was requested."""
        return None

    def located(self, resources: Resources, facts: Facts) -> tuple[Target, list[Finding]]:
        """Return the target with its locations chosen by price, and the findings about the choice."""
        return self, []

    def divided(self, runs: int, cpus: int) -> Target:
        """Return the target for runs of a sweep, of which this number runs at the same time on this machine with these CPUs."""
        return self

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        """Return the place of a job, as (label, text), for a plan."""
        return []


def options_of(backend: str) -> type[Target]:
    """Return the class of a backend's options: `Target` for a backend without, and for one that is not registered here."""
    loaders = option_classes.LOADERS if backend in option_classes.LOADERS else option_classes.complete()
    return loaders[backend]() if backend in loaders else Target
