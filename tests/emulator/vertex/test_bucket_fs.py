"""Objects as files and files as objects: programs read them below /gcs, and write them there."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from stored import Stored
from support import until

from sdk.clock import SystemClock
from sdk.emulator.connections import Connections, Journal
from sdk.emulator.faults import FaultRules
from sdk.emulator.gcs.app import StorageApp
from sdk.emulator.project.state import ProjectState
from sdk.emulator.vertex import bucket_fs


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


def test_a_marker_never_comes_before_its_files(stored, gcs) -> None:
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


def test_bytes_stay_until_the_transaction_that_removes_their_object_is_committed(stored) -> None:
    stored.put("x", b"old")
    state = stored.state
    record = stored.thread.run(lambda: state.get("bucket", "x"))

    def removed(interrupted: bool) -> None:
        with suppress(KeyboardInterrupt), state.transaction():
            state.delete(record, permanently=False)
            assert state.find("bucket", "x") is None
            if interrupted:
                raise KeyboardInterrupt
        assert state.find("bucket", "x") == (record if interrupted else None)

    stored.thread.run(lambda: removed(interrupted=True))
    assert stored.get("x") == b"old", "as after a kill, it is there again with its bytes"
    stored.thread.run(lambda: removed(interrupted=False))
    assert not state.blobs.path(record.blob).exists()


def test_a_list_of_objects_has_a_file_that_was_closed_just_before_it(stored, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bucket_fs, "_POLL_S", 3600.0)
    stored.view.mount()
    (stored.view.folder / "bucket" / "model.keras").write_bytes(b"trained")
    listed = listed_by_a_client(stored, tmp_path)
    stored.view.unmount()
    (stored.view.folder / "bucket" / "after.keras").write_bytes(b"no job sees it")
    assert (listed, listed_by_a_client(stored, tmp_path)) == (["model.keras"], ["model.keras"])


def listed_by_a_client(stored: Stored, folder: Path) -> list[str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def ask() -> None:
        project, faults = ProjectState(folder / "project.json"), FaultRules(SystemClock().now)
        app = StorageApp(stored.state, project, faults, Journal(Connections()))
        path = "/storage/v1/b/bucket/o"
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        await app({**scope, "headers": [], "client": ("127.0.0.1", 1)}, receive, send)

    asyncio.run_coroutine_threadsafe(ask(), stored.thread._loop).result(60.0)
    return [each["name"] for each in json.loads(sent[1]["body"]).get("items", [])]
