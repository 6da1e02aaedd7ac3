"""Filters of list calls, which Vertex AI and Cloud Logging share: comparisons, AND, OR, NOT, parentheses. Pure.

As both services document, OR binds closer than AND, and two terms side by side are joined by AND.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import VertexApiError, invalid

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
    """One field compared with one value; `path` is its name in parts."""

    path: tuple[str, ...]
    op: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Several filters of which all ("AND"), any ("OR") or none ("NOT") have to hold."""

    word: str
    parts: tuple[Filter, ...]


Filter = Comparison | Group
EVERYTHING = Group(word="AND", parts=())


def parse(text: str) -> Filter:
    """Return the parsed filter; an empty one matches everything."""
    if len(text) > _MAX_LENGTH:
        raise invalid_filter(f"it has {len(text)} characters, {_MAX_LENGTH} are allowed")
    parser = _FilterParser(_tokens(text))
    if parser.done:
        return EVERYTHING
    found = parser.sequence(0)
    if not parser.done:
        raise invalid_filter(f"unexpected {parser.next!r}")
    return found


def matches_filter(found: Filter, test: Callable[[Comparison], bool]) -> bool:
    """Evaluate a filter, given `test` for each comparison."""
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
    """Return all comparisons of a filter."""
    return [found] if isinstance(found, Comparison) else [each for part in found.parts for each in comparisons(part)]


def compare(op: str, left: Any, right: Any) -> bool:
    """Return whether two values compare as an operator says; ":" is "=" for everything but strings."""
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
        found = self._parenthesis(depth) if self._take("open") else self._comparison()
        return Group(word="NOT", parts=(found,)) if negated else found

    def _parenthesis(self, depth: int) -> Filter:
        found = self.sequence(depth + 1)
        if not self._take("close"):
            raise invalid_filter(f"expected ')' instead of {self.next!r}")
        return found

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
