"""The kills of a drill, and the cost of each. Pure.

Written as "worker-0@step:50", "worker-0@step:50:machine" for the task's machine, or "random:3" for three kills at random
steps. The cost is the steps between the kill and the start of the next attempt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from ..errors import InputError, nearest
from ..job.payload import Kill, KillPoint, KillTarget
from ..records.events import Event
from ..records.kills import Done
from ..text import counted

_KILL_POINTS = get_args(KillPoint)
_KILL = re.compile(r"([a-z]+-\d+)@([a-z]+):(\d+)(?::([a-z]+))?")
# A random kill of a region would need a second place.
_AT_RANDOM = ("process", "agent", "machine")
_RANDOM = re.compile(r"random:(\d+)")


def parse(
    texts: Sequence[str],
    tasks: Sequence[str],
    targets: Sequence[KillTarget] = ("process",),
    *,
    steps: int | None = None,
    seed: int = 0,
) -> tuple[Kill, ...]:
    """Return the kills, or raise an InputError with every mistake; without the run's `steps`, random ones are left out.

    `targets`: the possible targets of kills where the training runs.
    """
    kills: list[Kill] = []
    problems: list[str] = []
    chosen = random.Random(seed)  # noqa: S311
    for text in texts:
        if match := _RANDOM.fullmatch(text):
            count = int(match[1])
            if steps is not None and count > steps - 1:
                problems.append(f"The training has {steps} steps: too few for {text!r}.")
            elif steps is not None:
                at = sorted(chosen.sample(range(1, steps), count))
                kills += [_random(chosen, tasks, targets, step) for step in at]
        elif match := _KILL.fullmatch(text):
            problems += _problems(text, match, tasks, targets)
            what = match[4] or "process"
            kills.append(Kill(task=match[1], point=match[2], number=int(match[3]), what=what))  # type: ignore[arg-type]
        else:
            problems.append(f"This is not a kill. Received: {text!r}. Expected: worker-0@step:50, or random:3.")
    if problems:
        raise InputError(problems)
    return tuple(kills)


def _random(chosen: random.Random, tasks: Sequence[str], targets: Sequence[KillTarget], step: int) -> Kill:
    kill = Kill(task=chosen.choice(list(tasks)), point="step", number=step)
    possible = [target for target in targets if target in _AT_RANDOM]
    return replace(kill, what=chosen.choice(possible)) if len(possible) > 1 else kill


def _problems(text: str, match: re.Match[str], tasks: Sequence[str], targets: Sequence[KillTarget]) -> list[str]:
    problems = []
    if match[1] not in tasks:
        problems.append(f"{text!r}: there is no task {match[1]!r}. {nearest(match[1], list(tasks))}")
    if match[2] not in _KILL_POINTS:
        problems.append(f"{text!r}: there is no kill point {match[2]!r}. {nearest(match[2], list(_KILL_POINTS))}")
    if match[4] and match[4] not in get_args(KillTarget):
        problems.append(f"{text!r}: a drill cannot kill {match[4]!r}. {nearest(match[4], list(get_args(KillTarget)))}")
    elif match[4] and match[4] not in targets:
        problems.append(
            f"{text!r}: here, a drill can only kill {' or '.join(targets)}. Next: --backend vertex with the emulator has "
            "containers, machines and regions, too."
        )
    if int(match[3]) < 1:
        problems.append(f"{text!r}: the number counts from 1.")
    return problems


@dataclass(frozen=True, kw_only=True)
class Killed:
    task: str
    point: str  # "step", "epoch", "save" or "validation"
    number: int  # of the step, epoch, save or validation
    attempt: int  # from 1
    step: int  # last completed training step of the run
    restored: int  # the step from which the next attempt continued, 0 for the beginning
    steps_lost: int  # number of repeated steps
    what: str = "process"  # or "agent", "machine" or "region"

    def __str__(self) -> str:
        continuation = f"restored step {self.restored}" if self.restored else "nothing saved yet: started over"
        if self.what == "machine" and not self.steps_lost:
            continuation = "saved or ended within its notice"
        loss = f"{counted(self.steps_lost, 'step')} lost"
        kill = Kill(task=self.task, point=self.point, number=self.number, what=self.what)  # type: ignore[arg-type]
        return f"{kill} in attempt {self.attempt}, after step {self.step}; {continuation}, {loss}"


def killed(kills: Sequence[Kill], done: Mapping[int, Done], events: Sequence[Event]) -> tuple[Killed, ...]:
    """Return the kills that happened, in order; `done` holds the tasks' files about them, by index in `wanted`."""
    happened = []
    for index in sorted(done, key=lambda index: done[index]["time"]):
        kill, attempt, last = kills[index], done[index]["attempt"], done[index]["step"]
        step = _start_of(events, attempt) if last is None else last
        # After a warm start the checkpoint's step belongs to another run.
        restored = min(_next_start(events, attempt), step)
        if kill.what == "machine" and all(event.attempt <= attempt for event in events):
            # The training ended within the notice of its machine.
            restored = step
        happened.append(
            Killed(
                task=kill.task,
                point=kill.point,
                number=kill.number,
                attempt=attempt,
                step=step,
                restored=restored,
                steps_lost=step - restored,
                what=kill.what,
            )
        )
    return tuple(happened)


def steps_lost(kills: Sequence[Killed]) -> int:
    """Return the number of repeated steps. Kills of two tasks in one attempt lose the same steps."""
    worst: dict[int, int] = {}
    for kill in kills:
        worst[kill.attempt] = max(worst.get(kill.attempt, 0), kill.steps_lost)
    return sum(worst.values())


def missed(kills: Sequence[Kill], done: Mapping[int, Done]) -> tuple[str, ...]:
    return tuple(str(kill) for index, kill in enumerate(kills) if index not in done)


def other_restarts(kills: Sequence[Killed], events: Sequence[Event]) -> list[str]:
    """Return a sentence for each attempt that ended without a kill."""
    explained = {kill.attempt for kill in kills}
    return [
        f"Attempt {event.attempt} ended without a kill of the drill: {(event.data.get('failure') or {}).get('message', '')}"
        for event in events
        if event.kind == "restarting" and event.attempt not in explained
    ]


def _start_of(events: Sequence[Event], attempt: int) -> int:
    """Return the step from which an attempt continued: the step of the last phase that it restored."""
    return max((int(e.data["step"]) for e in events if e.kind == "restored" and e.attempt == attempt), default=0)


def _next_start(events: Sequence[Event], attempt: int) -> int:
    """Return the step from which the training continued after an attempt, skipping attempts that ended before a step."""
    last = max((event.attempt for event in events), default=attempt)
    for later in range(attempt + 1, last + 1):
        start_step = _start_of(events, later)
        if start_step or any(event.kind == "first_step" and event.attempt == later for event in events):
            return start_step
    return 0
