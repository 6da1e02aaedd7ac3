"""What is to go wrong with custom jobs, and when. Nothing here does any harm itself."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ...errors import InputError
from ..gcs.names import words
from ..scripts import COMMON, FieldChecks, is_number, is_pattern, is_whole, rule_errors, set_fields, with_nth_tuple

OPERATIONS = words(
    "customJobs.create customJobs.get customJobs.list customJobs.cancel customJobs.delete operations.get entries.list"
    " metadata.get quotas.get"
)
Kind = Literal[
    "latency",  # wait `seconds`, then go on
    "status_before",  # answer `status`; nothing happens
    "drop_before",  # cut the connection; nothing happens
    "status_after",  # do it, then answer `status`
    "drop_after",  # do it, then cut the connection
    "quota",  # refuse to create the job: 429 with the metrics that it needs
    "late_list",  # leave a new job out of the next `lists` lists, or for `seconds`
    "hold",  # leave a new job in the queue for `seconds`, or until other faults are asked for
    "stockout",  # let an attempt to get machines fail
    "preempt",  # take away the machine of `replica`
    "oom",  # let `replica` run out of memory
    "internal",  # let the service itself fail
]
HTTP = frozenset(("latency", "status_before", "drop_before", "status_after", "drop_after"))
# They happen to a job that runs: at once, after `after_s`, or when it writes a line.
RUNNING = frozenset(("preempt", "oom", "internal"))
# Once, unless more is asked for: a line that is written again after the restart would take the machine away for ever.
_ONCE = RUNNING | {"late_list"}


@dataclass(frozen=True, kw_only=True)
class VertexFault:
    """One rule: what goes wrong, and with which requests or jobs. A matcher that is left out matches all.

    Args:
        kind: see `Kind`.
        operation: of requests, such as "customJobs.create", see `OPERATIONS`.
        display_name: a regular expression that is found in the job's display name.
        nth: which of the matching requests, jobs, attempts or lines, counted from 1.
        times: how often at most; of what happens to a running job once unless you say otherwise.
        status: of the answer; 503 unless you say otherwise.
        seconds: how long.
        retry_after_s: what the answer says about when to come again.
        lists: of how many lists a new job is missing.
        replica: to which it happens; "workerpool0-0" unless you say otherwise.
        log: a regular expression; it happens when a replica writes a line in which it is found.
        after_s: it happens that long after the job began to run.
    """

    kind: Kind
    operation: str | None = None
    display_name: str | None = None
    nth: tuple[int, ...] | None = None
    times: int | None = None
    status: int = 503
    seconds: float | None = None
    retry_after_s: int | None = None
    lists: int | None = None
    replica: str = "workerpool0-0"
    log: str | None = None
    after_s: float | None = None


class VertexFaults:
    """The rules that hold now, in their order. Any thread may use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []

    def replace(self, faults: Sequence[VertexFault]) -> None:
        """Let these hold, and none before; counting starts anew."""
        with self._lock:
            self._rules = [_Rule(fault) for fault in faults]

    def for_request(self, operation: str, name: str = "") -> list[VertexFault]:
        """Return what happens to a request; `name` is the display name of the job that it is about."""
        return self._choose(lambda fault: fault.kind in HTTP and fault.operation in (None, operation), name)

    def for_job(self, kind: Kind, name: str) -> VertexFault | None:
        """Return the fault of that kind that happens to a job now."""
        return next(iter(self._choose(lambda fault: fault.kind == kind, name)), None)

    def for_running(self, name: str) -> list[VertexFault]:
        """Return what is to happen to a job that begins to run, now or `after_s`."""
        return self._choose(lambda fault: fault.kind in RUNNING and fault.log is None, name)

    def for_line(self, name: str, line: str) -> list[VertexFault]:
        """Return what happens to a job because of a line that it has written."""
        with self._lock:
            if not any(rule.fault.log for rule in self._rules):
                return []
        return self._choose(lambda fault: fault.log is not None and re.search(fault.log, line) is not None, name)

    def is_active(self, kind: Kind) -> bool:
        """True if there is a rule of that kind; it does not count as having happened."""
        with self._lock:
            return any(rule.fault.kind == kind for rule in self._rules)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rules with their counts, for people and tests."""
        with self._lock:
            return [
                {"api": "vertex", **set_fields(rule.fault), "matched": rule.matched, "fired": rule.fired}
                for rule in self._rules
            ]

    def _choose(self, wanted: Callable[[VertexFault], bool], name: str) -> list[VertexFault]:
        with self._lock:
            return [rule.fault for rule in self._rules if wanted(rule.fault) and rule.fires(name)]


class _Rule:
    def __init__(self, fault: VertexFault) -> None:
        self.fault = fault
        self.matched = 0
        self.fired = 0

    def fires(self, name: str) -> bool:
        """Count what has come if it matches; True if it is one of those to which it happens."""
        fault = self.fault
        if fault.display_name is not None and re.search(fault.display_name, name) is None:
            return False
        self.matched += 1
        times = fault.times if fault.times is not None or fault.kind not in _ONCE else len(fault.nth or (1,))
        if (fault.nth is not None and self.matched not in fault.nth) or (times is not None and self.fired >= times):
            return False
        self.fired += 1
        return True


def parse(script: Sequence[Any]) -> list[VertexFault]:
    """Return the faults of a script: objects with the fields of `Fault`, and "api".

    Raises:
        InputError: one sentence for each mistake.
    """
    problems = [problem for number, each in enumerate(script, 1) for problem in _problems(number, each)]
    if problems:
        raise InputError(problems)
    return [_fault({name: value for name, value in each.items() if name != "api"}) for each in script]


def _fault(given: dict[str, Any]) -> VertexFault:
    return VertexFault(**with_nth_tuple(given))


def _problems(number: int, given: Any) -> list[str]:
    known = [*(each.name for each in fields(VertexFault)), "api"]
    words = {"kind": get_args(Kind), "operation": sorted(OPERATIONS)}
    return rule_errors(f"Fault {number} of vertex", given, known=known, checks=_CHECKS, words=words)


_CHECKS: FieldChecks = {
    **COMMON,
    "display_name": ("a regular expression", is_pattern),
    "log": ("a regular expression", is_pattern),
    "replica": ("a name such as workerpool1-0", lambda value: isinstance(value, str)),
    "lists": ("a number from 1", lambda value: is_whole(value, 1)),
    "after_s": ("a number of seconds", is_number),
}
