"""Filter, page and mask of a list of jobs. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ...errors import nearest
from .bodies import field_names, snake_case
from .errors import invalid
from .fields import ENUMS
from .filters import Comparison, Filter, compare, comparisons, invalid_filter, matches_filter, parse
from .timing import parse_time_ns

_OPERATORS = {
    "display_name": ("=", "!=", ":"),
    "state": ("=", "!="),
    "create_time": ("=", "!=", "<", "<=", ">", ">="),
    "labels": ("=", "!=", ":"),
}
_PAGE, _MAX_PAGE = 100, 1000


def read_filter(text: str) -> Filter:
    """Return the parsed filter of a list call; every field and operator is one that the service compares."""
    found = parse(text)
    for each in comparisons(found):
        field = snake_case(each.path[0])
        if field not in _OPERATORS or (len(each.path) > 1) != (field == "labels"):
            name = ".".join(each.path)
            raise invalid_filter(f"unknown field {name!r}. {nearest(name, list(_OPERATORS))}")
        if each.op not in _OPERATORS[field]:
            raise invalid_filter(f"{field} is compared by {' '.join(_OPERATORS[field])}. Received: {each.op!r}")
        if field == "state" and _state(each.value) is None:
            raise invalid_filter(f"unknown state {each.value!r}")
        if field == "create_time":
            try:
                parse_time_ns(each.value)
            except ValueError as error:
                raise invalid_filter(str(error)) from None
    return found


def matches(comparison: Comparison, job: Mapping[str, Any]) -> bool:
    """Return whether one comparison of a filter holds for the resource of a job."""
    field, op, value = snake_case(comparison.path[0]), comparison.op, comparison.value
    if field == "labels":
        found = job.get("labels", {}).get(".".join(comparison.path[1:]))
        if op == ":" and value == "*":
            return found is not None
        return bool(found == value) == (op != "!=")
    if field == "create_time":
        return compare(op, parse_time_ns(job["createTime"]), parse_time_ns(value))
    if field == "state":
        return bool(job["state"] == _state(value)) == (op == "=")
    name = str(job["displayName"])
    return _like(value, name) if op == ":" else (name == value) == (op == "=")


def is_listed(found: Filter, job: Mapping[str, Any]) -> bool:
    """Return whether the resource of a job passes a filter."""
    return matches_filter(found, lambda comparison: matches(comparison, job))


def page_size(text: str | None) -> int:
    """Return the number of jobs of a page."""
    if text is None or not text:
        return _PAGE
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII) or int(text) < 0:
        raise invalid([("page_size", f"The page size is a number of 0 or more. Received: {text[:100]!r}.")])
    return min(int(text) or _PAGE, _MAX_PAGE)


def page_token(query: str, last: list[Any]) -> str:
    """Return the token that continues after `last`, for the same query only."""
    text = json.dumps([_digest(query), last])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_page_token(text: str, query: str) -> list[Any] | None:
    """Return the `last` of a page token of this query; None for the first page."""
    if not text:
        return None
    try:
        padded = text + "=" * (-len(text) % 4)
        digest, last = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        known = digest == _digest(query) and isinstance(last, list) and all(type(each) is int for each in last)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        known = False
    if not known:
        raise invalid([("page_token", "The page token is not one that was given for this filter.")])
    return list(last)


def apply_read_mask(job: dict[str, Any], mask: str) -> dict[str, Any]:
    """Return the fields of a job that a read mask names; all of them for no mask or "*"."""
    paths = [path.strip() for path in mask.split(",") if path.strip()]
    if not paths or "*" in paths:
        return job
    names = field_names("CustomJob")
    tops = [path.split(".")[0] for path in paths]
    unknown = [path for path in tops if path not in names]
    if unknown:
        raise invalid([("read_mask", f"Invalid read mask: custom jobs have no field {unknown[0][:100]!r}.")])
    wanted = {names[path] for path in tops}
    return {name: value for name, value in job.items() if name in wanted}


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode("utf-8", "replace")).hexdigest()[:16]


def _state(value: str) -> str | None:
    known = ENUMS["JobState"]
    if value in known:
        return value
    return next((name for name, number in known.items() if str(number) == value), None)


def _like(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
