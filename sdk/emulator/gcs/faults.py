"""The faults of Cloud Storage: rules that are matched against requests."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..faults import COMMON_CHECKS, FaultRule, FaultRules, FieldChecks, is_number, is_pattern, is_whole, parse_rules
from .routes import PARAMETERS

Kind = Literal[
    "latency",  # wait `seconds`, then go on
    "status_before",  # answer `status`; nothing happens
    "drop_before",  # cut the connection; nothing happens
    "status_after",  # do it, then answer `status`
    "drop_after",  # do it, then cut the connection
    "truncate",  # cut the connection after the first `at_byte` bytes of the answer, by default in its middle
    "stall",  # wait `seconds`, see `at`
    "drip",  # read the body and write the answer at `bytes_per_s`
    "corrupt",  # change byte number `at_byte`, by default 0, of an upload or a download, see `at`
    "lose_session",  # forget the resumable upload, answer `status` (404 or 410)
]
_STAGES = ("before", "late", "after", "wire", "stored", "disk")
_CHECKS: FieldChecks = {
    **COMMON_CHECKS,
    "path": ("a regular expression", is_pattern),
    "object": ("a regular expression", is_pattern),
    "method": ("an HTTP method", lambda value: isinstance(value, str)),
    "probability": ("a number from 0 to 1", lambda value: is_number(value) and value <= 1),
    "seed": ("a whole number", lambda value: type(value) is int),
    "at_byte": ("a number of bytes", is_whole),
    "bytes_per_s": ("a number of bytes from 1", lambda value: is_whole(value, 1)),
}
_CHOICES = {"kind": get_args(Kind), "operation": sorted(PARAMETERS), "at": _STAGES}


@dataclass(frozen=True, kw_only=True)
class RequestInfo:
    operation: str
    method: str
    path: str
    object: str


@dataclass(frozen=True, kw_only=True)
class StorageFault:
    """One rule: what goes wrong, and with which requests. A matcher that is not given matches every request."""

    kind: Kind
    operation: str | None = None  # Such as "objects.insert", see `routes.PARAMETERS`
    method: str | None = None
    path: str | None = None  # A regular expression that is searched in the decoded path and query
    # A regular expression that is searched in "bucket/name"; also for uploads whose URL does not name the object
    object: str | None = None
    nth: tuple[int, ...] | None = None  # Which of the matching requests, counted from 1
    times: int | None = None  # The maximum number of requests
    probability: float = 1.0  # For each matching request; drawn from `seed`, so that a second run draws the same
    seed: int = 0
    status: int = 503
    seconds: float = 0.0
    at_byte: int | None = None  # The position, see `Kind`
    bytes_per_s: int = 1024
    retry_after_s: int | None = None  # The Retry-After header of the answer
    # Stall "before" the work, which is not done if the client disconnects meanwhile; or before it and do it "late" in
    # any case; or "after" it. Corrupt an upload: on the "wire", so that a declared checksum is rejected; "stored", so
    # that the answer shows another checksum; on the "disk", so that only a later read shows it.
    at: str = ""

    def matches(self, request: RequestInfo) -> bool:
        return (
            self.operation in (None, request.operation)
            and (self.method is None or self.method.upper() == request.method)
            and (self.path is None or re.search(self.path, request.path) is not None)
            and (self.object is None or re.search(self.object, request.object) is not None)
        )


class StorageFaults(FaultRules[StorageFault]):
    def _rule(self, fault: StorageFault, index: int) -> FaultRule[StorageFault]:
        draws = random.Random(f"{fault.seed}/{index}")  # noqa: S311
        return FaultRule(fault=fault, times=fault.times, probability=fault.probability, random=draws)


def parse(rules: Sequence[Any]) -> list[StorageFault]:
    lost = [isinstance(rule, dict) and rule.get("kind") == "lose_session" for rule in rules]
    with_status = [{"status": 404, **rule} if is_lost else rule for rule, is_lost in zip(rules, lost, strict=True)]
    return parse_rules(StorageFault, with_status, title="Fault {}", checks=_CHECKS, choices=_CHOICES)
