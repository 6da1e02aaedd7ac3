"""The last output of a task in the bucket: how much, how often, and never a secret."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support import LIMIT_S, FakeClock, until

from sdk.errors import AccessError, StoreError
from sdk.execution import tail
from sdk.execution.output import FolderOutput
from sdk.execution.tail import TAIL_BYTES, CopiedOutput, TailUploader
from sdk.job.layout import RunPaths
from sdk.runtime import secret_values
from sdk.storage.posix_store import PosixStore

from .cloud import Cloud, lose_answers

KEY = RunPaths("").tail(1, "chief-0")
LINE = b"%07d " + b"x" * 91 + b"\n"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(str(tmp_path / "run"))


@pytest.fixture
def kept(store: PosixStore, clock: FakeClock) -> TailUploader:
    return TailUploader(store, KEY, clock, ())


def stored(store: PosixStore) -> list[bytes]:
    return [bytes(store.get(each.key)) for each in store.list(f"{KEY}/")]


def test_complete_lines_are_uploaded_after_five_seconds_and_then_every_thirty(store, clock, kept, monkeypatch) -> None:
    for second in range(130):
        kept.buffer.add(f"line {second}\npart of ".encode())
        kept.push_if_due()
        clock.time += 1
    found = stored(store)
    assert len(found) == 5, "after 5, 35, 65, 95 and 125 s"
    assert found[0] == b"line 0\n" + b"".join(b"part of line %d\n" % number for number in range(1, 6))
    assert all(part.endswith(b"\n") for part in found)
    limits: list[float] = []
    monkeypatch.setattr(store, "set_deadline", limits.append)
    kept.finish(8.0)
    assert limits == [8.0], "the last upload ends in time"
    lines = b"".join(b"part of line %d\n" % number for number in range(1, 130))
    assert b"".join(stored(store)) == b"line 0\n" + lines + b"part of "
    offsets = [int(each.key.rpartition("/")[2].partition(".")[0]) for each in store.list(f"{KEY}/")]
    assert offsets == [sum(map(len, stored(store)[:number])) for number in range(6)]


def test_of_much_output_the_end_is_kept_and_the_rate_of_uploads_falls(store, clock, kept) -> None:
    written = uploaded = uploads = 0
    for _ in range(600):
        kept.buffer.add(b"".join(LINE % number for number in range(written, written + 1000)))
        written += 1000
        before = {each.key for each in store.list(f"{KEY}/")}
        kept.push_if_due()
        new = [each for each in store.list(f"{KEY}/") if each.key not in before]
        uploads, uploaded = uploads + bool(new), uploaded + sum(each.size for each in new)
        clock.time += 1
    assert uploads == 7, "60 MB in ten minutes: every 30 s at first, then every 10 MB / 64 KiB/s = 153 s"
    assert uploaded < 600 * 64 * 1024 + TAIL_BYTES
    notes = [line for part in stored(store) for line in part.splitlines() if line.startswith(b"podlift: ")]
    assert notes[-1].endswith(b" MB of output before this line are not kept"), notes
    kept.finish(1.0)
    found = stored(store)
    assert TAIL_BYTES - 200 <= sum(map(len, found)) <= TAIL_BYTES + 2_000_000
    assert found[-1].endswith(LINE % (written - 1))
    lines = b"".join(found).splitlines(keepends=True)
    first = next(line for line in lines if not line.startswith(b"podlift: "))
    assert first in (LINE % number for number in range(written)), "it begins with a whole line"


def test_a_bucket_in_which_nothing_can_be_removed_does_not_fill_up(store, kept, monkeypatch) -> None:
    def refuse(key: str, **more: object) -> None:
        raise AccessError("403")

    monkeypatch.setattr(store, "delete", refuse)
    for _ in range(10):
        kept.buffer.add(LINE % 1 * 90_000)
        with suppress(AccessError):
            kept.push()
    assert sum(map(len, stored(store))) <= 2 * TAIL_BYTES


def test_an_upload_with_a_lost_answer_is_not_another_one(store: PosixStore, kept: TailUploader, monkeypatch) -> None:
    lose_answers(monkeypatch, store)
    kept.buffer.add(b"one\n")
    kept.push()
    assert stored(store) == [b"one\n"]


def test_output_that_could_not_be_uploaded_is_uploaded_later_as_far_as_it_is_kept(store, kept, monkeypatch) -> None:
    put_new, failures, sizes = store.put_new, iter(range(15)), []

    def fail(key: str, data: list[bytes]) -> None:
        if next(failures, None) is not None:
            raise StoreError("no network")
        sizes.append(sum(map(len, data)))
        put_new(key, data)

    monkeypatch.setattr(store, "put_new", fail)
    for number in range(20):
        kept.buffer.add(LINE % number * 10_000)
        with suppress(StoreError):
            kept.push()
    lines = b"".join(stored(store)).splitlines(keepends=True)
    assert lines == [LINE % number for number in range(20 - len(lines) // 10_000, 20) for _ in range(10_000)]
    assert len(lines) >= TAIL_BYTES // 100
    # No more is waiting than is kept, and the rest of the output comes after it.
    assert TAIL_BYTES <= sum(sizes) <= TAIL_BYTES + 6 * 1_000_000


def test_values_that_are_stored_nowhere_are_not_stored_here_either(store: PosixStore, clock: FakeClock) -> None:
    token = "0123456789abcdef" * 2
    environ = {"KEY": "s3cr3t-value", "LONG": "s3cr3t-value-2", "TWO": "first half\nother half", "N": "1"}
    environ |= {"BYTES": "not UTF-8 \udcff", "MINE": "visible", "PODLIFT_EMULATOR": f"http://127.0.0.1:1/{token}"}
    copied = ["KEY", "LONG", "TWO", "BYTES", "N", "ABSENT"]
    kept = TailUploader(store, KEY, clock, secret_values.words(environ, copied))
    pieces = b"s3cr", b"3t-value and s3cr3t-value-2; first half\n", b"other half, 1, not UTF-8 \xff, visible, "
    for piece in (*pieces, token.encode()):
        kept.buffer.add(piece)
        kept.push()
    kept.finish(1.0)
    assert b"".join(stored(store)) == b"*** and ***; ***\n***, 1, ***, visible, ***"


def test_a_line_without_an_end_is_cut_at_a_mebibyte_and_a_progress_bar_ends_lines(store, kept) -> None:
    kept.buffer.add(b"x" * 1_000_000)
    kept.push()
    assert stored(store) == []
    kept.buffer.add(b"x" * 100_000)
    kept.push()
    assert list(map(len, stored(store))) == [1_100_000]
    kept.buffer.add(b"1/10\r2/10")
    kept.push()
    assert stored(store)[-1] == b"1/10\r"


def test_output_dropped_before_an_upload_is_reported_by_its_size(store: PosixStore, kept: TailUploader) -> None:
    for number in range(13):
        kept.buffer.add(b"%x" % number * 450_000 + b"\n" + b"%x" % number * 450_000)
    kept.push()
    note, first = stored(store)[0].splitlines()[:2]
    assert note == b"podlift: 1.4 MB of output before this line are not kept", "one piece, and half of the next"
    assert first == b"1" * 450_000 + b"2" * 450_000, "a whole line"


def test_a_container_in_the_place_of_another_one_goes_on_where_its_output_ended(store, clock, kept) -> None:
    for lines in (b"one\ntwo\n", b"three\n"):
        kept.buffer.add(lines)
        kept.push()
    store.delete(RunPaths.part(KEY, 0))
    after = TailUploader(store, KEY, clock, (), continued=True)
    after.buffer.add(b"four\n")
    after.push()
    assert [stat.key for stat in store.list(f"{KEY}/")] == [RunPaths.part(KEY, 8), RunPaths.part(KEY, 14)]


class Copied:
    """The output of a task, and the output of its container, one write after the other."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: str, secrets: Sequence[str] = ()) -> None:
        self.shown: list[bytes] = []
        self.kept: list[bytes] = []
        self.output = CopiedOutput(self.kept.append, folder, secrets)
        self.task, other = (os.open(path, os.O_WRONLY) for path in self.output.paths)
        task_writes, self.takes = os.write, self.take
        patch.setattr(
            tail.os, "write", lambda to, data: task_writes(to, data) if to == self.task else self.takes(bytes(data))
        )
        self.output.start()
        os.close(other)

    def take(self, data: bytes) -> int:
        self.shown.append(data)
        return len(data)

    def prints(self, data: bytes) -> None:
        before = self.output.count
        os.write(self.task, data)
        until(lambda: self.output.count == before + len(data))

    def ends(self) -> None:
        os.close(self.task)
        self.output.finish(60.0)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Copied]]:
    with monkeypatch.context() as patch:
        yield partial(Copied, patch, str(tmp_path))


def test_the_stdout_and_the_stderr_of_a_task_come_out_of_those_of_its_container(capfd, tmp_path: Path) -> None:
    output = CopiedOutput(lambda data: None, str(tmp_path))
    ends = [os.open(path, os.O_WRONLY) for path in output.paths]
    output.start()
    for end, data in zip(ends, (b"a result\n", b"an error\n"), strict=True):
        os.write(end, data)
        os.close(end)
    output.finish(LIMIT_S)
    assert capfd.readouterr() == ("a result\n", "an error\n")


@pytest.mark.parametrize("broken", [False, True])
def test_a_tasks_output_is_copied_to_the_last_byte_and_needs_no_reader(copied, monkeypatch, broken) -> None:
    output = copied()

    def takes(data: bytes) -> int:
        if broken:
            raise BrokenPipeError
        # A pipe takes as much as fits into it.
        return output.take(data[:3])

    output.takes = takes
    for piece in (b"one\ntw", b"o\n", b"the rest"):
        os.write(output.task, piece)
    os.close(output.task)
    with monkeypatch.context() as patch:
        # Less than a second, which never passes.
        patch.setattr(tail.time, "monotonic", lambda: 0.0)
        output.output.finish(0.9)
    assert b"".join(output.kept) == b"one\ntwo\nthe rest"
    assert b"".join(output.shown) == (b"" if broken else b"one\ntwo\nthe rest")


def test_the_last_lines_of_a_task_are_known_as_a_terminal_would_show_them(copied) -> None:
    output = copied()
    for piece in (b"1/9\r2/9\r\n", *(b"line %d\n" % number for number in range(19))):
        output.prints(piece)
    assert list(output.output.last_lines) == ["2/9", *(f"line {number}" for number in range(19))]
    output.prints(b"x" * 5000 + b"\n")
    assert output.output.last_lines[0] == "line 0"
    assert len(output.output.last_lines[-1]) < 1000
    output.ends()


def test_a_secret_is_hidden_however_a_task_writes_it(copied) -> None:
    output = copied(["s3cr3t-value-2", "s3cr3t-value", "first half", "other half"])
    for piece in (b"s3cr", b"3t-value and s3cr3t-value-2; first half\n", b"oth", b"er half, visible"):
        output.prints(piece)
    output.ends()
    assert b"".join(output.shown) == b"".join(output.kept) == b"*** and ***; ***\n***, visible"


def test_a_message_of_the_agent_never_stands_within_a_line_of_the_task(copied) -> None:
    output = copied()
    for piece in (b"begins", b" ", b"worker-0"):
        output.prints(piece)
    assert output.shown == []
    output.prints(b"\n")
    lines = b"".join(LINE % number for number in range(200))
    output.prints(lines)
    output.ends()
    assert output.shown[0] == b"begins worker-0\n"
    assert b"".join(output.shown[1:]) == lines
    # A longer write may be divided.
    assert all(each.endswith(b"\n") and len(each) <= select.PIPE_BUF for each in output.shown)


@pytest.mark.parametrize("reads", [True, False])
def test_the_rest_is_copied_as_long_as_the_containers_output_has_a_slow_reader(copied, monkeypatch, reads) -> None:
    output = copied()
    may, taken = threading.Semaphore(0), threading.Semaphore(0)

    def takes(data: bytes) -> int:
        assert may.acquire(timeout=LIMIT_S)
        taken.release()
        return output.take(data[:1])

    def join(thread: threading.Thread, timeout: float) -> None:
        """Let the reader take one byte in this time, or none."""
        if reads:
            may.release()
        while reads and thread.is_alive() and not taken.acquire(timeout=0.01):
            pass

    output.takes = takes
    os.write(output.task, b"the last words\n")
    os.close(output.task)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", join)
        output.output.finish(LIMIT_S)
    assert b"".join(output.shown) == (b"the last words\n" if reads else b"")
    for _ in range(20):
        may.release()
    output.output.finish(LIMIT_S)


@pytest.mark.parametrize("secrets", [{}, {"KEY": "s3cr3t-value"}])
def test_logs_hold_the_output_of_tasks_without_secrets_and_an_index_of_times(tmp_path, clock, secrets) -> None:
    paths = RunPaths(str(tmp_path / "run"))
    os.makedirs(os.path.dirname(paths.log(1, "chief-0")))
    output = FolderOutput(paths, 1, ["chief-0", "worker-0"], secrets, str(tmp_path / "pipes"), clock)
    output.open()
    assert (output.target("chief-0") == output.log("chief-0") == paths.log(1, "chief-0")) is (not secrets)
    assert output.count("worker-0") == 0
    task = os.open(output.target("chief-0"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(task, b"key s3cr3t-value\nKeyError: 'x'\n")
    written = (b"key s3cr3t-value\n", b"key ***\n")[bool(secrets)] + b"KeyError: 'x'\n"
    until(lambda: output.count("chief-0") == len(written))
    clock.time += 1
    output.update()
    [line] = Path(paths.log_times(1)).read_text().splitlines()
    assert json.loads(line)[1] == {"chief-0": len(written)}
    assert output.last_error("chief-0") == "KeyError: 'x'"
    os.write(task, b"the end")
    os.close(task)
    output.close()
    assert Path(paths.log(1, "chief-0")).read_bytes() == written + b"the end"
    assert output.last_lines("chief-0").endswith("the end")


def test_a_task_whose_output_hides_secrets_does_not_wait_for_a_full_disk(tmp_path: Path, clock: FakeClock) -> None:
    paths = RunPaths(str(tmp_path / "run"))
    os.makedirs(os.path.dirname(paths.log(1, "chief-0")))
    os.symlink("/dev/full", paths.log(1, "chief-0"))
    output = FolderOutput(paths, 1, ["chief-0"], {"KEY": "s3cr3t-value"}, str(tmp_path / "pipes"), clock)
    output.open()
    task = os.open(output.target("chief-0"), os.O_WRONLY | os.O_NONBLOCK)
    # More than a pipe and one look at it hold.
    left = LINE % 1 * 3000

    def is_taken() -> bool:
        nonlocal left
        with suppress(BlockingIOError):
            left = left[os.write(task, left) :]
        return not left

    until(lambda: is_taken() or all(each.name != "podlift-output" for each in threading.enumerate()))
    assert not left
    os.close(task)
    output.close()


def test_a_killed_container_leaves_the_output_of_its_task_until_then(cloud: Cloud, write) -> None:
    write("train.py", "import os, time; print('before'); os.write(2, b'an error\\n'); time.sleep(600)")
    plan = cloud.plan("train.py")
    container = cloud.start(plan, cloud.order(plan))
    place = "attempts/0001/tails/chief-0.log/"
    until(lambda: cloud.objects(plan, place))
    container.process.send_signal(signal.SIGKILL)
    container.code()
    first = min(cloud.objects(plan, place).items())[1]
    assert sorted(first.splitlines()) == [b"an error", b"before"]
    assert "before\n" in container.said and "an error\n" in container.said
