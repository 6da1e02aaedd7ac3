"""The list of runs that the page shows: searched, sorted, in pages."""

from __future__ import annotations

import pytest
from page_runs import HOSTILE, Elements

from sdk.status import Reason, State, Status
from sdk.ui import listing, pages
from sdk.ui.rows import RunInfo

NOW = 10_000.0


def info(name: str, state: State | None = State.SUCCEEDED, created: float = 0.0, **metrics: float | None) -> RunInfo:
    status = state and Status(state=state, reason=Reason.DONE, created=created, since=created + 60)
    problem = "" if status else "it is damaged"
    return RunInfo(
        id=name, url=f"/r/{name}", status=status, problem=problem, metrics=metrics, metric=next(iter(metrics), "")
    )


RUNS = [
    (0, info("digits-aaaaaa", created=10.0, loss=0.5)),
    (0, info("digits-bbbbbb", State.FAILED, created=30.0, loss=0.1)),
    (1, info("mnist-cccccc", State.RUNNING, created=20.0, acc=0.9)),
    (1, info("broken-dddddd", None)),
    (1, info("mnist-eeeeee", created=5.0, loss=None)),
]


def shown(**query: str) -> list[str]:
    return [row.id.partition("-")[2][0] for _, row in listing.listing(RUNS, listing.wanted(query), NOW).rows]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "bcaed"),
        ({"sort": "created"}, "eacbd"),
        ({"sort": "metric"}, "bacde"),
        ({"sort": "-metric"}, "cabde"),
        ({"sort": "run"}, "dabce"),
        ({"q": "DIGITS"}, "ba"),
        ({"q": "mnist running"}, "c"),
        ({"q": "damaged"}, "d"),
        ({"q": "loss<0.3"}, "b"),
        ({"q": "loss>=0.3 digits"}, "a"),
        ({"q": "loss<"}, ""),
        ({"state": "UNREADABLE"}, "d"),
        ({"state": "FAILED", "q": "digits"}, "b"),
        ({"sort": "nonsense", "page": "x"}, "bcaed"),
    ],
)
def test_a_list_is_searched_and_sorted_and_a_run_without_the_value_comes_last(
    query: dict[str, str], found: str
) -> None:
    assert sorted(shown(**query)[-2:]) == sorted(found[-2:])
    assert "".join(shown(**query))[:-2] == found[:-2]


def test_a_long_list_has_pages_and_a_page_beyond_the_last_one_is_the_last_one() -> None:
    many = [(0, info(f"r-{number:06}", created=float(number))) for number in range(2 * listing.PER_PAGE + 1)]
    found = listing.listing(many, listing.wanted({"page": "99"}), NOW)
    assert (found.found, found.pages, found.wanted.page) == (len(many), 3, 3)
    assert [row.id for _, row in found.rows] == ["r-000000"]


@pytest.mark.parametrize("at", range(len(HOSTILE)), ids=lambda at: f"hostile-{at}")
def test_what_a_hostile_run_holds_is_text_in_the_list(at: int) -> None:
    def made(text: str):
        status = Status(state=State.FAILED, reason=Reason.DONE, created=1.0)
        runs = [
            RunInfo(id=text, url=text, status=status, metrics={text or "m": 1.0}, metric=text or "m", place=text),
            RunInfo(id=text, url=text, status=None, problem=text),
        ]
        found = listing.listing([(0, run) for run in runs], listing.wanted({}), NOW)
        values = {
            "roots": [text],
            "problems": [text],
            "states": [],
            "sorts": [],
            "link": lambda **changed: "/",
            "refresh": 3,
        }
        return Elements(pages.render("list.html", found=found, **values)).found

    assert made(HOSTILE[at]) == made("plain")
