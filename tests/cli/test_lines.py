"""Log lines on a terminal, in a pipe, and of several tasks at once."""

from __future__ import annotations

import pytest

from sdk.backends.base import LogLine
from sdk.cli.lines import Printer

BAR = [("start", "\n"), ("1/3", "\r"), ("2/3", "\r"), ("3/3", "\n"), ("half ", ""), ("whole", "\n"), ("last", "")]


class Hand:
    """A clock that goes so many seconds at each look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.time, self.step_s = 0.0, step_s

    def now(self) -> float:
        self.time += self.step_s
        return self.time

    monotonic = now

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.mark.parametrize(
    ("prefixed", "terminal", "step_s", "expected"),
    [
        (False, False, 0, "start\n3/3\nhalf whole\nlast\n"),
        (False, True, 0, "start\n1/3\x1b[K\r2/3\x1b[K\r3/3\x1b[K\nhalf whole\nlast\n"),
        (True, True, 0, "t | start\nt | 3/3\nt | half \nt | whole\nt | last\n"),
        (True, False, 11, "t | start\nt | 2/3\nt | 3/3\nt | half \nt | whole\nt | last\n"),
    ],
)
def test_a_progress_bar_is_one_line_that_moves_only_where_it_can(
    capsys: pytest.CaptureFixture[str], prefixed: bool, terminal: bool, step_s: float, expected: str
) -> None:
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
    import sdk

    write("train.py", r"import os; os.write(1, b'one\r\n\r10%\b\b\b\r100%\n\xff end')")
    run = sdk.submit("train.py")
    run.wait(60)
    assert here("logs", run.url).stdout == "one\n100%\n\ufffd end\n"
    followed = here("logs", run.url, "-f")
    assert followed.stdout == "one\n100%\n\ufffd end\n"
    assert f"{run.id} is SUCCEEDED (done)." in followed.stderr
