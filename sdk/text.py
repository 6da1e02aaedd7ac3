"""How durations, sizes, amounts of money, lists and tables are written for people, and how durations are read. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS_S = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile("".join(rf"(?:([0-9]+(?:\.[0-9]+)?)\s*{unit})?\s*" for unit in _UNITS_S))
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
SHOWN = 300
# Control characters, and those that turn the direction of a text around; not tabs and line ends.
_CONTROLS = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]"
_CONTROL = re.compile(_CONTROLS)
# Colours, and clearing the rest of the line, change nothing that was printed before.
_CONTROL_BUT_COLOUR = re.compile(rf"(\x1b\[[0-9;:]*[mK])|{_CONTROLS}")
# How HTTP libraries name their objects in messages.
_OBJECTS = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>:? ?|HTTPS?Connection(?:Pool)?\([^)]*\):? ?")
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(seconds: float, units: int = 2) -> str:
    """Return a time span: "12.3 s", "2 min 3 s", "1 h 4 min", "7 days"; `units=1` keeps the largest unit only."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f}".removesuffix(".0") + " s"
    whole = int(seconds)
    parts = [
        counted(whole // 86400, "day"),
        f"{whole % 86400 // 3600} h",
        f"{whole % 3600 // 60} min",
        f"{whole % 60} s",
    ]
    first = next(at for at, part in enumerate(parts) if not part.startswith("0 "))
    return " ".join(part for part in parts[first : first + units] if not part.startswith("0 "))


def parse_duration(text: str, *, unit_required: bool = False) -> float:
    """Return the seconds in "90s", "10m", "1h30m", "1.5d" or "2w"; without a unit it is seconds, or ValueError."""
    text = text.strip().lower()
    if not unit_required and _NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError("must be a duration with the units s, m, h, d or w, such as 90s, 10m or 1h30m.")
    return sum(
        float(number) * unit_s for number, unit_s in zip(match.groups(), _UNITS_S.values(), strict=True) if number
    )


def compact_duration(seconds: float) -> str:
    """Return a time span as `parse_duration` reads it: "45s", "10m", "1h30m", "7d"."""
    whole, rest = divmod(seconds, 1)
    parts = []
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
        count, whole = divmod(int(whole), unit_s)
        parts += [f"{count}{unit}"] if count else []
    left = whole + rest
    return "".join(parts) + (f"{left:g}s" if left or not parts else "")


def rate(steps_s: float) -> str:
    """Return a rate for people: "12.3 steps/s", "4.2 s a step"."""
    number, unit = (1 / steps_s, "s a step") if steps_s < 0.5 else (steps_s, "steps/s")
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def milestones(timings: Mapping[str, float]) -> str:
    """Return the timings in words: "started after 5.9 s, program reached after 11.6 s"."""
    words = {"entry": "program reached", "first_step": "first step"}
    return ", ".join(f"{words.get(name, name)} after {duration(seconds)}" for name, seconds in timings.items())


def size(count: int) -> str:
    """Return a number of bytes: "512 bytes", "20.5 kB", "1.2 GB"."""
    for factor, unit in _SIZES:
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return counted(count, "byte")


def emulator_at(address: str) -> str:
    """Return the words for an emulator, wherever one stands in for a cloud."""
    return f"emulator at {address}"


def money(usd: float | None) -> str:
    """Return an amount: "1.38 USD", "0.0012 USD", "unknown"."""
    if usd is None:
        return "unknown"
    return f"{usd:.4f} USD" if usd < 0.01 else f"{usd:,.2f} USD"


def counted(number: int, noun: str) -> str:
    """Return a number of things: "1 file", "3 files"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def and_more(names: Sequence[str], limit: int) -> str:
    """Return the first names of a long list: "a, b and 3 more"."""
    text = ", ".join(names[:limit])
    return f"{text} and {len(names) - limit} more" if len(names) > limit else text


def joined(words: Sequence[str], last: str) -> str:
    """Return all words of a list: "a, b and c", with `last` before the last one."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def clipped(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, with "..." for the rest."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def without_passwords(text: str) -> str:
    """Return a text with what may be secret in its URLs masked: users, passwords and the values of queries."""
    return re.sub(r"([?&][^=?&#\s]*)=[^&#\s]*", r"\1=****", without_users(text))


def without_users(text: str) -> str:
    """Return a text with the users and passwords in its URLs masked."""
    return re.sub(r"\S+", lambda word: _without_user(word[0]), text) if "@" in text else text


def _without_user(word: str) -> str:
    # A malformed URL may have a "/", "#" or "@" in its password, or lack its scheme.
    before, _, place = word.rpartition("@")
    scheme = before[: before.find("://") + 3] if "://" in before else ""
    return f"{scheme}****@{place}" if ":" in before else word


def innermost(error: BaseException) -> str:
    """Return the reason inside the errors of a failed request, as one line without the objects of the library."""
    inner: Any = error
    while inner.args and isinstance(reason := getattr(inner.args[0], "reason", inner.args[0]), BaseException):
        inner = reason
    return without_objects(str(inner).partition("\n")[0]).strip(" .") or type(inner).__name__


def without_objects(text: str) -> str:
    """Return a message without what HTTP libraries call their objects in it."""
    return _OBJECTS.sub("", text)


def visible(text: str) -> str:
    """Return a text on one line, with its control characters escaped: a terminal would obey them."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def harmless(text: str, *, colours: bool = False) -> str:
    """Return a text of several lines with its control characters escaped; with `colours`, those stay."""
    if text.isprintable():
        return text
    if not colours:
        return _CONTROL.sub(lambda match: visible(match[0]), text)
    return _CONTROL_BUT_COLOUR.sub(lambda match: match[1] or visible(match[0]), text)


def shown(value: object) -> str:
    """Return a value's repr, clipped to the length of a message; its type if it has no repr."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__qualname__}"
    return clipped(text, SHOWN)


def html_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows as the table of a notebook, in the notebook's own colours; the first cell of a row names it."""
    top = "".join(f'<th scope="col">{_cell(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{_cell(name)}</th>{"".join(f"<td>{_cell(value)}</td>" for value in values)}</tr>'
        for name, *values in rows
    )
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{body}</tbody></table>"


def _cell(value: str) -> str:
    return _escaped(visible(value))


def html_lines(lines: str) -> str:
    """Return several lines for a notebook, as they are."""
    return f"<pre>{_escaped(harmless(lines))}</pre>"


def _escaped(text: str) -> str:
    from html import escape  # it is large, and only notebooks need it

    # Names of files may hold characters that UTF-8 lacks.
    return escape(text).encode("utf-8", "backslashreplace").decode()
