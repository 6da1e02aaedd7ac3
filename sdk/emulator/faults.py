"""Fault rules: what goes wrong, and when. Nothing here does any harm itself; the services ask which faults apply."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar, get_args

from ..errors import InputError, nearest
from .errors import words
from .gcs.routes import PARAMETERS

# For each field, a description of valid values and a test for them.
FieldChecks = Mapping[str, tuple[str, Callable[[Any], bool]]]


@dataclass(frozen=True, kw_only=True)
class _Fault:
    operation: str | None = None  # Of the request, such as "objects.insert" or "customJobs.create"
    nth: tuple[int, ...] | None = None  # Which of the matching requests, jobs, attempts or lines, counted from 1
    times: int | None = None  # The maximum number
    status: int = 503
    retry_after_s: int | None = None  # The Retry-After header of the answer


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
            each.name: value for each in fields(self.fault) if (value := getattr(self.fault, each.name)) != each.default
        }
        return {**given, "matched": self.matched, "fired": self.fired}


class FaultRules(Generic[F]):
    """The rules in force, in their order. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[FaultRule[F]] = []

    def replace(self, faults: Sequence[F]) -> None:
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
    known = [each.name for each in fields(fault)]
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
    for name, allowed in choices.items():
        word = rule.get(name)
        if (word is not None or name == "kind") and word not in allowed:
            problems.append(f"{title}: unknown {name}. Received: {word!r}. {nearest(str(word), list(allowed))}")
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


# What both services can do to any request.
CommonKind = Literal[
    "latency",  # wait `seconds`, then continue
    "status_before",  # answer `status`; nothing happens
    "drop_before",  # cut the connection; nothing happens
    "status_after",  # do it, then answer `status`
    "drop_after",  # do it, then cut the connection
]
StorageKind = Literal[
    CommonKind,
    "truncate",  # cut the connection after the first `at_byte` bytes of the answer, by default in its middle
    "stall",  # wait `seconds`, see `at`
    "drip",  # read the body and write the answer at `bytes_per_s`
    "corrupt",  # change byte number `at_byte`, by default 0, of an upload or a download, see `at`
    "lose_session",  # forget the resumable upload, answer `status` (404 or 410)
]
_STAGES = ("before", "late", "after", "wire", "stored", "disk")
_STORAGE_CHECKS: FieldChecks = {
    **COMMON_CHECKS,
    "path": ("a regular expression", is_pattern),
    "object": ("a regular expression", is_pattern),
    "method": ("an HTTP method", lambda value: isinstance(value, str)),
    "probability": ("a number from 0 to 1", lambda value: is_number(value) and value <= 1),
    "seed": ("a whole number", lambda value: type(value) is int),
    "at_byte": ("a number of bytes", is_whole),
    "bytes_per_s": ("a number of bytes from 1", lambda value: is_whole(value, 1)),
}
_STORAGE_CHOICES = {"kind": get_args(StorageKind), "operation": sorted(PARAMETERS), "at": _STAGES}


@dataclass(frozen=True, kw_only=True)
class StorageFault(_Fault):
    """One rule: what goes wrong, and with which requests. A matcher that is not given matches every request."""

    kind: StorageKind
    method: str | None = None
    path: str | None = None  # A regular expression that is searched in the decoded path and query
    # A regular expression that is searched in "bucket/name"; also for uploads whose URL does not name the object
    object: str | None = None
    probability: float = 1.0  # For each matching request; drawn from `seed`, so that a second run draws the same
    seed: int = 0
    seconds: float = 0.0
    at_byte: int | None = None  # The position, see `StorageKind`
    bytes_per_s: int = 1024
    # Stall "before" the work, which is not done if the client disconnects meanwhile; or before it and do it "late" in
    # any case; or "after" it. Corrupt an upload: on the "wire", so that a declared checksum is rejected; "stored", so
    # that the answer shows another checksum; on the "disk", so that only a later read shows it.
    at: str = ""

    def matches(self, operation: str, method: str, path: str, name: str) -> bool:
        """Return whether it may happen to a request about the object of that name."""
        same = self.operation in (None, operation) and (self.method or method).upper() == method
        return same and all(re.search(each or "", text) for each, text in ((self.path, path), (self.object, name)))


class StorageFaults(FaultRules[StorageFault]):
    def _rule(self, fault: StorageFault, index: int) -> FaultRule[StorageFault]:
        draws = random.Random(f"{fault.seed}/{index}")  # noqa: S311
        return FaultRule(fault=fault, times=fault.times, probability=fault.probability, random=draws)


def parse_storage_faults(rules: Sequence[Any]) -> list[StorageFault]:
    lost = [isinstance(rule, dict) and rule.get("kind") == "lose_session" for rule in rules]
    with_status = [{"status": 404, **rule} if is_lost else rule for rule, is_lost in zip(rules, lost, strict=True)]
    return parse_rules(StorageFault, with_status, title="Fault {}", checks=_STORAGE_CHECKS, choices=_STORAGE_CHOICES)


OPERATIONS = words(
    "customJobs.create customJobs.get customJobs.list customJobs.cancel customJobs.delete operations.get entries.list"
    " metadata.get quotas.get"
)
VertexKind = Literal[
    CommonKind,
    "quota",  # reject the creation of the job: 429 with the metrics that it needs
    "late_list",  # leave a new job out of the next `lists` lists, or for `seconds`
    "hold",  # leave a new job in the queue for `seconds`, or until the rules are replaced
    "stockout",  # let an attempt to get machines fail
    "preempt",  # take away the machine of `replica`
    "oom",  # let `replica` run out of memory
    "internal",  # let the service itself fail
]
_HTTP = frozenset(("latency", "status_before", "drop_before", "status_after", "drop_after"))
# These happen to a running job: at once, after `after_s`, or when it writes a line.
_RUNNING = frozenset(("preempt", "oom", "internal"))
# Once by default: a line that is written again after the restart would preempt the job for ever.
_ONCE = _RUNNING | {"late_list"}
_VERTEX_CHECKS: FieldChecks = {
    **COMMON_CHECKS,
    "display_name": ("a regular expression", is_pattern),
    "log": ("a regular expression", is_pattern),
    "replica": ("a name such as workerpool1-0", lambda value: isinstance(value, str)),
    "lists": ("a number from 1", lambda value: is_whole(value, 1)),
    "after_s": ("a number of seconds", is_number),
}
_VERTEX_CHOICES = {"kind": get_args(VertexKind), "operation": sorted(OPERATIONS)}


@dataclass(frozen=True, kw_only=True)
class VertexFault(_Fault):
    """One rule: what goes wrong, and with which requests or jobs. A matcher that is not given matches all."""

    kind: VertexKind
    display_name: str | None = None  # A regular expression that is searched in the job's display name
    seconds: float | None = None
    lists: int | None = None  # The number of lists that do not show a new job
    replica: str = "workerpool0-0"  # To which it happens; "workerpool0-0" by default
    log: str | None = None  # A regular expression; it happens when a replica writes a line in which it is found
    after_s: float | None = None  # It happens this long after the job began to run


class VertexFaults(FaultRules[VertexFault]):
    """The rules for requests, jobs and lines. `name` is the display name of the job that they are about."""

    def for_request(self, operation: str, name: str = "") -> list[VertexFault]:
        return self._for_job(name, lambda fault: fault.kind in _HTTP and fault.operation in (None, operation))

    def for_job(self, kind: VertexKind, name: str) -> VertexFault | None:
        return next(iter(self._for_job(name, lambda fault: fault.kind == kind)), None)

    def for_running(self, name: str) -> list[VertexFault]:
        return self._for_job(name, lambda fault: fault.kind in _RUNNING and fault.log is None)

    def for_line(self, name: str, line: str) -> list[VertexFault]:
        return self._for_job(name, lambda fault: fault.log is not None and re.search(fault.log, line) is not None)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"api": "vertex", **rule} for rule in super().to_json()]

    def _for_job(self, name: str, matches: Callable[[VertexFault], bool]) -> list[VertexFault]:
        return self.choose(lambda fault: matches(fault) and re.search(fault.display_name or "", name) is not None)

    def _rule(self, fault: VertexFault, index: int) -> FaultRule[VertexFault]:
        times = fault.times
        if times is None and fault.kind in _ONCE:
            times = len(fault.nth or (1,))
        return FaultRule(fault=fault, times=times)


def parse_vertex_faults(rules: Sequence[Any]) -> list[VertexFault]:
    return parse_rules(VertexFault, rules, title="Fault {} of vertex", checks=_VERTEX_CHECKS, choices=_VERTEX_CHOICES)
