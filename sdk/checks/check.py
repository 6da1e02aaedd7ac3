"""The checks of a machine or an account, as rows: the name, the check function, and the command that fixes a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

# An error keeps podlift from working, a warning may cause surprises, a note costs one feature; unknown could not be read.
SettingValue = str | tuple[str, ...] | dict[str, str]
Level = Literal["error", "warning", "note", "unknown"]


@dataclass(frozen=True)
class Check:
    """The result of a check; the names of the fields are keys of `podlift doctor --json`."""

    name: str  # the subject of the check, one word
    ok: bool
    level: Level  # the severity if it is not ok
    said: str  # the result, in words
    fix: str = ""  # the next step
    command: str = ""  # the command for the next step; `fix` ends with it


@dataclass(frozen=True)
class Proposed(Check):
    """A proposed value of a setting; the name of the check is the setting's name."""

    value: SettingValue | None = None


@dataclass(frozen=True)
class Row:
    """One row of the table of checks."""

    name: str
    look: Callable[[], Iterable[Check]]
    online: bool = False  # whether it sends requests, and is worth a thread


def fine(name: str, message: str) -> Check:
    return Check(name, True, "note", message)


def bad(name: str, level: Level, message: str, fix: str) -> Check:
    return Check(name, False, level, message, fix)


def mended_by(name: str, level: Level, message: str, command: str, before: str = "") -> Check:
    """Return a failure that one command fixes; `before` names the steps before the command."""
    return Check(name, False, level, message, f"{before} {command}".strip(), command)


def unknown(name: str, message: str, fix: str = "", command: str = "") -> Check:
    return Check(name, False, "unknown", message, f"{fix} {command}".strip(), command)


def proposed(name: str, value: SettingValue, source: str) -> Proposed:
    value_text = value if isinstance(value, str) else ", ".join(value.values() if isinstance(value, dict) else value)
    return Proposed(name, True, "note", f"{value_text} ({source})", value=value)


def not_found(name: str, why: str, command: str = "", *, known: bool = True) -> Proposed:
    """Return the check of a setting without a value, or with an unknown one (`known`), and the next step."""
    fix = command if known or not command else f"if there is none: {command}"
    return Proposed(name, False, "error" if known else "unknown", why, fix, command)
