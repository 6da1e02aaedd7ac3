"""A list of objects has the files that programs wrote below /gcs, whenever the emulator looks there next."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from stored import Stored

from sdk.clock import SystemClock
from sdk.emulator.connections import Connections, Journal
from sdk.emulator.faults import FaultRules
from sdk.emulator.gcs.app import StorageApp
from sdk.emulator.project.state import ProjectState
from sdk.emulator.vertex import bucket_fs


def test_a_list_has_a_file_that_was_closed_just_before_it(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_fs, "_POLL_S", 3600.0)
    stored.view.mount()
    (stored.view.folder / "bucket" / "model.keras").write_bytes(b"trained")
    listed = _names(stored, tmp_path)
    stored.view.unmount()
    (stored.view.folder / "bucket" / "after.keras").write_bytes(b"no job sees it")
    assert (listed, _names(stored, tmp_path)) == (["model.keras"], ["model.keras"])


def _names(stored: Stored, folder: Path) -> list[str]:
    """List the bucket as a client does."""
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
