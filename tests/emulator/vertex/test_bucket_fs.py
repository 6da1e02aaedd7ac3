"""Objects as files and files as objects: what programs see below /gcs, and what they leave there."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from stored import Stored, serving
from support import LIMIT_S, until

from sdk.emulator.vertex.bucket_fs import StateThread


@pytest.fixture
def stored(tmp_path) -> Iterator[Stored]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
def gcs(stored) -> Path:
    """The bucket as a program sees it, brought up to date by the tests themselves."""
    stored.view.sync()
    return stored.view.folder / "bucket"


def test_objects_are_files_and_new_ones_come_while_a_job_runs(stored) -> None:
    stored.put("d/x", b"old")
    stored.view.mount()
    file = stored.view.folder / "bucket/d/x"
    assert file.read_bytes() == b"old"
    stored.put("d/x", b"new")
    stored.put("d/y", b"also")
    until(lambda: file.read_bytes() == b"new" and (file.parent / "y").exists())
    stored.delete("d/y")
    until(lambda: not (file.parent / "y").exists())
    stored.view.unmount()


def test_a_file_becomes_an_object_when_it_is_closed_and_not_before(stored, gcs) -> None:
    with (gcs / "x").open("wb") as file:
        file.write(b"half")
        os.fsync(file.fileno())
        stored.view.flush()
        assert stored.names() == []
        file.write(b" and half")
    stored.view.flush()
    assert stored.get("x") == b"half and half"


def test_a_program_that_only_closes_its_file_is_noticed(stored) -> None:
    stored.view.mount()
    (stored.view.folder / "bucket/x").write_bytes(b"text")
    until(lambda: stored.get("x") == b"text")
    stored.view.unmount()


def test_writing_into_a_file_leaves_the_old_object_as_it_was(stored, gcs) -> None:
    stored.put("x", b"first")
    stored.view.sync()
    old = stored.thread.run(lambda: stored.state.blobs.path(stored.state.get("bucket", "x").blob))
    held = os.open(old, os.O_RDONLY)
    with (gcs / "x").open("r+b") as file:
        file.write(b"F")
    assert os.pread(held, 9, 0) == b"first"
    os.close(held)
    stored.view.flush()
    assert stored.get("x") == b"First"
    with (gcs / "x").open("ab") as file:
        file.write(b"!")
    assert stored.get("x") == b"First", "an object is no name for the program's file"
    stored.view.flush()
    assert stored.get("x") == b"First!"


def test_a_marker_never_comes_before_what_it_stands_for(stored, gcs) -> None:
    order: list[str] = []
    commit = stored.state.commit
    stored.state.commit = lambda bucket, name, *rest: (order.append(name), commit(bucket, name, *rest))[1]
    for name in ("z", "m", "a"):
        (gcs / name).write_bytes(b"")
        time.sleep(0.02)  # further than the kernel's clock is wide
    stored.view.flush()
    assert order == ["z", "m", "a"]


def test_files_are_renamed_and_removed(stored, gcs) -> None:
    (gcs / "d").mkdir()
    (gcs / "d/part").write_bytes(b"text")
    stored.view.flush()
    assert stored.names() == ["d/", "d/part"]
    (gcs / "d/part").rename(gcs / "d/whole")
    stored.view.flush()
    assert stored.names() == ["d/", "d/whole"]
    assert stored.get("d/whole") == b"text"
    (gcs / "d").rename(gcs / "e")
    stored.view.flush()
    assert stored.names() == ["e/", "e/whole"]
    (gcs / "e/whole").unlink()
    (gcs / "e").rmdir()
    stored.view.flush()
    assert stored.names() == []


def test_folders_that_are_no_objects_go_with_their_last_file(stored, gcs) -> None:
    stored.put("a/b/c", b"")
    stored.put("m/", b"")
    stored.put("m/n", b"")
    stored.view.sync()
    assert (gcs / "a/b").is_dir()
    for name in ("a/b/c", "m/n"):
        stored.delete(name)
    stored.view.sync()
    assert not (gcs / "a").exists()
    assert (gcs / "m").is_dir()
    stored.view.flush()
    assert stored.names() == ["m/"], "what only shows an object is not one more"


def test_the_program_that_writes_last_wins_over_a_client(stored, gcs) -> None:
    stored.put("x", b"first")
    stored.view.sync()
    with (gcs / "x").open("wb") as file:
        file.write(b"the program's")
        stored.put("x", b"the client's")
        stored.view.flush()
        assert stored.get("x") == b"the client's"
    stored.view.flush()
    assert stored.get("x") == b"the program's"
    assert (gcs / "x").read_bytes() == b"the program's"


def test_a_client_that_writes_last_is_not_undone_by_a_program_that_removes(stored, gcs) -> None:
    stored.put("x", b"first")
    stored.view.sync()
    (gcs / "x").unlink()
    stored.put("x", b"second")
    stored.view.flush()
    stored.view.flush()
    assert (gcs / "x").read_bytes() == stored.get("x") == b"second"


def test_objects_that_cannot_be_files_are_not_shown(stored, gcs) -> None:
    for name in ("../out", "a//b", "/root", ".", "a/./b", "long/" + 300 * "x", "x"):
        stored.put(name, b"")
    stored.view.sync()
    assert [path.name for path in stored.view.folder.iterdir()] == ["bucket"]
    assert "x" in os.listdir(gcs) and not (gcs / "root").exists()


def test_nothing_is_written_through_a_link(stored, gcs, tmp_path) -> None:
    (tmp_path / "outside").mkdir()
    (gcs / "link").symlink_to(tmp_path / "outside")
    stored.put("link/x", b"")
    stored.view.flush()
    assert os.listdir(tmp_path / "outside") == []
    assert stored.names() == ["link/x"]


def test_a_file_that_can_be_no_object_is_reported_once(stored, gcs, capfd) -> None:
    (gcs / "two\nlines").write_bytes(b"")
    (gcs / "x").write_bytes(b"")
    stored.view.flush()
    stored.view.flush()
    assert stored.names() == ["x"]
    assert capfd.readouterr().err.count("cannot be an object") == 1


def test_a_bucket_that_is_made_later_is_there(stored, gcs) -> None:
    stored.bucket("later")
    stored.put("x", b"text", "later")
    stored.view.sync()
    assert (stored.view.folder / "later/x").read_bytes() == b"text"
    stored.delete("x", "later")
    stored.thread.run(lambda: stored.state.delete_bucket("later"))
    stored.view.sync()
    assert not (stored.view.folder / "later").exists()


def test_what_waits_for_a_server_that_ends_is_not_cancelled() -> None:
    async def serve() -> Future[int]:
        loop, queued = asyncio.get_running_loop(), threading.Event()
        queue = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given, **more: (queue(*given, **more), queued.set())[0]
        answer = pool.submit(StateThread(loop).run, lambda: 5)
        assert queued.wait(LIMIT_S)  # The loop ends without waiting for what was queued.
        return answer

    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(serve()).result(LIMIT_S) == 5


def test_whoever_would_wait_for_himself_is_told(stored) -> None:
    with pytest.raises(RuntimeError, match="in the thread that owns it"):
        stored.thread.run(lambda: stored.thread.run(lambda: None))
