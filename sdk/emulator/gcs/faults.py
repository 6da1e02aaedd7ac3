"""What is to go wrong, and when: rules that are matched against requests. Nothing here does any harm itself."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from ...errors import InputError
from ..scripts import COMMON, FieldChecks, is_number, is_pattern, is_whole, rule_errors, set_fields, with_nth_tuple
from .routes import PARAMETERS

Kind = Literal[
    "latency",  # wait `seconds`, then go on
    "status_before",  # answer `status`; nothing happens
    "drop_before",  # cut the connection; nothing happens
    "status_after",  # do it, then answer `status`
    "drop_after",  # do it, then cut the connection
    "truncate",  # cut the connection behind the first `at_byte` bytes of the answer, by default in its middle
    "stall",  # wait `seconds`, see `at`
    "drip",  # read the body and write the answer at `bytes_per_s`
    "corrupt",  # change byte number `at_byte`, by default 0, of what is uploaded or downloaded, see `at`
    "lose_session",  # forget the resumable upload, answer `status` (404 or 410)
]
OPERATIONS = frozenset(PARAMETERS)
_PLACES = ("before", "late", "after", "wire", "stored", "disk")
_STATUS = {"lose_session": 404}


@dataclass(frozen=True, kw_only=True)
class StorageFault:
    """One rule: what goes wrong, and with which requests. A matcher that is left out matches all.

    Args:
        kind: see `Kind`.
        operation: such as "objects.insert", see `OPERATIONS`.
        method: of HTTP.
        path: a regular expression that is found in the decoded path and query.
        object: a regular expression that is found in "bucket/name"; of an upload too, whose URL may not name it.
        nth: which of the matching requests, counted from 1.
        times: how often at most.
        probability: of each matching request; drawn from `seed`, so a second run draws the same.
        seed: of the draws.
        status: of the answer; 503 unless you say otherwise.
        seconds: how long to wait.
        at_byte: where, see `Kind`.
        bytes_per_s: how fast.
        retry_after_s: what the answer says about when to come again.
        at: stall "before" the work, which is not done if the client has left meanwhile; or before it and do it "late" in any
            case; or "after" it. corrupt an upload: on the "wire", so that a declared checksum is refused;
            "stored", so that the answer shows another checksum; on the "disk", so that nobody notices before it is read.
    """

    kind: Kind
    operation: str | None = None
    method: str | None = None
    path: str | None = None
    object: str | None = None
    nth: tuple[int, ...] | None = None
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    status: int = 503
    seconds: float = 0.0
    at_byte: int | None = None
    bytes_per_s: int = 1024
    retry_after_s: int | None = None
    at: str = ""

    def matches(self, seen: RequestInfo) -> bool:
        """True if this rule speaks of such a request."""
        return (
            self.operation in (None, seen.operation)
            and (self.method is None or self.method.upper() == seen.method)
            and (self.path is None or re.search(self.path, seen.path) is not None)
            and (self.object is None or re.search(self.object, seen.object) is not None)
        )


@dataclass(frozen=True, kw_only=True)
class RequestInfo:
    """What a rule looks at."""

    operation: str
    method: str
    path: str
    object: str


@dataclass(kw_only=True)
class FaultRule:
    """A fault, and how often it was met."""

    fault: StorageFault
    draws: random.Random
    matched: int = 0
    fired: int = 0

    def fires(self, seen: RequestInfo) -> bool:
        """Count the request if it matches; True if it is one of those to which it happens."""
        fault = self.fault
        if not fault.matches(seen):
            return False
        self.matched += 1
        drawn = self.draws.random() < fault.probability
        if (fault.nth is not None and self.matched not in fault.nth) or not drawn:
            return False
        if fault.times is not None and self.fired >= fault.times:
            return False
        self.fired += 1
        return True


@dataclass(kw_only=True)
class StorageFaults:
    """The rules that hold now, in their order."""

    rules: list[FaultRule] = field(default_factory=list)

    def replace(self, faults: Sequence[StorageFault]) -> None:
        """Let these hold, and none before; counting starts anew."""
        self.rules = [
            FaultRule(fault=fault, draws=random.Random(f"{fault.seed}/{index}"))  # noqa: S311
            for index, fault in enumerate(faults)
        ]

    def choose(self, seen: RequestInfo) -> list[StorageFault]:
        """Return what happens to a request."""
        return [rule.fault for rule in self.rules if rule.fires(seen)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rules with their counts, for people and tests."""
        return [{**set_fields(rule.fault), "matched": rule.matched, "fired": rule.fired} for rule in self.rules]


def parse(script: bytes | str) -> list[StorageFault]:
    """Return the faults of a script: a JSON list of objects with the fields of `Fault`.

    Raises:
        InputError: one sentence for each mistake.
    """
    try:
        found = json.loads(script)
    except (ValueError, RecursionError) as error:
        raise InputError(f"The faults are no JSON: {error}.") from None
    if not isinstance(found, list):
        raise InputError(f"The faults are a JSON list of objects. Received: {type(found).__name__}.")
    problems = [problem for number, each in enumerate(found, 1) for problem in _problems(number, each)]
    if problems:
        raise InputError(problems)
    return [_fault(each) for each in found]


def _fault(given: dict[str, Any]) -> StorageFault:
    return StorageFault(**with_nth_tuple({"status": _STATUS.get(given["kind"], 503), **given}))


def _problems(number: int, given: Any) -> list[str]:
    known = [each.name for each in fields(StorageFault)]
    words = {"kind": get_args(Kind), "operation": sorted(OPERATIONS), "at": _PLACES}
    return rule_errors(f"Fault {number}", given, known=known, checks=_CHECKS, words=words)


_CHECKS: FieldChecks = {
    **COMMON,
    "path": ("a regular expression", is_pattern),
    "object": ("a regular expression", is_pattern),
    "method": ("a method of HTTP", lambda value: isinstance(value, str)),
    "probability": ("a number from 0 to 1", lambda value: is_number(value) and value <= 1),
    "seed": ("a whole number", lambda value: type(value) is int),
    "at_byte": ("a number of bytes", is_whole),
    "bytes_per_s": ("a number of bytes from 1", lambda value: is_whole(value, 1)),
}
