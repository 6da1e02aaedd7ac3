"""Fault rules: what goes wrong, and when. Nothing here does any harm itself; the services ask which faults apply."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar

from ..errors import InputError, nearest

# For each field, a description of valid values and a test for them.
FieldChecks = Mapping[str, tuple[str, Callable[[Any], bool]]]


class _Fault(Protocol):
    @property
    def nth(self) -> tuple[int, ...] | None: ...


F = TypeVar("F", bound=_Fault)


@dataclass(kw_only=True)
class FaultRule(Generic[F]):
    """A fault with its counts: it fires at most `times` times, and for a share of the matching requests."""

    fault: F
    times: int | None
    probability: float = 1.0
    random: random.Random = field(default_factory=random.Random)
    matched: int = 0
    fired: int = 0

    def fires(self) -> bool:
        """Count a match; return whether the fault applies to it."""
        self.matched += 1
        # Drawn for every match, so that a second run with the same seed draws the same.
        drawn = self.random.random() < self.probability
        if not drawn or (self.fault.nth is not None and self.matched not in self.fault.nth):
            return False
        if self.times is not None and self.fired >= self.times:
            return False
        self.fired += 1
        return True

    def to_json(self) -> dict[str, Any]:
        given = {
            each.name: value
            for each in fields(self.fault)  # type: ignore[arg-type]
            if (value := getattr(self.fault, each.name)) != each.default
        }
        return {**given, "matched": self.matched, "fired": self.fired}


class FaultRules(Generic[F]):
    """The rules in force, in their order. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[FaultRule[F]] = []

    def replace(self, faults: Sequence[F]) -> None:
        """Put these rules in force instead of the old ones; all counts start at 0."""
        with self._lock:
            self._rules = [self._rule(fault, index) for index, fault in enumerate(faults)]

    def _rule(self, fault: F, index: int) -> FaultRule[F]:
        raise NotImplementedError

    def choose(self, matches: Callable[[F], bool]) -> list[F]:
        with self._lock:
            return [rule.fault for rule in self._rules if matches(rule.fault) and rule.fires()]

    def contain(self, matches: Callable[[F], bool]) -> bool:
        """Return whether there is such a rule, without counting a match."""
        with self._lock:
            return any(matches(rule.fault) for rule in self._rules)

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [rule.to_json() for rule in self._rules]


def parse_rules(
    fault: type[F], rules: Sequence[Any], *, title: str, checks: FieldChecks, choices: Mapping[str, Sequence[str]]
) -> list[F]:
    known = [each.name for each in fields(fault)]  # type: ignore[arg-type]
    problems: list[str] = []
    for number, rule in enumerate(rules, 1):
        problems += _problems(title.format(number), rule, known, checks, choices)
    if problems:
        raise InputError(problems)
    tuples = [
        {"nth": (nth,) if isinstance(nth, int) else tuple(nth)} if (nth := rule.get("nth")) else {} for rule in rules
    ]
    return [fault(**{**rule, **more}) for rule, more in zip(rules, tuples, strict=True)]


def _problems(
    title: str, rule: Any, known: Sequence[str], checks: FieldChecks, choices: Mapping[str, Sequence[str]]
) -> list[str]:
    if not isinstance(rule, dict):
        return [f"{title} is not an object. Received: {rule!r}."]
    problems = [f"{title} has no field {name!r}. {nearest(name, list(known))}" for name in rule if name not in known]
    for name, (expected, is_valid) in checks.items():
        if name in rule and not is_valid(rule[name]):
            problems.append(f"{title}: {name} is {expected}. Received: {rule[name]!r}.")
    for name, words in choices.items():
        word = rule.get(name)
        if (word is not None or name == "kind") and word not in words:
            problems.append(f"{title}: unknown {name}. Received: {word!r}. {nearest(str(word), list(words))}")
    return problems


def is_whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def _is_nth(value: Any) -> bool:
    return value != [] and all(is_whole(each, 1) for each in (value if isinstance(value, list) else [value]))


COMMON_CHECKS: FieldChecks = {
    "nth": ("a number from 1, or a list of them", _is_nth),
    "times": ("a number from 1", lambda value: is_whole(value, 1)),
    "status": ("an HTTP status from 400 to 599", lambda value: is_whole(value, 400) and value < 600),
    "seconds": ("a number of seconds", is_number),
    "retry_after_s": ("a number of seconds", is_whole),
}
