"""What is looked at on a machine or in an account, as rows: what it is, how to look, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

# An error keeps podlift from working, a warning may cause surprises, a note costs one feature; unknown could not be read.
SettingValue = str | tuple[str, ...] | dict[str, str]
Level = Literal["error", "warning", "note", "unknown"]


@dataclass(frozen=True)
class Check:
    """What a look has found; the names of the fields are keys of `podlift doctor --json`."""

    name: str  # what was checked, one word
    ok: bool
    level: Level  # how severe it is if it is not ok
    said: str  # what was found
    fix: str = ""  # what to do about it
    command: str = ""  # the one that does it, with which `fix` ends


@dataclass(frozen=True)
class Proposed(Check):
    """What a look has found for a setting, which is its name."""

    value: SettingValue | None = None


@dataclass(frozen=True)
class Row:
    """One row of the table of what is looked at."""

    name: str
    look: Callable[[], Iterable[Check]]
    online: bool = False  # whether it asks others, and is worth a thread


def fine(name: str, said: str) -> Check:
    return Check(name, True, "note", said)


def bad(name: str, level: Level, said: str, fix: str) -> Check:
    return Check(name, False, level, said, fix)


def mended_by(name: str, level: Level, said: str, command: str, before: str = "") -> Check:
    """Return a failure that one command mends; `before` says what else is needed."""
    return Check(name, False, level, said, f"{before} {command}".strip(), command)


def unknown(name: str, said: str, fix: str = "", command: str = "") -> Check:
    return Check(name, False, "unknown", said, f"{fix} {command}".strip(), command)


def proposed(name: str, value: SettingValue, source: str) -> Proposed:
    shown = value if isinstance(value, str) else ", ".join(value.values() if isinstance(value, dict) else value)
    return Proposed(name, True, "note", f"{shown} ({source})", value=value)


def not_found(name: str, why: str, command: str = "", *, known: bool = True) -> Proposed:
    """Return that there is no value for a setting, or that it is not known whether there is one; and what would help."""
    fix = command if known or not command else f"if there is none: {command}"
    return Proposed(name, False, "error" if known else "unknown", why, fix, command)
