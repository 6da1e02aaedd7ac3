"""The list of runs, and that of checkpoints: lists that a notebook shows as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..checkpoint.catalog import CheckpointInfo
from ..status import Status
from ..text import duration, money


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One run in the list that `runs()` returns.

    Args:
        id: the run's id.
        url: its directory.
        status: its status; None for a directory that cannot be read.
        problem: why it cannot be read; "" otherwise.
        backend: the name of its backend; "" if unknown.
        metrics: the last value of every metric, by name.
        metric: the main metric: the one of `Checkpoints(best)`, else val_loss, else loss, else the first; "" for none.
        emulator: the address of the emulator that stands in for the cloud, such as "127.0.0.1:8123"; "" for none.
        place: the backend and the emulator, if any, in one line: "vertex, emulator at 127.0.0.1:8123"; "" if unknown.
    """

    id: str
    url: str
    status: Status | None
    problem: str = ""
    backend: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    metric: str = ""
    emulator: str = ""
    place: str = ""

    def duration_s(self, now: float) -> float | None:
        """Return the seconds from submit to the end, or to `now` (unix time) for a run that is still going; None if unknown."""
        if self.status is None or not self.status.created:
            return None
        return max(0.0, (self.status.since if self.status.state.terminal else now) - self.status.created)


class RunRows(list[RunInfo]):
    """Runs, as a list."""

    def _repr_html_(self) -> str:
        from .pages import render

        return render("rows.html", rows=[row(info, time.time()) for info in self])


class CheckpointRows(list[CheckpointInfo]):
    """Checkpoints, as a list."""

    def _repr_html_(self) -> str:
        from .pages import render

        return render("checkpoints.html", found=self)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run as the list of runs shows it."""

    id: str
    url: str
    state: str
    reason: str
    created: float
    age: str
    took: str
    took_s: float
    metric: str
    value: float | None
    spent: str
    spent_usd: float
    at_risk: str
    place: str
    problem: str


def row(info: RunInfo, now: float) -> Row:
    """Return the row of a run; a damaged one has its problem."""
    status = info.status
    took_s = info.duration_s(now)
    usd = status.spent_usd if status else None
    risk = status and status.saved_at is not None and not status.state.terminal
    return Row(
        id=info.id,
        url=info.url,
        state=status.state.value if status else "UNREADABLE",
        reason=status.reason.value if status else "",
        created=status.created if status else 0.0,
        age=duration(now - status.created, units=1) if status and status.created else "",
        took="" if took_s is None else duration(took_s),
        took_s=took_s or 0.0,
        metric=info.metric,
        value=info.metrics.get(info.metric),
        spent="" if status is None or usd is None else f"{'at least ' if status.spent_at_least else ''}{money(usd)}",
        spent_usd=usd or 0.0,
        at_risk=duration(max(now - (status.saved_at or now), 0.0), units=1) if status and risk else "",
        place=info.place,
        problem=info.problem,
    )
