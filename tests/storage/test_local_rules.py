"""Files, trees and records on this machine's disk: sizes, copies, reserves, removals, and the system's errors."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.clock import SystemClock
from sdk.errors import CorruptRunError, StoreError
from sdk.job.layout import RunPaths
from sdk.records.recorder import Recorder, read_events, sweep
from sdk.storage import own_folders, posix, reserve, small_files
from sdk.storage.file_systems import as_store_error
from sdk.storage.fingerprints import UnreadableInputError, state_of
from sdk.storage.folders import entries, extent
from sdk.storage.gcs.errors import OutOfTimeError, failure_of
from sdk.storage.gcs.files import BucketFiles
from sdk.storage.gcs.requests import BucketRequests, DamagedError, ObjectPage
from sdk.storage.raw_memory import flat
from sdk.storage.trees import copy_into, links_beside, put, walk


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name, size in (("a", 100), ("deep/c", 7)):
        (tmp_path / name).write_bytes(b"x" * size)
    os.link(tmp_path / "a", tmp_path / "deep/b")
    assert [extent(tmp_path / name)[0] for name in ("", "a", "none")] == [107, 100, 0]
    assert extent(tmp_path / "none")[1] == math.inf


def test_a_folder_is_removed_with_all_in_it_and_a_discard_says_whether_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "folder/deep/file").write_text("x")
    (tmp_path / "file").write_text("x")
    own_folders.remove(str(tmp_path / "folder"))
    assert os.listdir(tmp_path) == ["file"]
    assert [own_folders.discard(str(tmp_path / name)) for name in ("folder", "file/x")] == [True, False]


def test_below_a_working_folder_that_was_removed_no_folder_can_be_made(tmp_path: Path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        posix.make_folders("deep/deeper")


def test_records_in_reserves_of_one_folder_are_read_and_an_unused_reserve_goes(tmp_path: Path) -> None:
    folder = str(tmp_path / "reserve")
    reserves = [reserve.Reserve(f"{folder}/0001.{task}") for task in ("chief-0", "worker-0", "worker-1")]
    for number in (0, 1):
        assert reserves[number].add(f"{number}.json", {"n": number}, last=False) is True
    assert list(reserve.read(folder)) == [("0.json", b'{"n": 0}'), ("1.json", b'{"n": 1}')]
    for each in reserves:
        each.close()
    assert sorted(os.listdir(folder)) == ["0001.chief-0", "0001.worker-0"]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (OSError(errno.EROFS, "x"), "Cannot write '/x': the file system is read-only. Choose a writable root."),
        (OSError(errno.EXDEV, "Invalid cross-device link"), "Cannot write '/x': Invalid cross-device link."),
        (OSError("only words"), "Cannot write '/x': only words."),
    ],
)
def test_an_error_of_the_system_is_reported_with_its_meaning(error: OSError, meaning: str) -> None:
    with pytest.raises(StoreError) as caught, as_store_error("write", "/x"):
        raise error
    assert str(caught.value) == meaning


RECORD = b"\3" + bytes(7) + b"sum.abcsum."  # of TensorFlow


@pytest.mark.parametrize(
    ("name", "data", "examples"),
    [
        *(("a.csv", b"1\n2\n", 2), ("a.csv", b"1\n2", 2), ("a.csv", b"", 0), ("a.bin", b"1\n2\n", 1)),
        *(("a.tfrecord", 2 * RECORD, 2), ("a.tfrecord", (2 * RECORD)[:-1], 1), ("a.tfrecord", b"", 0)),
    ],
)
def test_lines_and_records_are_examples_where_a_name_says_so(
    tmp_path: Path, name: str, data: bytes, examples: int
) -> None:
    (tmp_path / name).write_bytes(data)
    assert state_of(str(tmp_path / name), count=True).examples == examples


def test_a_small_file_is_read_whole_and_one_that_is_larger_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    assert small_files.read(tmp_path / "file", 3) == b"abc"
    for name, sentence in (("file", "more than 2 bytes"), ("pipe", "is not a file")):
        with pytest.raises(OSError, match=sentence):
            small_files.read(tmp_path / name, 2)


def test_a_transfer_that_ran_out_of_time_may_have_taken_effect() -> None:
    failure = failure_of(OutOfTimeError(), "mine")
    assert failure is not None and (failure.unsure, failure.retry) == (True, False)


def test_a_listing_is_as_old_as_its_first_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [ObjectPage(objects=[], folders=[], token=None, time=float(time)) for time in (7, 8)]
    found = BucketFiles("gs://mine/runs")
    monkeypatch.setattr(found, "_pages", lambda query: iter(pages))
    assert found.versions("") == ([], 7.0)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("crc32c=AAAAAQ==,md5=x", "00000001 was written"),
        ("md5=x", "an unknown one was written"),
        ("crc32c=Nks/tw==", ""),
    ],
)
def test_bytes_with_another_checksum_are_refused_with_both_checksums(told: str, sentence: str) -> None:
    whole = [b"abc", b""]
    raw = SimpleNamespace(read=None, read1=lambda size, decode_content: whole.pop(0))
    response: Any = SimpleNamespace(headers={"Content-Length": "3", "X-Goog-Hash": told}, raw=raw)
    connection: Any = None
    bucket = BucketRequests(connection=connection, bucket="mine", timeout=(1, 1), check=lambda done: None)
    with pytest.raises(DamagedError, match=rf"^its crc32c is 364b3fb7; {sentence}$") if sentence else nullcontext():
        assert bytes(bucket._receive(response, None, None)) == b"abc"


def test_half_a_record_of_a_dead_task_is_removed_and_nothing_else(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    sweep(paths, ["chief-0"])
    Recorder(paths, "chief-0", 1, SystemClock()).record("entry")
    events = Path(paths.events)
    sources = ("0001.chief-0", "0000.launcher", "0001.worker-0")
    halves = [f".{source}.000002.failed.json.0123.part" for source in sources]
    for name in halves:
        (events / name).write_text("{")
    before = read_events(paths)
    sweep(paths, ["chief-0", "worker-1"])
    assert sorted(path.name for path in events.glob(".*")) == sorted(halves[1:])
    assert read_events(paths) == before


def test_records_of_several_threads_have_different_numbers(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))
    recorder = Recorder(paths, "chief-0", 1, SystemClock())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: recorder.record("saved", step=number), range(12)))
    assert [event.sequence for event in read_events(paths)] == list(range(1, 13))


NAMES = st.sampled_from(["a", "b", "ä", "a b", ".hidden", "\udce9", "n" * 255])
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=5), max_size=8)


def make(top: Path, tree: dict[str, bytes]) -> dict[str, bytes]:
    """Write as much of a tree as can be: a name that is a folder already is passed over."""
    top.mkdir()
    for path, data in tree.items():
        try:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(data)
        except OSError:
            continue
    return content(top)


def content(top: Path) -> dict[str, bytes]:
    return {path: (top / path).read_bytes() for path in walk(str(top)).files}


@given(TREES, TREES)
def test_copies_are_equal_or_refused_and_existing_files_stay(tree: dict[str, bytes], before: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, dest = Path(folder, "source"), Path(folder, "dest")
        wanted, there = make(source, tree), make(dest, before)
        try:
            written = copy_into(str(source), str(dest))
        except sdk.InputError:
            assert content(dest) == there, "nothing was written"
            clash = {path for path in wanted if path in there and there[path] != wanted[path]}
            ways = {str(parent) for path in wanted for parent in Path(path).parents}
            assert clash or ways & set(there) or any((dest / path).is_dir() for path in wanted)
        else:
            assert content(dest) == {**there, **wanted}
            assert written == sorted(str(dest / path) for path in wanted if path not in there)


def test_a_file_reaches_another_file_system_where_it_cannot_have_a_second_name(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        source = Path(folder, "weights")
        source.write_bytes(b"w")
        os.utime(source, (1, 1))
        put(str(source), str(tmp_path / "weights"), link=True)
    assert (tmp_path / "weights").read_bytes() == b"w"
    assert (tmp_path / "weights").stat().st_mtime == 1
    assert os.listdir(tmp_path) == ["weights"]


def test_a_second_name_replaces_the_existing_file_and_again(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "new").write_text("new")
    for _ in range(2):
        put(str(tmp_path / "new"), str(tmp_path / "old"), link=True)
        assert (tmp_path / "old").samefile(tmp_path / "new")
        assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_walk_is_bounded_and_says_where_it_ended(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(name)
    tree = walk(str(tmp_path), at_most=2)
    assert sorted(tree.files) == ["a", "b"]
    assert tree.others == {"c": "beyond the first 2 files, like all that follow"}


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_complete_walk_fails_where_another_try_may_list_more(tmp_path: Path, monkeypatch, code: int) -> None:
    (tmp_path / "a").mkdir()
    scandir = os.scandir

    def broken(path: str) -> object:
        if path.rstrip("/") == str(tmp_path / "a"):
            raise OSError(code, os.strerror(code))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", broken)
    assert walk(str(tmp_path)).others == {"a/": os.strerror(code).lower()}
    if code == errno.EACCES:
        assert walk(str(tmp_path), complete=True).others == {"a/": "permission denied"}
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            walk(str(tmp_path), complete=True)


def test_the_unfinished_copy_of_a_killed_process_is_no_file(tmp_path: Path) -> None:
    (tmp_path / f".podlift-{'0' * 32}.part").write_text("half")
    assert walk(str(tmp_path)).files == {}


@pytest.mark.parametrize(
    ("name", "text", "inside"),
    [
        *[("out/link", "file", True), ("out/a/link", "../file", True), ("out/a/b/link", "../../c/d", True)],
        *[("out/link", "../file", False), ("out/a/link", "../../file", False), ("out/link", "a/../../file", False)],
        *[("out/link", "/etc/passwd", False), ("out/link", "", False), ("../link", "file", False)],
    ],
)
def test_a_link_that_leaves_the_folder_is_refused(name: str, text: str, inside: bool) -> None:
    with nullcontext() if inside else pytest.raises(CorruptRunError, match="files outside the folder"):
        assert links_beside([], {name: text}, "The run") == {name: text}


def test_an_entry_is_listed_and_removed_whether_it_is_a_file_or_a_folder(tmp_path: Path) -> None:
    made = tmp_path / "made"
    make(made, {"top/b": b"1", "top/a/c": b"2"})
    assert [(path.name, info.st_size) for path, info in entries(made / "top") if path.is_file()] == [("b", 1)]
    assert [path.name for path, _ in entries(made / "top")] == ["a", "b"]
    own_folders.remove(str(made), "top/b", private=False)
    assert [path.name for path, _ in entries(made / "top")] == ["a"]
    (made / "file").touch()
    own_folders.remove(str(made / "file"), private=False)
    assert sorted(os.listdir(made)) == ["top"]


def test_the_entry_that_cannot_be_removed_is_named_and_the_others_go(tmp_path: Path, monkeypatch) -> None:
    make(tmp_path / "made", {"a": b"1", "kept": b"2", "z": b"3"})
    unlink = os.unlink

    def refuse(name: str, **more: Any) -> None:
        if name == "kept":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(name, **more)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError, match="made/kept"):
        own_folders.remove(str(tmp_path / "made"), private=False)
    assert os.listdir(tmp_path / "made") == ["kept"]


def test_a_buffer_of_any_form_is_its_bytes() -> None:
    for part in (
        b"12345678",
        array("d", [1.0]),
        memoryview(bytes(8)).cast("B", (2, 4)),
        memoryview(bytearray(8)).cast("b"),
    ):
        view = flat(part)
        assert (len(view), view.format, bytes(view)) == (8, "B", memoryview(part).tobytes())
    assert len(flat(array("d"))) == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file of this system fails to be read")
def test_an_input_that_cannot_be_read_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "x.csv").symlink_to("/proc/self/mem")  # its first page is none
    with pytest.raises(UnreadableInputError, match=r"x\.csv' cannot be read: Input/output error"):
        state_of(str(tmp_path / "x.csv"))
