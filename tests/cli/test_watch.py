"""The view of a person on a terminal, and the lines of logs there, in a pipe, and of several tasks at once."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, holds

import sdk
from sdk.backends.base import LogLine
from sdk.cli import live, screen, watch
from sdk.cli.lines import Printer, since_then, too_many
from sdk.cli.pace import Update
from sdk.clock import SystemClock
from sdk.records.timeline import Moment

STATUS = sdk.Status(state=sdk.State.RUNNING, reason=sdk.Reason.TRAINING, created=1.0, attempts=1)


def test_a_metric_may_have_any_name(drawn) -> None:
    record = {"attempt": 1, "epoch": 1, "step": None, "metrics": {"[/x] loss": 1.0, "[red]acc": 0.5, ":smile:": 2.0}}
    shown = drawn(100, Update(status=STATUS, records=[record]), run="[/b]-aaaaaa")[-1]
    holds(shown, "    :smile:  [/x] loss   [red]acc\n", "2.0000     1.0000     0.5000\n", "[/b]-aaaaaa")


def test_metrics_are_a_table_that_grows_and_has_its_head_again_with_a_new_name() -> None:
    table = live.MetricTable(80)
    first = {"attempt": 1, "epoch": 1, "step": 8, "metrics": {"loss": 18.4575, "mae": 4.221}}
    assert table.lines(first) == ["epoch     step       loss        mae", "    1        8    18.4575     4.2210"]
    assert table.lines({**first, "epoch": 2, "metrics": {"loss": 1.0}}) == ["    2        8     1.0000           "]
    head, more = table.lines({**first, "epoch": None, "step": None, "metrics": {"learning_rate": 1e-5, "loss": None}})
    assert head == "epoch     step       loss        mae  learning_rate"
    assert more == "                      nan                     1e-05"
    narrow = live.MetricTable(40)
    assert [len(line) < 40 for line in narrow.lines({**first, "metrics": dict.fromkeys("abcdef", 1.0)})] == [True, True]
    assert narrow.lines({**first, "metrics": {"g": 1.0}})[0].endswith("          a +6")


@pytest.mark.parametrize(
    ("variables", "coloured", "moving"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "CI": "1"}, True, False),
        ({"TERM": "xterm", "CI": "false"}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
    ],
)
def test_colours_and_lines_that_move_are_for_terminals_that_want_them(variables, coloured: bool, moving: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, there in ((Terminal(), True), (io.StringIO(), False), (None, False)):
        assert screen.coloured(stream, variables) is (coloured and there)
        assert screen.moving(stream, variables) is (moving and there)
    assert screen.width(io.StringIO(), {}) is None
    assert screen.width(io.StringIO(), {"COLUMNS": "90"}) == 90, "set by the user, also for a pipe"


def test_lines_with_labels_go_on_below_their_beginning_and_obey_no_escape_codes() -> None:
    said = screen.facts([("run", "a"), ("goodput", "word " * 20), ("error", "\x1b[2J gone")], 80)
    lines = said.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line[:11].strip() for line in lines] == ["run", "goodput", "", "error"]
    assert "\x1b" not in said
    assert screen.facts([("goodput", "word " * 30)], None).count("\n") == 0


@pytest.mark.parametrize(
    ("terminal", "no_color", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_a_state_has_its_colour_on_a_terminal_alone(terminal, no_color: str, coloured, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(screen, "is_terminal", lambda stream: terminal)
    assert ("\x1b[36m" in screen.facts([("state", "RUNNING (training)")], 80, sdk.State.RUNNING)) is coloured
    screen.table(["id", "state"], [["a-1", "RUNNING"]], states=[sdk.State.RUNNING])
    assert ("\x1b[" in capsys.readouterr().out) is coloured


def test_metrics_of_a_further_attempt_have_a_head(drawn, capsys: pytest.CaptureFixture[str]) -> None:
    run = type("", (), {"id": "digits-aaaaaa"})
    records = [{"attempt": n, "epoch": 5, "step": 500, "metrics": {"loss": 1.0}} for n in (1, 2, 2)]
    again = replace(STATUS, attempts=2, continued_step=480)
    plain = watch.Plain(SystemClock())
    plain.show(run, Update(status=STATUS, records=records[:1]))
    plain.show(run, Update(status=again, records=records[1:]))
    said = capsys.readouterr().err.splitlines()
    metrics = "digits-aaaaaa epoch 5 step 500 loss: 1.0000"
    assert said[1:] == [metrics, "digits-aaaaaa attempt 2 continues at step 480:", metrics, metrics]
    lost = "The machine of chief-0 was taken away (preempted)."
    watch.Plain(SystemClock()).show(run, Update(status=again, records=records[1:], machine_loss=lost))
    assert f"digits-aaaaaa {lost} Attempt 2 continues at step 480:" in capsys.readouterr().err.splitlines()
    shown = drawn(100, Update(status=replace(again, continued_step=0), records=records))[-1]
    head = shown.index("no checkpoint was saved: attempt 2 starts from the beginning:")
    assert shown.index("    5      500     1.0000") < head


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ended: the machine of ps-0 was taken away (preempted)", "The machine of ps-0 was taken away (preempted)."),
        ("The machine of workerpool0-0 is being taken away.", "The machine of workerpool0-0 is being taken away."),
        ("ended (killed)", ""),
    ],
)
def test_a_preemption_is_said_in_words_at_the_attempt_that_follows(text: str, said: str) -> None:
    told = [Moment(time=9.0, source="attempt 1", text=text, attempt=1)]
    run: Any = type("", (), {"timeline": lambda self: told})()
    records: Any = [{"attempt": number} for number in (1, 2)]
    assert watch._machine_loss(run, records, 1) == said
    assert watch._machine_loss(run, records, 2) == watch._machine_loss(run, records[:1], 0) == "", "said once"
    assert watch._machine_loss(run, [], 2) == "", "during an outage the records cannot be read"


def test_a_root_may_have_any_name(tmp_path: Path, here, on_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "[" / "b]" / "runs" / "damaged").mkdir(parents=True)
    monkeypatch.setenv("COLUMNS", "300")
    on_terminal()
    shown = here("list", "--root", str(tmp_path / "[" / "b]"))
    assert (shown.code, "[/b]" in shown.stdout) == (0, True)


BAR = [("start", "\n"), ("1/3", "\r"), ("2/3", "\r"), ("3/3", "\n"), ("half ", ""), ("whole", "\n"), ("last", "")]


class Hand(FakeClock):
    """A clock that each look moves by some seconds."""

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


@pytest.mark.process
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


@pytest.mark.process
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
