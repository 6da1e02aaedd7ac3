"""One page of a listing: prefix, delimiter, offsets and page tokens, over anything that can be scanned by name."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import invalid

MAX_RESULTS = 1000


class ListedObject(NamedTuple):
    name: str
    generation: int
    record: str


# (name, generation, limit) -> the entries after that one.
Scan = Callable[[str, int, int], list[ListedObject]]


class Cursor(NamedTuple):
    """The position after the last page: its last entry, and the prefix that came last."""

    name: str = ""
    generation: int = -1
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class ListQuery:
    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    glob: re.Pattern[str] | None = None
    trailing_delimiter: bool = False
    limit: int = MAX_RESULTS
    after: Cursor = field(default_factory=Cursor)

    def group(self, name: str) -> str:
        at = name.find(self.delimiter, len(self.prefix)) if self.delimiter else -1
        return name[: at + len(self.delimiter)] if at >= 0 else ""


@dataclass(kw_only=True)
class Page:
    items: list[ListedObject] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    token: str | None = None


def list_page(scan: Scan, query: ListQuery) -> Page:
    """Return one page. The names that a prefix stands for count as one."""
    page, reached = Page(), query.after
    for entry, cursor in _walk(scan, query):
        if len(page.items) + len(page.prefixes) >= query.limit:
            page.token = base64.urlsafe_b64encode(json.dumps(reached).encode()).decode()
            return page
        if isinstance(entry, str):
            page.prefixes.append(entry)
        else:
            page.items.append(entry)
        reached = cursor
    return page


def _walk(scan: Scan, query: ListQuery) -> Iterator[tuple[ListedObject | str, Cursor]]:
    """Yield entries and prefixes in order, each with the cursor after it."""
    at = query.after._replace(name=max(query.after.name, query.prefix, query.start))
    if at.name != query.after.name:
        at = at._replace(generation=-1)
    # Of a folder, all names are read.
    limit = MAX_RESULTS if query.delimiter else query.limit + 1
    while True:
        batch = scan(at.name, at.generation, limit)
        for entry in batch:
            if not entry.name.startswith(query.prefix) or (query.end and entry.name >= query.end):
                return
            if query.glob is None or query.glob.fullmatch(entry.name):
                group = query.group(entry.name)
                if group and group != at.group:
                    at = at._replace(group=group)
                    yield group, at
                if not group or (query.trailing_delimiter and entry.name == group):
                    at = Cursor(entry.name, entry.generation, at.group)
                    yield entry, at
            at = Cursor(entry.name, entry.generation, at.group)
        if len(batch) < limit:
            return


def read_token(text: str) -> Cursor:
    try:
        name, generation, group = json.loads(base64.urlsafe_b64decode(text.encode("ascii")))
    except (ValueError, TypeError, RecursionError):
        name = generation = group = None
    if isinstance(name, str) and type(generation) is int and abs(generation) < 2**63 and isinstance(group, str):
        return Cursor(name, generation, group)
    raise invalid(f"Invalid page token. Received: {text!r}.")


def glob_pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of `matchGlob`: `*` and `?` stay within a folder, `**` does not; also `[a-z]` and `{this,that}`."""
    rules = (
        (r"\*\*/", "(?:.*/)?"), (r"\*\*", ".*"), (r"\*", "[^/]*"), (r"\?", "[^/]"), (r"\{", "(?:"), (r"\}", ")"),
        (r",", "|"), (r"\[[!^][^\]]+\]", None), (r"\[[^\]]+\]", None), (r"(?s:.)", None),
    )  # fmt: skip
    parts, position, depth = [], 0, 0
    while position < len(text):
        for pattern, meaning in rules:
            match = re.compile(pattern).match(text, position)
            if match is None or (depth == 0 and match[0] in (",", "}")):
                continue
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            parts.append(meaning if meaning is not None else _literal(match[0]))
            position = match.end()
            break
        else:
            parts.append(_literal(text[position]))
            position += 1
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        raise invalid(f"Invalid matchGlob. Received: {text!r}.") from None


def _literal(text: str) -> str:
    if len(text) == 1:
        return re.escape(text)
    inner = text[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    return f"[^{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
