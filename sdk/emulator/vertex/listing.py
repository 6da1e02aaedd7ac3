"""Filter, page and mask of a list of custom jobs or training pipelines. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import nearest
from ..messages import ENUMS, MESSAGES, field_names, snake_case
from .errors import VertexApiError, invalid
from .timing import parse_time_ns

_STRING = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_WORD = r"""[^\s()"'=!<>:~]+"""
_PART = re.compile(rf"""{_STRING}|[^\s()"'=!<>:~.]+""", re.DOTALL)
# A word before a space, a parenthesis, a quote or the end is an operator; a word or strings before a comparison name a field.
_TOKEN = re.compile(
    rf"""\s*(?:(?P<open>\()|(?P<close>\))|(?P<word>AND|OR|NOT)(?=[\s()"']|$)|(?P<minus>-)"""
    rf"""|(?P<path>(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*)\s*"""
    # A time contains colons.
    rf"""(?:(?P<op>!=|<=|>=|=~|!~|=|<|>|:)\s*(?P<value>{_STRING}|{_WORD}(?::(?:{_WORD})?)*)?)?)""",
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
    parser = _FilterParser(text)
    parsed = parser.sequence(0) if parser.next else Group(word="AND", parts=())
    if parser.next:
        raise invalid_filter(f"unexpected {parser.next[0].strip()!r}")
    return parsed


def matches_filter(condition: Filter, test: Callable[[Comparison], bool]) -> bool:
    if isinstance(condition, Comparison):
        return test(condition)
    if condition.word == "AND":
        return all(matches_filter(part, test) for part in condition.parts)
    if condition.word == "OR":
        return any(matches_filter(part, test) for part in condition.parts)
    return not matches_filter(condition.parts[0], test)


def required_comparisons(tree: Filter) -> list[Comparison]:
    """Return the comparisons that have to hold in any case, for which an index can be used."""
    if isinstance(tree, Comparison):
        return [tree]
    return [term for part in tree.parts for term in required_comparisons(part)] if tree.word == "AND" else []


def comparisons(tree: Filter) -> list[Comparison]:
    return [tree] if isinstance(tree, Comparison) else [term for part in tree.parts for term in comparisons(part)]


def compare(op: str, left: Any, right: Any) -> bool:
    if op not in _COMPARE:
        raise invalid_filter(f"{op} is for strings")
    return bool(_COMPARE[op](left, right))


def invalid_filter(why: str) -> VertexApiError:
    return invalid([("filter", f"Invalid filter: {why}.")])


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if text[0] in "\"'" else text


class _FilterParser:
    """`next` is the match of the next token, None at the end."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self._advance()

    def _advance(self) -> None:
        self.next = _TOKEN.match(self._text, self._at)
        if self.next is not None:
            self._at = self.next.end()
        elif self._at < len(self._text):
            raise invalid_filter(f"unexpected {self._text[self._at : self._at + 20].strip()!r}")

    def sequence(self, depth: int) -> Filter:
        if depth > _MAX_DEPTH:
            raise invalid_filter("it is nested too deeply")
        parts = [self._alternatives(depth)]
        while self.next and not self.next["close"]:
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
        while self._take("word", "NOT") or self._take("minus", "-"):
            negated = not negated
        if self._take("open", "("):
            term = self.sequence(depth + 1)
            if not self._take("close", ")"):
                raise self._expected("')'")
        else:
            term = self._comparison()
        return Group(word="NOT", parts=(term,)) if negated else term

    def _comparison(self) -> Filter:
        match = self.next
        path = [_unquoted(part) for part in _PART.findall(match["path"] or "")] if match else []
        if match is None or not path or not all(path):
            raise self._expected("the name of a field")
        self._advance()
        if not match["op"]:
            raise self._expected("a comparison such as '='")
        if not match["value"]:
            raise self._expected("a value")
        return Comparison(path=tuple(path), op=match["op"], value=_unquoted(match["value"]))

    def _take(self, kind: str, text: str) -> bool:
        is_next = self.next is not None and self.next[kind] == text
        if is_next:
            self._advance()
        return is_next

    def _expected(self, what: str) -> VertexApiError:
        return invalid_filter(f"expected {what} instead of {self.next[0].strip() if self.next else 'the end'!r}")


_OPERATORS = {
    "display_name": ("=", "!=", ":"),
    "training_task_definition": ("=", "!=", ":"),
    "state": ("=", "!="),
    "create_time": ("=", "!=", "<", "<=", ">", ">="),
    "labels": ("=", "!=", ":"),
}
_PAGE, _MAX_PAGE = 100, 1000


def read_filter(text: str, kind: str) -> Filter:
    """Return the parsed filter of a list call; every field and operator is one that the service compares."""
    parsed = parse(text)
    for comparison in comparisons(parsed):
        field = snake_case(comparison.path[0])
        names = [name for name in _OPERATORS if name in field_names(kind)]
        if field not in names or (len(comparison.path) > 1) != (field == "labels"):
            name = ".".join(comparison.path)
            raise invalid_filter(f"unknown field {name!r}. {nearest(name, names)}")
        if comparison.op not in _OPERATORS[field]:
            raise invalid_filter(f"{field} is compared by {' '.join(_OPERATORS[field])}. Received: {comparison.op!r}")
        if field == "state" and _state(comparison.value, kind) is None:
            raise invalid_filter(f"unknown state {comparison.value!r}")
        if field == "create_time":
            try:
                parse_time_ns(comparison.value)
            except ValueError as error:
                raise invalid_filter(str(error)) from None
    return parsed


def matches(comparison: Comparison, job: Mapping[str, Any], kind: str) -> bool:
    field, op, value = snake_case(comparison.path[0]), comparison.op, comparison.value
    if field == "labels":
        label = job.get("labels", {}).get(".".join(comparison.path[1:]))
        if op == ":" and value == "*":
            return label is not None
        return bool(label == value) == (op != "!=")
    if field == "create_time":
        return compare(op, parse_time_ns(job["createTime"]), parse_time_ns(value))
    if field == "state":
        return bool(job["state"] == _state(value, kind)) == (op == "=")
    name = str(job["displayName" if field == "display_name" else "trainingTaskDefinition"])
    if op == ":":
        return re.fullmatch(".*".join(map(re.escape, value.split("*"))), name, re.DOTALL) is not None
    return (name == value) == (op == "=")


def read_page(
    newest: Callable[[int | None], Iterable[tuple[int, dict[str, Any]]]], query: Mapping[str, str], kind: str
) -> tuple[list[dict[str, Any]], str]:
    """Return the resources of one page of a list call, and the token of the next page, "" for none.

    `newest` yields ids and resources with ids below the given one, the newest first. `kind` is the message of a resource.
    """
    text, size = query.get("filter", ""), page_size(query.get("pageSize"))
    condition, last = read_filter(text, kind), read_page_token(query.get("pageToken", ""), text)
    entries: list[tuple[int, dict[str, Any]]] = []
    for number, resource in newest(last[0] if last else None):
        if matches_filter(condition, lambda term, resource=resource: matches(term, resource, kind)):  # type: ignore[misc]
            entries.append((number, apply_read_mask(resource, query.get("readMask", ""), kind)))
        if len(entries) > size:
            break
    token = page_token(text, [entries[size - 1][0]]) if len(entries) > size else ""
    return [resource for _, resource in entries[:size]], token


def page_size(text: str | None, default: int = _PAGE, most: int = _MAX_PAGE) -> int:
    if not text:
        return default
    if not re.fullmatch(r"-?\d{1,9}", text, re.ASCII) or int(text) < 0:
        raise invalid([("page_size", f"The page size is a number of 0 or more. Received: {text[:100]!r}.")])
    return min(int(text) or default, most)


def page_token(query: str, last: list[Any]) -> str:
    text = json.dumps([_digest(query), last])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_page_token(text: str, query: str, kind: type = int) -> list[Any] | None:
    """Return the `last` of a page token of this query, values of one type; None for the first page."""
    if not text:
        return None
    try:
        padded = text + "=" * (-len(text) % 4)
        digest, last = json.loads(base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True))
        is_valid = digest == _digest(query) and isinstance(last, list) and all(type(value) is kind for value in last)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        is_valid = False
    if not is_valid:
        raise invalid([("page_token", "The page token is not one that was given for this filter.")])
    return list(last)


def apply_read_mask(job: dict[str, Any], mask: str, kind: str) -> dict[str, Any]:
    paths = [path.strip() for path in mask.split(",") if path.strip()]
    if not paths or "*" in paths:
        return job
    names = field_names(kind)
    tops = [path.split(".")[0] for path in paths]
    unknown = [path for path in tops if path not in names]
    if unknown:
        raise invalid([("read_mask", f"Invalid read mask: a {kind} has no field {unknown[0][:100]!r}.")])
    fields = {names[path] for path in tops}
    return {name: value for name, value in job.items() if name in fields}


def _digest(query: str) -> str:
    return hashlib.sha256(query.encode("utf-8", "replace")).hexdigest()[:16]


def _state(value: str, kind: str) -> str | None:
    states = ENUMS[MESSAGES[kind]["state"]]
    if value in states:
        return value
    return next((name for name, number in states.items() if str(number) == value), None)
