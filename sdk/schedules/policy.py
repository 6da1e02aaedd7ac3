"""What becomes of slots that overlap with a run, and of missed ones: one rule for real and simulated time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

from ..errors import InputError, nearest

Overlap = Literal["skip", "queue", "replace", "allow"]
Missed = Literal["skip", "catch_up_last"]
Decision = Literal["start", "skip", "wait", "replace"]
OVERLAPS: tuple[str, ...] = get_args(Overlap)
MISSED: tuple[str, ...] = get_args(Missed)
# A slot that starts later than this was missed, unless the server was busy with another one.
LATE_S = 60.0
_T = TypeVar("_T")


def decide(overlap: str, *, active: bool, waiting: bool) -> Decision:
    """Return what to do with a slot: `active` if an earlier run goes on, `waiting` if an earlier slot waits for its end."""
    if not active and not waiting:
        return "start"
    if overlap == "queue":
        return "skip" if waiting else "wait"
    return {"allow": "start", "replace": "replace"}.get(overlap, "skip")  # type: ignore[return-value]


def behind(overlap: str, causes: Sequence[str]) -> str:
    """Return the rule for a slot whose delivery also started a missed one, which runs before it and is no reason to skip it."""
    return "queue" if overlap == "skip" and causes and set(causes) == {"catch_up"} else overlap


def caught_up(missed: str, slots: list[_T]) -> _T | None:
    """Return which one of the missed slots fires late; None for none."""
    return slots[-1] if slots and missed == "catch_up_last" else None


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name}: unknown value. Received: {value!r}. {nearest(value, known)}")
