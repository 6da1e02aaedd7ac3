"""Filter, page and mask of a list of jobs. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import nearest
from .bodies import ENUMS, field_names, snake_case
from .errors import VertexApiError, invalid
from .timing import parse_time_ns

_TOKEN = re.compile(
    r"""\s*(?:(?P<open>\()|(?P<close>\))|(?P<op>!=|<=|>=|=~|!~|=|<|>|:)"""
    r"""|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<word>[^\s()"'=!<>:~]+))""",
    re.DOTALL,
)
_MAX_LENGTH, _MAX_DEPTH = 20_000, 50
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    path: tuple[str, ...]
    op: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Several filters of which all ("AND"), any ("OR") or none ("NOT") have to hold."""

    word: str
    parts: tuple[Filter, ...]


Filter = Comparison | Group


def parse(text: str) -> Filter:
    """Return the parsed filter; an empty one matches everything."""
    if len(text) > _MAX_LENGTH:
        raise invalid_filter(f"it has {len(text)} characters, {_MAX_LENGTH} are allowed")
    parser = _FilterParser(_tokens(text))
    if parser.done:
        return Group(word="AND", parts=())
    found = parser.sequence(0)
    if not parser.done:
        raise invalid_filter(f"unexpected {parser.next!r}")
    return found


def matches_filter(found: Filter, test: Callable[[Comparison], bool]) -> bool:
    if isinstance(found, Comparison):
        return test(found)
    if found.word == "AND":
        return all(matches_filter(part, test) for part in found.parts)
    if found.word == "OR":
        return any(matches_filter(part, test) for part in found.parts)
    return not matches_filter(found.parts[0], test)


def required_comparisons(found: Filter) -> list[Comparison]:
    """Return the comparisons that have to hold in any case, for which an index can be used."""
    if isinstance(found, Comparison):
        return [found]
    return [each for part in found.parts for each in required_comparisons(part)] if found.word == "AND" else []


def comparisons(found: Filter) -> list[Comparison]:
    return [found] if isinstance(found, Comparison) else [each for part in found.parts for each in comparisons(part)]


def compare(op: str, left: Any, right: Any) -> bool:
    if op not in _COMPARE:
        raise invalid_filter(f"{op} is for strings")
    return bool(_COMPARE[op](left, right))


def invalid_filter(why: str) -> VertexApiError:
    return invalid([("filter", f"Invalid filter: {why}.")])


def _tokens(text: str) -> list[tuple[str, str, bool]]:
    """Return kind and text of each token, and whether it follows the previous one without a space."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise invalid_filter(f"unexpected {text[at : at + 20].strip()!r}")
        kind, start = match.lastgroup, match.start(match.lastgroup)
        token = text[start : match.end()]
        found.append(
            (kind, re.sub(r"\\(.)", r"\1", token[1:-1], flags=re.S) if kind == "string" else token, start == at)
        )
        at = match.end()
    return found


class _FilterParser:
    def __init__(self, tokens: list[tuple[str, str, bool]]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._tokens)

    @property
    def next(self) -> str:
        return "the end" if self.done else self._tokens[self._at][1]

    def sequence(self, depth: int) -> Filter:
        if depth > _MAX_DEPTH:
            raise invalid_filter("it is nested too deeply")
        parts = [self._alternatives(depth)]
        while not self.done and self._tokens[self._at][0] != "close":
            self._take("word", "AND")
            parts.append(self._alternatives(depth))
        return parts[0] if len(parts) == 1 else Group(word="AND", parts=tuple(parts))

    def _alternatives(self, depth: int) -> Filter:
        parts = [self._term(depth)]
        while self._take("word", "OR"):
            parts.append(self._term(depth))
        return parts[0] if len(parts) == 1 else Group(word="OR", parts=tuple(parts))

    def _term(self, depth: int) -> Filter:
        negated = False
        while self._take("word", "NOT") or self._take("word", "-"):
            negated = not negated
        if self._take("open"):
            found = self.sequence(depth + 1)
            if not self._take("close"):
                raise invalid_filter(f"expected ')' instead of {self.next!r}")
        else:
            found = self._comparison()
        return Group(word="NOT", parts=(found,)) if negated else found

    def _comparison(self) -> Filter:
        path, negated = self._path()
        op = self._take("op")
        if not op:
            raise invalid_filter(f"expected a comparison such as '=' instead of {self.next!r}")
        value = self._take("string")
        if value is None:
            value = self._word_value()
        found = Comparison(path=path, op=op, value=value)
        return Group(word="NOT", parts=(found,)) if negated else found

    def _word_value(self) -> str:
        """Return an unquoted value; a time contains colons, which are tokens of their own."""
        found = self._take("word")
        if found is None:
            raise invalid_filter(f"expected a value instead of {self.next!r}")
        while not self.done and self._tokens[self._at][2] and self._tokens[self._at][:2] == ("op", ":"):
            self._at += 1
            found += ":" + (self._take("word") or "")
        return found

    def _path(self) -> tuple[tuple[str, ...], bool]:
        """Return a field's name in parts, which may be quoted, and whether a minus before it negates it."""
        start, parts, open_ = self._at, [""], True
        negated = False
        while not self.done and (self._at == start or self._tokens[self._at][2]):
            kind, text, _ = self._tokens[self._at]
            if kind == "word":
                if self._at == start and text.startswith("-"):
                    negated, text = True, text[1:]
                first, *rest = text.split(".")
                parts[-1] += first
                parts += rest
                open_ = text.endswith(".")
            elif kind == "string" and open_:
                parts[-1] += text
                open_ = False
            else:
                break
            self._at += 1
        if self._at == start or not all(parts):
            raise invalid_filter(f"expected the name of a field instead of {self.next!r}")
        return tuple(parts), negated

    def _take(self, kind: str, text: str | None = None) -> str | None:
        if self.done or self._tokens[self._at][0] != kind or (text is not None and self._tokens[self._at][1] != text):
            return None
        self._at += 1
        return self._tokens[self._at - 1][1]


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
    if op == ":":
        return re.fullmatch(".*".join(map(re.escape, value.split("*"))), name, re.DOTALL) is not None
    return (name == value) == (op == "=")


def is_listed(found: Filter, job: Mapping[str, Any]) -> bool:
    return matches_filter(found, lambda comparison: matches(comparison, job))


def page_size(text: str | None) -> int:
    if text is None or not text:
        return _PAGE
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII) or int(text) < 0:
        raise invalid([("page_size", f"The page size is a number of 0 or more. Received: {text[:100]!r}.")])
    return min(int(text) or _PAGE, _MAX_PAGE)


def page_token(query: str, last: list[Any]) -> str:
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
