"""Parts of a log, by their place in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk.process import log_pages

pytestmark = pytest.mark.process


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "chief-0.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(10)))
    return path


def test_pages_before_a_place_meet_and_hold_every_line(log: Path) -> None:
    offset, lines = None, list[str]()
    while offset != 0:
        page = log_pages.before(str(log), 3, offset)
        lines[:0], offset = page.lines, page.begin
    assert lines == [f"line {number}" for number in range(10)]


def test_new_lines_come_once_and_an_unfinished_line_when_it_is_whole(log: Path) -> None:
    first = log_pages.before(str(log), 100)
    assert log_pages.after(str(log), 100, first.end).lines == []
    with log.open("a") as file:
        file.write("new\nunfini")
    page = log_pages.after(str(log), 100, first.end)
    assert (page.lines, page.skipped) == (["new"], False)
    with log.open("a") as file:
        file.write("shed\n")
    assert log_pages.after(str(log), 100, page.end).lines == ["unfinished"]


def test_a_log_that_grew_fast_or_began_anew_shows_its_end_and_says_so(log: Path) -> None:
    last = ["line 7", "line 8", "line 9"]
    assert log_pages.after(str(log), 3, 0) == log_pages.LogPage(lines=last, begin=49, end=70, skipped=True)
    log.write_text("anew\n")
    page = log_pages.after(str(log), 3, 70)
    assert (page.lines, page.skipped) == (["anew"], True)


@pytest.mark.parametrize("chunk", [18, 25, 100, 1 << 20])
def test_the_last_lines_with_a_word_are_found_across_the_edges_of_reads(log: Path, chunk: int, monkeypatch) -> None:
    monkeypatch.setattr(log_pages, "_SEARCH_BYTES", chunk)
    with log.open("a") as file:
        file.write("LINE ten\nother\nunterminated line")
    page = log_pages.matching(str(log), "line", 4)
    assert page.lines == ["line 8", "line 9", "LINE ten", "unterminated line"]
    assert page.skipped
    assert log_pages.matching(str(log), "line 0", 4).lines == ["line 0"]
    assert log_pages.matching(str(log), "nothing", 4).lines == []
    if chunk > len("unterminated line") * 2:
        # The beginning of a line that is much longer than a read is searched too.
        log.write_text("needle " + "x" * 1000 + "\nlast\n")
        assert [line[:6] for line in log_pages.matching(str(log), "needle", 5).lines] == ["needle"]


def test_a_log_page_shows_a_long_line_partly_a_bars_last_step_and_an_empty_log(log: Path) -> None:
    log.write_bytes(b"x" * 600_000 + b"\n" + b"1/3\r2/3\r3/3\n")
    assert log_pages.before(str(log), 5).lines == ["3/3"]
    log.write_bytes(b"x" * 600_000)
    assert len(log_pages.before(str(log), 5).lines[0]) < 600_000
    log.write_bytes(b"")
    assert log_pages.before(str(log), 5) == log_pages.LogPage(lines=[])
    assert log_pages.matching(str(log), "x", 5).lines == []
