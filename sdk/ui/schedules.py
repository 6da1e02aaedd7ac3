"""Schedules as the page shows them. The command fills these views, because the room of schedules is above this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..status import Registered
from .model import Rows

# Firings that a strip shows.
STRIP = 30
FAILURES = ("FAILED", "LOST")


@dataclass(frozen=True, kw_only=True)
class Firing:
    """One slot and its run."""

    time: float  # unix time of the slot
    state: str
    reason: str = ""
    cause: str = "schedule"  # schedule, manual or catch_up
    run: str = ""  # id; "" for a slot without a run
    took_s: float | None = None
    cost_usd: float | None = None
    registered: Registered | None = None

    @property
    def kind(self) -> str:
        """Name of its colour in the strip."""
        return {"TAKEN": "running", "WAITING": "pending"}.get(self.state, self.state.lower())


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """One schedule.

    Args:
        state: active, paused or attention.
        coming: unix times of the next slots.
        firings: the newest slots, the newest first.
        spent_usd: cost of the runs of this month; None if nothing is billed.
        month_usd: limit on that; None without one.
        program: the program with its arguments; "" in the list.
        rules: the rules of its slots, for its own page.
    """

    name: str
    cron: str
    time_zone: str
    state: str
    backend: str
    paused: str = ""
    problems: Sequence[str] = ()
    coming: Sequence[float] = ()
    firings: Sequence[Firing] = ()
    spent_usd: float | None = None
    month_usd: float | None = None
    program: str = ""
    arguments: Rows = field(default_factory=list)
    rules: Rows = field(default_factory=list)

    @property
    def strip(self) -> list[Firing]:
        """The last firings, the oldest first."""
        return [*self.firings[:STRIP]][::-1]

    @property
    def runs(self) -> int:
        """Slots of the strip that have started a run, or failed before it."""
        return sum(firing.state in FAILURES or bool(firing.run) for firing in self.strip)

    @property
    def failures(self) -> int:
        return sum(firing.state in FAILURES for firing in self.strip)


class ActedSchedule(Protocol):
    """A schedule that the page may change: `sdk.Schedule` is one."""

    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def run(self) -> object: ...


def act(schedule: ActedSchedule, do: str) -> bool:
    """Take the action of a form; False if it is unknown."""
    actions = {"pause": schedule.pause, "unpause": schedule.unpause, "run": schedule.run}
    if do not in actions:
        return False
    actions[do]()
    return True
