"""What each kill of a drill has cost: the steps between where it hit and where the next attempt began. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records.events import Event
from .kills import Kill


@dataclass(frozen=True, kw_only=True)
class Killed:
    """One kill that has happened.

    Args:
        task: whom.
        moment: "step", "epoch", "save" or "validation".
        number: which one.
        attempt: in which attempt, from 1.
        step: behind so many training steps of the run.
        restored: the step from which the next attempt went on, 0 for the beginning.
        steps_lost: so many steps were done again.
    """

    task: str
    moment: str
    number: int
    attempt: int
    step: int
    restored: int
    steps_lost: int

    def __str__(self) -> str:
        begun = f"restored step {self.restored}" if self.restored else "nothing saved yet: begun anew"
        lost = f"{self.steps_lost} step{'' if self.steps_lost == 1 else 's'} lost"
        return f"{self.task}@{self.moment}:{self.number} in attempt {self.attempt}, behind step {self.step}; {begun}, {lost}"


def killed(
    wanted: Sequence[Kill], done: Mapping[int, Mapping[str, Any]], events: Sequence[Event]
) -> tuple[Killed, ...]:
    """Return the kills that have happened, in their order.

    Args:
        wanted: all kills.
        done: what the tasks have left about those that happened ("step", "attempt", "time"), by their place in `wanted`.
        events: records of the run.
    """
    found = []
    for index in sorted(done, key=lambda index: float(done[index]["time"])):
        attempt, kill = int(done[index]["attempt"]), wanted[index]
        begun = _begun_at(events, attempt)
        step = begun if done[index]["step"] is None else int(done[index]["step"])
        # Of a warm start the checkpoint's step is another run's.
        restored = min(_next_begun_at(events, attempt), step)
        found.append(
            Killed(
                task=kill.task,
                moment=kill.moment,
                number=kill.number,
                attempt=attempt,
                step=step,
                restored=restored,
                steps_lost=step - restored,
            )
        )
    return tuple(found)


def steps_lost(kills: Sequence[Killed]) -> int:
    """Return how many steps were done again in all; two tasks that were killed in one attempt have lost the same ones."""
    worst: dict[int, int] = {}
    for kill in kills:
        worst[kill.attempt] = max(worst.get(kill.attempt, 0), kill.steps_lost)
    return sum(worst.values())


def missed(wanted: Sequence[Kill], done: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the kills whose moment never came."""
    return tuple(str(kill) for index, kill in enumerate(wanted) if index not in done)


def other_restarts(kills: Sequence[Killed], events: Sequence[Event]) -> list[str]:
    """Return a sentence for each attempt that has ended although nobody was killed in it."""
    explained = {kill.attempt for kill in kills}
    return [
        f"Attempt {event.attempt} ended without a kill of the drill: {(event.data.get('failure') or {}).get('message', '')}"
        for event in events
        if event.kind == "restarting" and event.attempt not in explained
    ]


def _begun_at(events: Sequence[Event], attempt: int) -> int:
    """Return the step from which an attempt went on: that of the last stage it has restored."""
    return max((int(e.data["step"]) for e in events if e.kind == "restored" and e.attempt == attempt), default=0)


def _next_begun_at(events: Sequence[Event], attempt: int) -> int:
    """Return where the training went on behind an attempt; one that died before it began says nothing about that."""
    last = max((event.attempt for event in events), default=attempt)
    for later in range(attempt + 1, last + 1):
        begun = _begun_at(events, later)
        if begun or any(event.kind == "first_step" and event.attempt == later for event in events):
            return begun
    return 0
