"""Validates the lifecycle rules of a bucket, which are stored and reported, and not applied. Pure.

Source: docs/storage/docs/lifecycle and the resource of buckets in the JSON API (read 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import nearest
from ..errors import words

_MAX_RULES, _MAX_AFFIXES = 100, 1000
_ACTIONS = {
    "Delete": words("type"),
    "SetStorageClass": words("type storageClass"),
    "AbortIncompleteMultipartUpload": words("type"),
}
# Uploads that are not complete have no other properties.
_OF_UPLOADS = words("age matchesPrefix matchesSuffix")
_CLASSES = words("STANDARD NEARLINE COLDLINE ARCHIVE")
_OLD_CLASSES = words("REGIONAL MULTI_REGIONAL DURABLE_REDUCED_AVAILABILITY")
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


def _is_number(value: object) -> bool:
    # An integer of a message may be written as text.
    return (type(value) is int and value >= 0) or (isinstance(value, str) and value.isascii() and value.isdigit())


def _is_date(value: object) -> bool:
    return isinstance(value, str) and _DATE.fullmatch(value) is not None


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)


def _are_classes(value: object) -> bool:
    return _is_list(value) and isinstance(value, list) and {each.upper() for each in value} <= _CLASSES | _OLD_CLASSES


# What a condition has to be, and the words for it.
_CONDITIONS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(
        ("age", "daysSinceCustomTime", "daysSinceNoncurrentTime", "numNewerVersions"),
        (_is_number, "a whole number of 0 or more"),
    ),
    **dict.fromkeys(
        ("createdBefore", "customTimeBefore", "noncurrentTimeBefore"), (_is_date, "a date such as 2026-11-28")
    ),
    "isLive": (lambda value: isinstance(value, bool), "true or false"),
    "matchesStorageClass": (_are_classes, f"a list of {', '.join(sorted(_CLASSES))}"),
    **dict.fromkeys(("matchesPrefix", "matchesSuffix"), (_is_list, "a list of strings that are not empty")),
}


def lifecycle_problems(lifecycle: object) -> list[str]:
    """Return a sentence for each mistake in the lifecycle configuration of a bucket."""
    rules = lifecycle.get("rule") if isinstance(lifecycle, Mapping) else None
    if rules is None:
        return []
    if not isinstance(rules, list) or not all(isinstance(each, Mapping) for each in rules):
        return [f"lifecycle.rule of a bucket is a list of objects. Received: {str(rules)[:100]}."]
    found = [problem for number, rule in enumerate(rules) for problem in _rule(rule, f"lifecycle.rule[{number}]")]
    if len(rules) > _MAX_RULES:
        found.append(f"A bucket has at most {_MAX_RULES} lifecycle rules. Received: {len(rules)}.")
    given = [each.get("condition") for each in rules]
    affixes = [each.get(name) or [] for each in given if isinstance(each, Mapping) for name in _OF_UPLOADS - {"age"}]
    count = sum(len(each) for each in affixes if isinstance(each, list))
    if count > _MAX_AFFIXES:
        found.append(
            f"All lifecycle rules together have at most {_MAX_AFFIXES} prefixes and suffixes. Received: {count}."
        )
    return found


def _rule(rule: Mapping[str, Any], where: str) -> Iterator[str]:
    for name in rule.keys() - {"action", "condition"}:
        yield f"Unknown name {name!r} in {where}. {nearest(name, ['action', 'condition'])}"
    action, condition = rule.get("action"), rule.get("condition")
    if not isinstance(action, Mapping) or str(action.get("type")) not in _ACTIONS:
        received = action.get("type") if isinstance(action, Mapping) else action
        yield f"{where} needs an action with a type: {nearest(str(received), sorted(_ACTIONS))} Received: {received!r}."
        return
    kind = str(action["type"])
    for name in action.keys() - _ACTIONS[kind]:
        yield f"The action {kind} of {where} has no {name!r}."
    if kind == "SetStorageClass" and str(action.get("storageClass", "")).upper() not in _CLASSES:
        wanted = f"one of {', '.join(sorted(_CLASSES))}"
        yield f"SetStorageClass of {where} needs a storageClass, {wanted}. Received: {action.get('storageClass')!r}."
    if not isinstance(condition, Mapping) or not condition:
        yield f"{where} needs at least one condition. Received: {condition!r}."
        return
    yield from _condition(condition, kind, where)


def _condition(condition: Mapping[str, Any], kind: str, where: str) -> Iterator[str]:
    for name, value in condition.items():
        if name not in _CONDITIONS:
            yield f"Unknown condition {name!r} in {where}. {nearest(name, sorted(_CONDITIONS))}"
        elif kind == "AbortIncompleteMultipartUpload" and name not in _OF_UPLOADS:
            yield f"{kind} of {where} has only the conditions {', '.join(sorted(_OF_UPLOADS))}. Received: {name}."
        elif not _CONDITIONS[name][0](value):
            yield f"The condition {name} of {where} is {_CONDITIONS[name][1]}. Received: {str(value)[:100]!r}."
