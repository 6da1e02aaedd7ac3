"""Where a task is to be killed on purpose: "worker-0@step:50", or "random:3" for three kills at random steps. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import InputError, nearest

Moment = Literal["step", "epoch", "save", "validation"]
_MOMENTS = get_args(Moment)
_KILL = re.compile(r"([a-z]+-\d+)@([a-z]+):(\d+)")
_RANDOM = re.compile(r"random:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill, by SIGKILL.

    Args:
        task: whom.
        moment: "step": behind so many training steps of the run. "epoch": behind the so many-th epoch that the task ends,
            before its state is saved. "save": when it has begun so many checkpoints, while the last is on its way.
            "validation": at the first batch of its so many-th validation.
        number: how many, from 1. Epochs, saves and validations are counted over all attempts, those that are done again too.
    """

    task: str
    moment: Moment
    number: int

    def __str__(self) -> str:
        return f"{self.task}@{self.moment}:{self.number}"


def parse(texts: Sequence[str], tasks: Sequence[str], *, steps: int | None = None, seed: int = 0) -> tuple[Kill, ...]:
    """Return the kills that the words mean.

    Args:
        texts: "TASK@MOMENT:NUMBER", or "random:NUMBER" for kills at that many different steps.
        tasks: names of all tasks.
        steps: training steps of the run; None where that is not known yet: then random ones are left out.
        seed: of the random ones.

    Raises:
        InputError: with every mistake.
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
                kills += [Kill(task=chosen.choice(list(tasks)), moment="step", number=step) for step in at]
        elif match := _KILL.fullmatch(text):
            problems += _problems(text, match, tasks)
            kills.append(Kill(task=match[1], moment=match[2], number=int(match[3])))  # type: ignore[arg-type]
        else:
            problems.append(f"This is no kill. Received: {text!r}. Expected: worker-0@step:50, or random:3.")
    if problems:
        raise InputError(problems)
    return tuple(kills)


def _problems(text: str, match: re.Match[str], tasks: Sequence[str]) -> list[str]:
    problems = []
    if match[1] not in tasks:
        problems.append(f"{text!r}: there is no task {match[1]!r}. {nearest(match[1], list(tasks))}")
    if match[2] not in _MOMENTS:
        problems.append(f"{text!r}: there is no moment {match[2]!r}. {nearest(match[2], list(_MOMENTS))}")
    if int(match[3]) < 1:
        problems.append(f"{text!r}: the number counts from 1.")
    return problems
