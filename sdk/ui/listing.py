"""The list of runs, filtered, sorted and in pages: pure functions of summaries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..text import clipped
from .rows import Row, RunInfo, row

PER_PAGE = 200
_COMPARED = re.compile(r"(?P<metric>[^<>=]+)(?P<how>[<>])=?(?P<value>[-+.0-9e]+)")
_LONGEST = 300
Listed = tuple[int, RunInfo]  # the number of its root, and the run


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """What a list should show.

    Args:
        search: words that each row must have in its id, state, reason, backend or problem; `loss<0.3` compares a metric.
        state: only runs in this state.
        sort: a column, with a dash for the reverse order.
        page: the number of the page, from 1.
    """

    search: str = ""
    state: str = ""
    sort: str = "-created"
    page: int = 1


@dataclass(frozen=True, kw_only=True)
class RunsPage:
    rows: list[tuple[int, Row]]
    found: int
    total: int
    pages: int
    wanted: ListRequest


def _status(read: Callable[[RunInfo, float], float | str | None]) -> Callable[[RunInfo, float], float | str | None]:
    return lambda info, now: read(info, now) if info.status else None


SORTS: dict[str, Callable[[RunInfo, float], float | str | None]] = {
    "run": lambda info, now: info.id,
    "state": lambda info, now: info.status.state.value if info.status else "UNREADABLE",
    "created": _status(lambda info, now: info.status.created if info.status else None),
    "took": lambda info, now: info.duration_s(now),
    "metric": lambda info, now: info.metrics.get(info.metric),
    "spent": _status(lambda info, now: info.status.spent_usd if info.status else None),
    "backend": lambda info, now: info.place,
}


def wanted(query: Mapping[str, str]) -> ListRequest:
    """Return what the parameters of a request ask for; what makes no sense is ignored."""
    sort = query.get("sort", "")
    page = query.get("page", "1")
    return ListRequest(
        search=clipped(query.get("q", "").strip(), _LONGEST),
        state=query.get("state", ""),
        sort=sort if sort.removeprefix("-") in SORTS else "-created",
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
    )


def listing(runs: Sequence[Listed], about: ListRequest, now: float) -> RunsPage:
    """Return a page of the runs that fit."""
    tests = [_test(word) for word in about.search.split()]
    found = [each for each in runs if _fits(each[1], about.state) and all(test(each[1]) for test in tests)]
    key = SORTS[about.sort.removeprefix("-")]
    known = [(value, each) for each in found if (value := key(each[1], now)) is not None]
    unknown = [each for each in found if key(each[1], now) is None]
    known.sort(key=lambda pair: (pair[0], pair[1][1].id), reverse=about.sort.startswith("-"))
    # A run without the value is last in both orders.
    ordered = [*(each for _, each in known), *unknown]
    pages = max(math.ceil(len(ordered) / PER_PAGE), 1)
    page = min(max(about.page, 1), pages)
    shown = ordered[(page - 1) * PER_PAGE : page * PER_PAGE]
    rows = [(number, row(info, now)) for number, info in shown]
    return RunsPage(rows=rows, found=len(found), total=len(runs), pages=pages, wanted=replace(about, page=page))


def _fits(info: RunInfo, state: str) -> bool:
    return not state or state == (info.status.state.value if info.status else "UNREADABLE")


def _test(word: str) -> Callable[[RunInfo], bool]:
    compared = _COMPARED.fullmatch(word)
    if compared is not None:
        try:
            limit, name, less = float(compared["value"]), compared["metric"], compared["how"] == "<"
        except ValueError:
            compared = None
    if compared is None:
        lower = word.lower()
        return lambda info: any(lower in text.lower() for text in _texts(info))

    def within(info: RunInfo) -> bool:
        value = info.metrics.get(name)
        return value is not None and (value < limit if less else value > limit)

    return within


def _texts(info: RunInfo) -> list[str]:
    status = info.status
    return [
        info.id,
        info.place,
        info.problem,
        info.metric,
        *([status.state.value, status.reason.value] if status else []),
    ]
