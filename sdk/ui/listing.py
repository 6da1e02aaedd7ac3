"""The list of runs, filtered, sorted and in pages: pure functions of summaries."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import ids
from ..status import State
from ..text import clipped
from .rows import Row, RunInfo, at_risk_s, hardware, row

PER_PAGE = 200
_COMPARED = re.compile(r"(?P<metric>[^<>=]+)(?P<how>[<>])(?P<equal>=?)(?P<value>[-+.0-9e]+)")
_LONGEST = 300
# Labels to choose from, and columns for arguments.
_LABELS, _ARGUMENTS = 100, 4
# How the name of a column for an argument begins.
ARGUMENT = "arg."
STATES = (*(state.value for state in State), "UNREADABLE")
Listed = tuple[int, RunInfo]  # the number of its root, and the run


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """The filters and the order of a list.

    Args:
        search: words that each row must have in its id, state, reason, entry, arguments, hardware, backend, labels or problem;
            `loss<0.3` compares a metric or an argument.
        state: only runs in this state.
        label: only runs of this schedule or name, or with this label of their jobs: "weekly", "digits", "team=vision".
        sort: a column, with a dash for the reverse order; "arg.lr" for an argument.
        page: the number of the page, from 1.
    """

    search: str = ""
    state: str = ""
    label: str = ""
    sort: str = "-created"
    page: int = 1


@dataclass(frozen=True, kw_only=True)
class RunsPage:
    rows: list[tuple[int, Row]]
    matches: int
    total: int
    pages: int
    states: dict[str, int]
    labels: list[str]
    arguments: list[str]  # names of the arguments with a column
    request: ListRequest


def _status(read: Callable[[RunInfo, float], float | str | None]) -> Callable[[RunInfo, float], float | str | None]:
    return lambda info, now: read(info, now) if info.status else None


SORTS: dict[str, Callable[[RunInfo, float], float | str | None]] = {
    "run": lambda info, now: info.id,
    "state": lambda info, now: _state(info),
    "created": _status(lambda info, now: info.status.created if info.status else None),
    "took": lambda info, now: info.duration_s(now),
    "steps": lambda info, now: info.steps,
    "rate": lambda info, now: info.rate,
    "left": lambda info, now: info.left_s,
    "metric": lambda info, now: info.best,
    "spent": _status(lambda info, now: info.status.spent_usd if info.status else None),
    "risk": at_risk_s,
    "hardware": lambda info, now: hardware(info) or None,
    "backend": lambda info, now: info.place,
}


def request_of(query: Mapping[str, str]) -> ListRequest:
    """Return the filters in the parameters of a request; a value without a meaning is ignored."""
    sort = query.get("sort", "")
    page = query.get("page", "1")
    column = sort.removeprefix("-")
    return ListRequest(
        search=clipped(query.get("q", "").strip(), _LONGEST),
        state=query.get("state", ""),
        label=clipped(query.get("label", "").strip(), _LONGEST),
        sort=clipped(sort, _LONGEST) if column in SORTS or column.startswith(ARGUMENT) else "-created",
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
    )


def listing(runs: Sequence[Listed], about: ListRequest, now: float) -> RunsPage:
    """Return a page of the runs that fit."""
    tests = [_test(word) for word in about.search.split()]
    labelled = [run for run in runs if not about.label or about.label in _labels(run[1])]
    fitting = [run for run in labelled if all(test(run[1]) for test in tests)]
    in_state = [run for run in fitting if about.state in ("", _state(run[1]))]
    key = _key(about.sort.removeprefix("-"))
    keyed = [(key(run[1], now), run) for run in in_state]
    sortable = [(value, run) for value, run in keyed if value is not None]
    sortable.sort(key=lambda pair: (pair[0], pair[1][1].id), reverse=about.sort.startswith("-"))
    # A run without the value is last in both orders.
    ordered = [*(run for _, run in sortable), *(run for value, run in keyed if value is None)]
    pages = max(math.ceil(len(ordered) / PER_PAGE), 1)
    page = min(max(about.page, 1), pages)
    on_page = ordered[(page - 1) * PER_PAGE : page * PER_PAGE]
    rows = [(number, row(info, now)) for number, info in on_page]
    states, labels = Counter(_state(info) for _, info in fitting), Counter[str]()
    for _, info in runs:
        labels.update(_labels(info))
    return RunsPage(
        rows=rows,
        matches=len(in_state),
        total=len(runs),
        pages=pages,
        states={state: states[state] for state in STATES if states[state] or state == about.state},
        labels=sorted(name for name, _ in labels.most_common(_LABELS)),
        arguments=_columns([info for _, info in on_page]),
        request=replace(about, page=page),
    )


def _key(column: str) -> Callable[[RunInfo, float], Any]:
    if not column.startswith(ARGUMENT):
        return SORTS[column]
    name = column.removeprefix(ARGUMENT)

    def read(info: RunInfo, now: float) -> tuple[int, float, str] | None:
        text = info.args.get(name)
        if text is None:
            return None
        number = _number(text)
        return (1, 0.0, text) if number is None else (0, number, "")

    return read


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _columns(runs: Sequence[RunInfo]) -> list[str]:
    """Return the arguments that get a column: first those with several values, then by the number of runs that have them."""
    values: dict[str, list[str]] = {}
    for info in runs:
        for name, value in info.args.items():
            values.setdefault(name, []).append(value)
    by_use = sorted(values, key=lambda name: (len({*values[name]}) == 1, -len(values[name])))
    return by_use[:_ARGUMENTS]


def _state(info: RunInfo) -> str:
    return info.status.state.value if info.status else "UNREADABLE"


def _labels(info: RunInfo) -> list[str]:
    # All runs of a schedule or a sweep have one label, whatever their slots and numbers.
    name = ids.schedule_of(info.id) or ids.trial_of(info.id)[0] or ids.name_of(info.id)
    return [label for label in (name, *info.labels) if label]


def _test(word: str) -> Callable[[RunInfo], bool]:
    compared = _COMPARED.fullmatch(word)
    if compared is not None:
        try:
            limit, name = float(compared["value"]), compared["metric"]
            less, equal = compared["how"] == "<", bool(compared["equal"])
        except ValueError:
            compared = None
    if compared is None:
        lower = word.lower()
        return lambda info: any(lower in text.lower() for text in _texts(info))

    def within(info: RunInfo) -> bool:
        value = info.metrics.get(name, _number(info.args.get(name, "")))
        return value is not None and ((value < limit if less else value > limit) or (equal and value == limit))

    return within


def _texts(info: RunInfo) -> list[str]:
    status = info.status
    return [
        info.id,
        info.place,
        info.entry,
        hardware(info),
        *info.labels,
        *(f"{name}={value}" for name, value in info.args.items()),
        info.problem,
        info.metric,
        *([status.state.value, status.reason.value] if status else []),
    ]
