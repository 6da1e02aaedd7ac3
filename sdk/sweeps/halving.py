"""Asynchronous successive halving (ASHA), as a function of the curves so far. Pure.

Rungs are at 1, 3, 9, 27 and so on epochs. A trial that reaches a rung pauses, unless it is among the best third of the trials
that have reached it. When others arrive later, a paused one may come into that third: then it continues from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

REDUCTION = 3
# Passed by the trial that goes on to its end when no other one is to be started.
LAST = 99


def rung(epochs: int, passed: int) -> int | None:
    """Return the rung at which a trial with these epochs has to be judged; None between two rungs. `passed`: rungs so far."""
    reached = -1
    while REDUCTION ** (reached + 1) <= epochs:
        reached += 1
    return reached if reached >= passed else None


def at_rung(curve: Mapping[int, float], number: int, mode: str) -> float | None:
    """Return the best value of a curve until a rung; None if it has not reached it."""
    if max(curve, default=0) < REDUCTION**number:
        return None
    values = [value for epoch, value in curve.items() if epoch <= REDUCTION**number]
    return (max if mode == "max" else min)(values, default=None)


def passes(curve: Mapping[int, float], number: int, curves: Sequence[Mapping[int, float]], mode: str) -> bool:
    """Return whether a trial is among the best third at a rung. `curves`: the curves of all trials, including its own."""
    own = at_rung(curve, number, mode)
    values = [value for each in curves if (value := at_rung(each, number, mode)) is not None]
    if own is None:
        return False
    better = sum(value > own if mode == "max" else value < own for value in values)
    return better < len(values) // REDUCTION
