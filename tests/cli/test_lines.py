"""Log lines on a terminal, in a pipe, and of several tasks at once."""

from __future__ import annotations

import re

import pytest
from support import FakeClock

import sdk
from sdk.backends.base import LogLine
from sdk.cli.lines import Printer, since_then, too_many

pytestmark = [pytest.mark.process]

BAR = [("start", "\n"), ("1/3", "\r"), ("2/3", "\r"), ("3/3", "\n"), ("half ", ""), ("whole", "\n"), ("last", "")]


class Hand(FakeClock):
    """A clock that goes so many seconds at each look."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(0.0)
        self.step_s = step_s

    def now(self) -> float:
        self.time += self.step_s
        return self.time

    monotonic = now


@pytest.mark.parametrize(
    ("prefixed", "terminal", "step_s", "expected"),
    [
        (False, False, 0, "start\n3/3\nhalf whole\nlast\n"),
        (False, True, 0, "start\n1/3\x1b[K\r2/3\x1b[K\r3/3\x1b[K\nhalf whole\nlast\n"),
        (True, True, 0, "t | start\nt | 3/3\nt | half \nt | whole\nt | last\n"),
        (True, False, 11, "t | start\nt | 2/3\nt | 3/3\nt | half \nt | whole\nt | last\n"),
    ],
)
def test_a_progress_bar_is_one_line_that_moves_only_where_it_can(capsys, prefixed, terminal, step_s, expected) -> None:
    printer = Printer(prefixed=prefixed, following=True, terminal=terminal, clock=Hand(step_s))
    for text, end in BAR:
        printer.show(LogLine(task="t", attempt=1, text=text, end=end))
    printer.close()
    assert capsys.readouterr().out == expected


def test_the_last_words_of_an_attempt_are_not_continued_by_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(prefixed=False, following=False, terminal=False, clock=Hand())
    for attempt in (1, 2):
        printer.show(LogLine(task="t", attempt=attempt, text=f"no end {attempt}", end=""))
    printer.close()
    assert capsys.readouterr().out == "no end 1\nno end 2\n"


def test_logs_of_a_run_are_printed_as_a_terminal_would_leave_them(write, here) -> None:
    write("train.py", r"import os; os.write(1, b'one\r\n\r10%\b\b\b\r100%\n\xff end')")
    run = sdk.submit("train.py")
    run.wait(60)
    followed = here("logs", run.url, "-f")
    assert here("logs", run.url).stdout == followed.stdout == "one\n100%\n\ufffd end\n"
    assert f"{run.id} is SUCCEEDED (done)." in followed.stderr


def line(text: str, time: float | None = None, end: str = "\n", task: str = "t") -> LogLine:
    return LogLine(task=task, attempt=1, text=text, end=end, time=time)


@pytest.mark.parametrize(
    ("wanted", "ends", "skipped"),
    [(None, "nn", 0), (1, "nnn", 2), (5, "nn", 0), (1, "nn-", 2), (1, "-nrn", 1), (0, "n", 1)],
)
def test_the_last_lines_are_counted_without_pieces_and_states_of_a_bar(wanted, ends, skipped: int) -> None:
    lines = [line("x", end={"n": "\n", "r": "\r", "-": ""}[end]) for end in ends]
    assert too_many(lines, wanted) == skipped


def test_since_takes_a_line_without_a_time_for_as_old_as_the_one_before_it() -> None:
    lines = [line("a", 1), line("b"), line("c", 5), line("d"), line("e", task="other")]
    assert [found.text for found in since_then(lines, 3)] == ["c", "d", "e"]
    assert len(list(since_then(lines, None))) == 5


def test_logs_can_be_cut_to_the_newest_and_say_when_each_line_was_there(write, here) -> None:
    write("train.py", "for i in range(100): print('line', i)")
    run = sdk.submit("train.py")
    run.wait(60)
    assert here("logs", "latest", "-n", "2").stdout == "line 98\nline 99\n"
    assert here("logs", "latest", "-n", "2", "-f").stdout == "line 98\nline 99\n"
    assert here("logs", "latest", "--since", "1h", "-n", "1").stdout == "line 99\n"
    assert here("logs", "latest", "--since", "0s").stdout == ""
    shown = here("logs", "latest", "--timestamps", "-n", "1").stdout
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d line 99\n", shown)
    refused = here("logs", "latest", "--since", "soon")
    assert (refused.code, "--since: must be a duration" in refused.stderr) == (2, True)
