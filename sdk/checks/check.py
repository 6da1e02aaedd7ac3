"""The result of one check of `podlift doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# An error keeps podlift from working, a warning may cause surprises, a note costs one feature; unknown could not be read.
Level = Literal["error", "warning", "note", "unknown"]


@dataclass(frozen=True)
class Check:
    """A result; the names of the fields are keys of `podlift doctor --json`."""

    name: str  # what was checked, one word
    ok: bool
    level: Level  # how severe it is if it is not ok
    said: str  # what was found
    fix: str = ""  # what to do about it
    command: str = ""  # the one that does it, with which `fix` ends


def fine(name: str, said: str) -> Check:
    return Check(name, True, "note", said)


def bad(name: str, level: Level, said: str, fix: str) -> Check:
    return Check(name, False, level, said, fix)


def mended_by(name: str, level: Level, said: str, command: str, before: str = "") -> Check:
    """Return a failure that one command mends; `before` says what else is needed."""
    return Check(name, False, level, said, f"{before} {command}".strip(), command)


def unknown(name: str, said: str, fix: str = "", command: str = "") -> Check:
    return Check(name, False, "unknown", said, f"{fix} {command}".strip(), command)
