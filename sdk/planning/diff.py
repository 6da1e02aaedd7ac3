"""The differences between two plans: code, settings, target, and the request to the backend. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..hardware import pricing
from ..spec.job import Job
from ..spec.plan import Plan
from ..text import clipped

# Replaces both run ids when requests are compared: a different id is not a difference.
_RUN_ID = "run-aaaaaa"
_ABSENT: Any = object()
_SHOWN = 120
# Fields of a plan whose values are compared by path.
_ENTRY = (
    "kind",
    "target",
    "function",
    "argv",
    "kwargs",
    "cwd",
    "roots",
    "only",
    "generated",
    "inputs",
    "warm_start",
    "drill",
)
_ENVIRONMENT = ("python", "tensorflow", "keras", "tf_keras")


@dataclass(frozen=True, kw_only=True)
class Change:
    section: str  # code, entry, job, target, requirements, tasks, environment, price, request or findings
    path: str  # what differs in that section; for lists of texts, the text itself
    before: Any  # JSON value in the first plan, None if absent; for code, the digest
    after: Any  # likewise in the second plan
    kind: str  # "added", "removed" or "changed"

    def __str__(self) -> str:
        if self.section == "code" or self.before == self.after:
            return f"{_SIGNS[self.kind]} {self.path}"
        if self.kind == "changed":
            return f"~ {self.path}: {_words(self.before)} -> {_words(self.after)}"
        return f"{_SIGNS[self.kind]} {self.path}: {_words(self.after if self.kind == 'added' else self.before)}"


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def compare(first: Plan, second: Plan, bodies: tuple[Any, Any]) -> list[Change]:
    """Return the differences, the most important first; `bodies` are the requests rendered for the `anonymous` plans."""
    return [
        *_code(first, second),
        *_changes("entry", _fields(first, _ENTRY), _fields(second, _ENTRY)),
        *_changes("job", _job(first), _job(second)),
        *_changes("target", _target(first), _target(second)),
        *_requirements(first, second),
        *_members("tasks", first.tasks, second.tasks),
        *_changes("environment", _environment(first.facts), _environment(second.facts)),
        *_members("price", _price(first), _price(second)),
        *_changes("request", bodies[0], bodies[1]),
        *_members(
            "findings", *([f"{level}: {message}" for level, message in plan.findings] for plan in (first, second))
        ),
    ]


def anonymous(plan: Plan) -> Plan:
    """Return the plan with the run id that all compared plans share."""
    return replace(plan, run_id=_RUN_ID)


def as_json(changes: Sequence[Change]) -> dict[str, Any]:
    """Return the changes by section, and whether the plans are the same."""
    found: dict[str, Any] = {"same": not changes}
    for change in changes:
        found.setdefault(change.section, []).append({k: v for k, v in asdict(change).items() if k != "section"})
    return found


def _fields(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in names}


def _environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts.get(name) for name in _ENVIRONMENT}


def _job(plan: Plan) -> dict[str, Any]:
    """Return the Job; fields that an earlier podlift did not write have their defaults."""
    defaults = Job("none").model_dump(mode="json")
    return {
        name: {**default, **plan.job.get(name, {})} if isinstance(default, dict) else plan.job.get(name, default)
        for name, default in defaults.items()
    }


def _target(plan: Plan) -> dict[str, Any]:
    name = plan.run_id.rpartition("-")[0]
    return {"backend": plan.backend, "root": plan.root, "name": name, **plan.backend_options}


def _price(plan: Plan) -> list[str]:
    lines = [] if plan.backend == "local" else pricing.lines(plan.job, plan.backend_options)
    return [f"{label}: {text}" for label, text in lines]


def _code(first: Plan, second: Plan) -> Iterator[Change]:
    old, new = ({file[0]: file for file in plan.files} for plan in (first, second))
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path), new.get(path)
        if before is None or after is None or before[2:] != after[2:]:
            kind = "added" if before is None else "removed" if after is None else "changed"
            yield Change(section="code", path=path, before=before and before[2], after=after and after[2], kind=kind)


def _requirements(first: Plan, second: Plan) -> Iterator[Change]:
    for name in ("lines", "options", "constraints"):
        old, new = (plan.requirements.get(name, []) for plan in (first, second))
        yield from _members("requirements", old, new, prefix="" if name == "lines" else f"{name}: ")


def _members(section: str, first: Sequence[str], second: Sequence[str], *, prefix: str = "") -> Iterator[Change]:
    """Yield what only one of two lists has, whatever their order."""
    for item in dict.fromkeys([*first, *second]):
        if (item in first) != (item in second):
            kind = "removed" if item in first else "added"
            yield Change(section=section, path=f"{prefix}{item}", before=None, after=None, kind=kind)


def _changes(section: str, first: Any, second: Any, path: str = "") -> Iterator[Change]:
    """Yield the differences of two JSON values, each at the deepest path that both have."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        pairs = [(str(name), first.get(name, _ABSENT), second.get(name, _ABSENT)) for name in {**first, **second}]
    elif isinstance(first, list) and isinstance(second, list):
        if _named(first) and _named(second):
            return (yield from _changes(section, _by_name(first), _by_name(second), path))
        both = itertools.zip_longest(first, second, fillvalue=_ABSENT)
        pairs = [(str(number), old, new) for number, (old, new) in enumerate(both)]
    elif first is _ABSENT:
        return (yield Change(section=section, path=path, before=None, after=second, kind="added"))
    elif second is _ABSENT:
        return (yield Change(section=section, path=path, before=first, after=None, kind="removed"))
    elif first != second or type(first) is not type(second):
        return (yield Change(section=section, path=path, before=first, after=second, kind="changed"))
    else:
        return
    for name, old, new in pairs:
        yield from _changes(section, old, new, f"{path}.{name}" if path else name)


def _named(items: list[Any]) -> bool:
    return all(isinstance(item, Mapping) and item.keys() == {"name", "value"} for item in items)


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {item["name"]: item["value"] for item in items}


def _words(value: Any) -> str:
    return clipped(json.dumps(value, ensure_ascii=False), _SHOWN)
