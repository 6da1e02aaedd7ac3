"""The cost of each kill of a drill: the steps between the kill and the start of the next attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records.events import Event
from ..spec.payload import Kill


@dataclass(frozen=True, kw_only=True)
class Killed:
    task: str
    point: str  # "step", "epoch", "save" or "validation"
    number: int  # of the step, epoch, save or validation
    attempt: int  # from 1
    step: int  # last completed training step of the run
    restored: int  # the step from which the next attempt continued, 0 for the beginning
    steps_lost: int  # number of repeated steps

    def __str__(self) -> str:
        begun = f"restored step {self.restored}" if self.restored else "nothing saved yet: started over"
        lost = f"{self.steps_lost} step{'' if self.steps_lost == 1 else 's'} lost"
        return (
            f"{self.task}@{self.point}:{self.number} in attempt {self.attempt}, after step {self.step}; {begun}, {lost}"
        )


def killed(
    wanted: Sequence[Kill], done: Mapping[int, Mapping[str, Any]], events: Sequence[Event]
) -> tuple[Killed, ...]:
    """Return the kills that happened, in order; `done` holds the tasks' files about them, by index in `wanted`."""
    found = []
    for index in sorted(done, key=lambda index: float(done[index]["time"])):
        attempt, kill = int(done[index]["attempt"]), wanted[index]
        begun = _start_of(events, attempt)
        step = begun if done[index]["step"] is None else int(done[index]["step"])
        # After a warm start the checkpoint's step is that of another run.
        restored = min(_next_start(events, attempt), step)
        found.append(
            Killed(
                task=kill.task,
                point=kill.point,
                number=kill.number,
                attempt=attempt,
                step=step,
                restored=restored,
                steps_lost=step - restored,
            )
        )
    return tuple(found)


def steps_lost(kills: Sequence[Killed]) -> int:
    """Return the number of repeated steps. Kills of two tasks in one attempt lose the same steps."""
    worst: dict[int, int] = {}
    for kill in kills:
        worst[kill.attempt] = max(worst.get(kill.attempt, 0), kill.steps_lost)
    return sum(worst.values())


def missed(wanted: Sequence[Kill], done: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(kill) for index, kill in enumerate(wanted) if index not in done)


def other_restarts(kills: Sequence[Killed], events: Sequence[Event]) -> list[str]:
    """Return a sentence for each attempt that ended without a kill."""
    explained = {kill.attempt for kill in kills}
    return [
        f"Attempt {event.attempt} ended without a kill of the drill: {(event.data.get('failure') or {}).get('message', '')}"
        for event in events
        if event.kind == "restarting" and event.attempt not in explained
    ]


def _start_of(events: Sequence[Event], attempt: int) -> int:
    """Return the step from which an attempt continued: that of the last phase that it restored."""
    return max((int(e.data["step"]) for e in events if e.kind == "restored" and e.attempt == attempt), default=0)


def _next_start(events: Sequence[Event], attempt: int) -> int:
    """Return the step from which the training continued after an attempt, skipping attempts that ended before a step."""
    last = max((event.attempt for event in events), default=attempt)
    for later in range(attempt + 1, last + 1):
        begun = _start_of(events, later)
        if begun or any(event.kind == "first_step" and event.attempt == later for event in events):
            return begun
    return 0
