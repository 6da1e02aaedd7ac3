"""The policies for overlapping and missed slots: one rule for real and simulated time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

from ..errors import InputError, nearest

Overlap = Literal["skip", "queue", "replace", "allow"]
Missed = Literal["skip", "catch_up_last"]
Decision = Literal["start", "skip", "wait", "replace"]
OVERLAPS: tuple[str, ...] = get_args(Overlap)
MISSED: tuple[str, ...] = get_args(Missed)
# The cause of a firing that catches up a missed slot.
CATCH_UP = "catch_up"
# A slot that starts later than this was missed, unless the server was busy with another one.
LATE_S = 60.0
_T = TypeVar("_T")


def decide(overlap: str, *, active: Sequence[str], waiting: bool) -> Decision:
    """Return the action for a slot: `active` are the causes of active earlier runs, `waiting` if an earlier slot waits."""
    if not active and not waiting:
        return "start"
    if overlap == "skip" and active and set(active) == {CATCH_UP}:
        # A missed slot that runs late is no reason to skip the next one: the user wants both.
        overlap = "queue"
    if overlap == "queue":
        return "skip" if waiting else "wait"
    return {"allow": "start", "replace": "replace"}.get(overlap, "skip")  # type: ignore[return-value]


def caught_up(missed: str, slots: list[_T]) -> _T | None:
    """Return which one of the missed slots fires late; None for none."""
    return slots[-1] if slots and missed == "catch_up_last" else None


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}: unknown value. Received: {value!r}. {nearest(value, choices)}")
