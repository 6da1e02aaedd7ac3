"""The faults of custom jobs, of requests about them, and of the other services beside Cloud Storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import words
from ..faults import COMMON_CHECKS, FaultRule, FaultRules, FieldChecks, is_number, is_pattern, is_whole, parse_rules

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
_CHECKS: FieldChecks = {
    **COMMON_CHECKS,
    "display_name": ("a regular expression", is_pattern),
    "log": ("a regular expression", is_pattern),
    "replica": ("a name such as workerpool1-0", lambda value: isinstance(value, str)),
    "lists": ("a number from 1", lambda value: is_whole(value, 1)),
    "after_s": ("a number of seconds", is_number),
}
_CHOICES = {"kind": get_args(Kind), "operation": sorted(OPERATIONS)}


@dataclass(frozen=True, kw_only=True)
class VertexFault:
    """One rule: what goes wrong, and with which requests or jobs. A matcher that is not given matches all."""

    kind: Kind
    operation: str | None = None  # Of requests, such as "customJobs.create", see `OPERATIONS`
    display_name: str | None = None  # A regular expression that is searched in the job's display name
    nth: tuple[int, ...] | None = None  # Which of the matching requests, jobs, attempts or lines, counted from 1
    times: int | None = None  # The maximum number; for what happens to a running job 1 by default
    status: int = 503
    seconds: float | None = None
    retry_after_s: int | None = None  # The Retry-After header of the answer
    lists: int | None = None  # The number of lists that do not show a new job
    replica: str = "workerpool0-0"  # To which it happens; "workerpool0-0" by default
    log: str | None = None  # A regular expression; it happens when a replica writes a line in which it is found
    after_s: float | None = None  # It happens this long after the job began to run


class VertexFaults(FaultRules[VertexFault]):
    """The rules for requests, jobs and lines. `name` is the display name of the job that they are about."""

    def for_request(self, operation: str, name: str = "") -> list[VertexFault]:
        return self._for_job(name, lambda fault: fault.kind in _HTTP and fault.operation in (None, operation))

    def for_job(self, kind: Kind, name: str) -> VertexFault | None:
        return next(iter(self._for_job(name, lambda fault: fault.kind == kind)), None)

    def for_running(self, name: str) -> list[VertexFault]:
        """Return what happens to a job that begins to run, now or `after_s`."""
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


def parse(rules: Sequence[Any]) -> list[VertexFault]:
    return parse_rules(VertexFault, rules, title="Fault {} of vertex", checks=_CHECKS, choices=_CHOICES)
