"""One line of a check-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Check:
    """What was looked at, and how it is.

    Args:
        name: what was looked at, one word.
        ok: whether all is well.
        level: how grave it is if not: with an error podlift does not work, a warning may surprise, a note takes one
            feature away.
        said: what was found.
        fix: one thing to do about it; "" where all is well.
    """

    name: str
    ok: bool
    level: Level
    said: str
    fix: str = ""


def fine(name: str, said: str) -> Check:
    """Return a line that says that all is well."""
    return Check(name, True, "note", said)


def bad(name: str, level: Level, said: str, fix: str) -> Check:
    """Return a line that says what is wrong, and what to do."""
    return Check(name, False, level, said, fix)
