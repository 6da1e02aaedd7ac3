"""The kills of a drill: "worker-0@step:50", or "random:3" for three kills at random steps. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import get_args

from ..errors import InputError, nearest
from ..spec.payload import Kill, KillPoint

_KILL_POINTS = get_args(KillPoint)
_KILL = re.compile(r"([a-z]+-\d+)@([a-z]+):(\d+)")
_RANDOM = re.compile(r"random:(\d+)")


def parse(texts: Sequence[str], tasks: Sequence[str], *, steps: int | None = None, seed: int = 0) -> tuple[Kill, ...]:
    """Return the kills, or raise an InputError with every mistake.

    Args:
        texts: "TASK@POINT:NUMBER", or "random:NUMBER" for kills at that many different steps.
        tasks: names of all tasks.
        steps: training steps of the run; None if not known yet, which leaves random kills out.
        seed: of the random kills.
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
                kills += [Kill(task=chosen.choice(list(tasks)), point="step", number=step) for step in at]
        elif match := _KILL.fullmatch(text):
            problems += _problems(text, match, tasks)
            kills.append(Kill(task=match[1], point=match[2], number=int(match[3])))  # type: ignore[arg-type]
        else:
            problems.append(f"This is not a kill. Received: {text!r}. Expected: worker-0@step:50, or random:3.")
    if problems:
        raise InputError(problems)
    return tuple(kills)


def _problems(text: str, match: re.Match[str], tasks: Sequence[str]) -> list[str]:
    problems = []
    if match[1] not in tasks:
        problems.append(f"{text!r}: there is no task {match[1]!r}. {nearest(match[1], list(tasks))}")
    if match[2] not in _KILL_POINTS:
        problems.append(f"{text!r}: there is no kill point {match[2]!r}. {nearest(match[2], list(_KILL_POINTS))}")
    if int(match[3]) < 1:
        problems.append(f"{text!r}: the number counts from 1.")
    return problems
