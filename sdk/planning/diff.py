"""The differences between two plans: code, settings, target, and the request to the backend. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..hardware import pricing
from ..job.plan import Plan
from ..text import clipped

# Replaces both run ids when requests are compared: a different id is not a difference.
_RUN_ID = "run-aaaaaa"
_ABSENT: Any = object()
_SHOWN = 120
# Fields of a plan that are compared by path.
_ENTRY = (
    "kind", "target", "function", "argv", "kwargs", "cwd", "roots", "only", "generated", "inputs", "warm_start", "initial",
    "drill",
)  # fmt: skip
_ENVIRONMENT = ("python", "tensorflow", "keras", "tf_keras")


@dataclass(frozen=True, kw_only=True)
class Change:
    section: str  # code, entry, job, target, requirements, tasks, environment, price, request or findings
    path: str  # the path of the difference in that section; for lists of texts, the text itself
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
    old, new = (json.loads(plan.to_json()) for plan in (first, second))
    return [
        *_code(first, second),
        *_changes("entry", _chosen(old, _ENTRY), _chosen(new, _ENTRY)),
        *_changes("job", old["job"], new["job"]),
        *_changes("target", _target(first, old["backend_options"]), _target(second, new["backend_options"])),
        *_requirements(first, second),
        *_members("tasks", first.tasks, second.tasks),
        *_changes("environment", _chosen(old["facts"], _ENVIRONMENT), _chosen(new["facts"], _ENVIRONMENT)),
        *_members("price", _price(first), _price(second)),
        *_changes("request", bodies[0], bodies[1]),
        *_members("findings", _findings(first), _findings(second)),
    ]


def of_values(section: str, first: Mapping[str, object], second: Mapping[str, object]) -> list[Change]:
    """Return the differences of two JSON objects."""
    return list(_changes(section, first, second))


def anonymous(plan: Plan) -> Plan:
    """Return the plan with the run id that all compared plans share."""
    return replace(plan, run_id=_RUN_ID)


def as_json(changes: Sequence[Change]) -> dict[str, object]:
    """Return the changes by section, and whether the plans are the same."""
    sections: dict[str, list[dict[str, object]]] = {}
    for change in changes:
        sections.setdefault(change.section, []).append({k: v for k, v in asdict(change).items() if k != "section"})
    return {"same": not changes, **sections}


def _chosen(data: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    return {name: data[name] for name in names}


def _target(plan: Plan, options: Mapping[str, object]) -> dict[str, object]:
    name = plan.run_id.rpartition("-")[0]
    # The port of an emulator changes with each start.
    where = {"backend": plan.backend, "emulated": bool(plan.emulator), "root": plan.root}
    return {**where, "name": name, **options}


def _price(plan: Plan) -> list[str]:
    rentals = plan.rentals
    lines = pricing.lines(rentals, billed=not plan.emulator) if rentals else []
    return [f"{label}: {text}" for label, text in lines]


def _findings(plan: Plan) -> list[str]:
    return [f"{finding.level}: {finding.message}" for finding in plan.findings]


def _code(first: Plan, second: Plan) -> Iterator[Change]:
    old, new = ({file.path: file for file in plan.code.files} for plan in (first, second))
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path), new.get(path)
        if before is None or after is None or (before.sha256, before.executable) != (after.sha256, after.executable):
            kind = "added" if before is None else "removed" if after is None else "changed"
            digests = [file and file.sha256 for file in (before, after)]
            yield Change(section="code", path=path, before=digests[0], after=digests[1], kind=kind)


def _requirements(first: Plan, second: Plan) -> Iterator[Change]:
    for name in ("lines", "options", "constraints"):
        old, new = (getattr(plan.code.requirements, name) for plan in (first, second))
        yield from _members("requirements", old, new, prefix="" if name == "lines" else f"{name}: ")


def _members(section: str, first: Sequence[str], second: Sequence[str], *, prefix: str = "") -> Iterator[Change]:
    """Yield the items that only one of two lists has, in any order."""
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


def _by_name(items: list[Any]) -> dict[str, object]:
    return {item["name"]: item["value"] for item in items}


def _words(value: Any) -> str:
    return clipped(json.dumps(value, ensure_ascii=False), _SHOWN)
