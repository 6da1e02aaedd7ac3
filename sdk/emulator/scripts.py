"""What the scripts of faults have in common: how a rule is checked, told, and with_nth_tuple."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..errors import nearest

# For each field, what it is and whether a value is one.
FieldChecks = Mapping[str, tuple[str, Callable[[Any], bool]]]


def set_fields(fault: Any) -> dict[str, Any]:
    """Return the fields of a fault, a dataclass, that somebody has set."""
    return {each.name: getattr(fault, each.name) for each in fields(fault) if getattr(fault, each.name) != each.default}


def with_nth_tuple(given: dict[str, Any]) -> dict[str, Any]:
    """Return a rule whose `nth`, one number or a list of them, is a tuple."""
    nth = given.get("nth")
    return given if nth is None else {**given, "nth": (nth,) if isinstance(nth, int) else tuple(nth)}


def rule_errors(
    where: str, given: Any, *, known: Sequence[str], checks: FieldChecks, words: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return a sentence for each mistake of one rule.

    Args:
        where: names the rule.
        given: what stands there.
        known: names of all fields.
        checks: what the values of fields have to be.
        words: fields that are one of some words; "kind" has to be there.
    """
    if not isinstance(given, dict):
        return [f"{where} is no object. Received: {given!r}."]
    found = [f"{where} has no field {name!r}. {nearest(name, list(known))}" for name in given if name not in known]
    found += [
        f"{where}: {name} is {wanted}. Received: {given[name]!r}."
        for name, (wanted, is_valid) in checks.items()
        if name in given and not is_valid(given[name])
    ]
    for name, choices in words.items():
        word = given.get(name)
        if (word is not None or name == "kind") and word not in choices:
            found.append(f"{where}: unknown {name}. Received: {word!r}. {nearest(str(word), list(choices))}")
    return found


def is_whole(value: Any, least: int = 0) -> bool:
    """True for a whole number of at least `least`."""
    return type(value) is int and value >= least


def is_number(value: Any) -> bool:
    """True for a number that is not negative."""
    return type(value) in (int, float) and value >= 0


def is_pattern(value: Any) -> bool:
    """True for a regular expression."""
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def _nth(value: Any) -> bool:
    return value != [] and all(is_whole(each, 1) for each in (value if isinstance(value, list) else [value]))


COMMON: FieldChecks = {
    "nth": ("a number from 1, or a list of them", _nth),
    "times": ("a number from 1", lambda value: is_whole(value, 1)),
    "status": ("a status of HTTP from 400 to 599", lambda value: is_whole(value, 400) and value < 600),
    "seconds": ("a number of seconds", is_number),
    "retry_after_s": ("a number of seconds", is_whole),
}
