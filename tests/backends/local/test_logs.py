"""Logs as they are read: every line once, in order, whatever the program prints and whatever happens to the files."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeClock, finished_run

import sdk
from sdk.backends.base import LogLine
from sdk.process import log_tail
from sdk.process.log_index import LogIndexWriter
from sdk.process.log_tail import last_lines

pytestmark = [pytest.mark.process]

pieces = st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"\r", b"\r\n", b"\b\b\r", "é━".encode(), b"\0\xff"]))


def texts(found: Iterable[LogLine], task: str | None = None) -> list[str]:
    """The output of the program itself: podlift's own lines start with its name."""
    wanted = [line for line in found if task in (None, line.task)]
    return [line.text for line in wanted if not line.text.startswith("podlift: ")]


def cut(chunks: list[bytes]) -> list[log_tail.Line]:
    splitter = log_tail.LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run that is over; a test may write its log files again."""
    run = Path(finished_run(tmp_path).url)
    for log in (run / "attempts" / "0001" / "logs").iterdir():
        log.write_bytes(b"")
    return run


def log_of(run: Path | str, task: str = "chief-0", attempt: int = 1) -> Path:
    path = Path(run, "attempts", f"{attempt:04d}", "logs", f"{task}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@given(pieces, st.booleans())
def test_lines_do_not_depend_on_how_the_bytes_came_in(chunks: list[bytes], short: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_tail, "MAX_LINE_BYTES", 5 if short else 1 << 20)
        whole = b"".join(chunks)
        found = cut(chunks)
        assert found == cut([whole]) == cut([bytes([byte]) for byte in whole])
        if not short and b"\r" not in whole:
            assert "".join(text + end for text, end in found) == whole.decode("utf-8", "replace")
        assert all(len(text.encode()) <= 5 * 3 for text, _ in found if short)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"a\nb\r\nc\r\r\nd", [("a", "\n"), ("b", "\n"), ("c", "\n"), ("d", "")]),
        (b"\r1/2\b\b\b\r2/2\n", [("1/2", "\r"), ("2/2", "\n")]),
        (b"50%\r100%\r", [("50%", "\r"), ("100%", "")]),
        (b"\xff\x00\n\xe9\n\xe2\x94\n", [("\ufffd\0", "\n"), ("\ufffd", "\n"), ("\ufffd", "\n")]),
        (b"\n\n", [("", "\n"), ("", "\n")]),
        (b"", []),
        (b"\r", []),
    ],
)
def test_output_is_cut_into_lines_and_overprinted_text_is_marked(printed: bytes, expected: list[log_tail.Line]) -> None:
    assert cut([printed]) == expected


def test_a_line_that_never_ends_comes_in_pieces_without_cutting_a_character(old: Path) -> None:
    text = "━" * 1_000_000
    log_of(old).write_text(f"{text}\nnext\n", encoding="utf-8")
    found = list(sdk.attach(old).logs(task="chief-0"))
    assert "".join(line.text + line.end for line in found) == f"{text}\nnext\n"
    assert [line.end for line in found] == ["", "", "\n", "\n"]
    assert max(len(line.text.encode()) for line in found) <= 1 << 20


def test_followed_lines_equal_the_lines_read_afterwards(submit, write) -> None:
    run = submit(r"""
        import os, time
        for i in range(8):
            os.write(1, b"whole %d\nhalf" % i)
            time.sleep(0.03)
            os.write(1, b" and half\r\n\xff\0 \xe2\x94")
            time.sleep(0.03)
            os.write(1, b"\x81\n" + b"".join(b"\b" * 9 + b"\r%d/9" % n for n in range(9)) + b"\nno end")
            os.write(2, b" here\n")
        """, workers=2)  # fmt: skip
    with pytest.raises(sdk.InputError, match=r"no task 'worker-9'. Did you mean 'worker-0'\?"):
        run.logs(task="worker-9")
    followed = list(run.logs(follow=True))
    afterwards = list(run.logs())
    assert run.status().state is sdk.State.SUCCEEDED
    raw = Path(run.plan.paths.log(1, "chief-0")).read_bytes()
    assert b"whole 0\nhalf and half\r\n\xff\0 \xe2\x94\x81\n" in raw
    for task in run.plan.tasks:
        assert texts(followed, task) == texts(afterwards, task)
    stays = [line for line in afterwards if line.end != "\r"]
    once = ["whole {}", "half and half", "\ufffd\0 ━", "8/9", "no end here"]
    assert texts(stays, "worker-0") == [text.format(i) for i in range(8) for text in once]
    assert len(afterwards) - len(stays) == 2 * 8 * 8, "overprinted text is there too, and marked"


def test_lines_of_several_tasks_come_in_the_order_in_which_they_were_written(old: Path) -> None:
    run, clock = sdk.attach(old), FakeClock()
    with closing(LogIndexWriter(run.plan.paths, 1, run.plan.tasks, clock)) as index:
        for number in range(6):
            with log_of(old, run.plan.tasks[number % 2]).open("a") as log:
                log.write(f"{number}\nalso {number}\n")
            clock.sleep(0.2)
            index.update()
        with log_of(old, "chief-0").open("a") as log:
            log.write("6\n")
        clock.sleep(0.05)
    found = list(run.logs())
    assert [line.text for line in found] == [t for n in range(6) for t in (str(n), f"also {n}")] + ["6"]
    assert [line.time for line in found][::2] == pytest.approx([1000.2 + n / 5 for n in range(6)] + [1001.25])
    assert [line.text for line in run.logs(task="worker-0")] == ["1", "also 1", "3", "also 3", "5", "also 5"]
    assert [line.text for line in run.logs(follow=True)] == [line.text for line in found]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff\n5\n[1]\n[1, 2]\n", b'[1, {"chief-0": "x"}]\n[1, {"chief-0": 9999}]']
)
def test_without_times_or_with_damaged_ones_no_line_is_lost(old: Path, damage: bytes) -> None:
    log_of(old, "chief-0").write_text("a\nb\n")
    log_of(old, "worker-0").write_text("c\n")
    log_of(old).with_name("times.jsonl").write_bytes(damage)
    assert [line.text for line in sdk.attach(old).logs()] == ["a", "b", "c"]


def test_attempts_come_one_after_the_other(old: Path) -> None:
    for attempt in (2, 10):
        log_of(old, "worker-0", attempt).write_text(f"worker {attempt}\n")
        log_of(old, "chief-0", attempt).write_text(f"chief {attempt}\nno end")
    log_of(old).write_text("chief 1")
    run = sdk.attach(old)
    expected = ["chief 1", "chief 2", "no end", "worker 2", "chief 10", "no end", "worker 10"]
    assert [line.text for line in run.logs()] == expected
    assert [line.text for line in run.logs(follow=True)] == expected
    assert [line.text for line in run.logs(attempt=2, task="worker-0", follow=True)] == ["worker 2"]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"", ""),
        (b"a\nb\nc\n", "b\nc"),
        (b"a\n" + b"\b" * 9 + b"\r1/2" + b"\b" * 9 + b"\r2/2\nno end", "2/2\nno end"),
        (b"begins before " * 20_000 + b"\nlast", "last"),
    ],
)
def test_the_last_lines_equal_the_lines_of_a_terminal(old: Path, printed: bytes, expected: str) -> None:
    log_of(old).write_bytes(printed)
    assert last_lines(str(log_of(old)), 2) == expected
    assert last_lines(str(old / "nothing"), 2) == last_lines(str(old), 2) == ""


@pytest.mark.full
def test_a_log_of_100_mb_is_read_in_little_memory(old: Path) -> None:
    count = 1_000_000
    with log_of(old, "chief-0").open("wb") as file:
        file.writelines(b"%019d %s\n" % (number, b"x" * 59) for number in range(count))
        file.write(b"y" * 4_000_000)
    with log_of(old, "worker-0").open("wb") as file:
        file.writelines(b"\b" * 80 + b"\r%19d" % number for number in range(count // 5))
    chief = worker = 0
    tracemalloc.start()
    try:
        for line in sdk.attach(old).logs(follow=True):
            if line.end == "\n":
                assert int(line.text.split()[0]) == chief
            chief += line.end == "\n"
            worker += line.task == "worker-0"
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()
    assert (chief, worker) == (count, count // 5)
