"""Garbage in the small files that podlift reads from well-known places: it costs their content, and never a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import needs

from sdk.backends.vertex.account import prices
from sdk.errors import InputError
from sdk.planning import preflight_findings
from sdk.process import venv
from sdk.records import named
from sdk.storage import small_files

GARBAGE: dict[str, Callable[[Path], object]] = {
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "empty": lambda path: path.write_bytes(b""),
    "huge": lambda path: path.write_bytes(b"[" * (1 << 24) + b"["),
    "nested": lambda path: path.write_bytes(b"[" * 200_000),
    "another type": lambda path: path.write_text('{"version": [], "withheld": 3, "build": {}}'),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=GARBAGE.values(), ids=GARBAGE)
def garbage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "podlift").mkdir()
    return tmp_path / "podlift"


def test_caches_with_garbage_are_read_as_empty(cache: Path, garbage: Callable[[Path], object]) -> None:
    for name in ("prices.json", "report.json", venv._MARKER):
        garbage(cache / name)
    assert prices.VertexPrices().cached({"XDG_CACHE_HOME": str(cache.parent)}) is None
    assert preflight_findings.read(cache / "report.json") is None
    assert venv._read_marker(cache) is None


def test_a_schedule_that_is_remembered_is_found_beside_garbage(cache: Path, garbage: Callable[[Path], object]) -> None:
    named.remember("schedule", ["weekly"], "gs://bucket/podlift")
    garbage(cache / "schedules" / "a")
    named.remember("schedule", ["yearly"], "gs://bucket/podlift")
    found = named.remembered("schedule")
    assert found["weekly"] == found["yearly"] == "gs://bucket/podlift"
    assert all(text.isprintable() for text in found.values())


def test_an_emulator_names_a_file_of_its_project_with_garbage(tmp_path: Path, garbage) -> None:
    needs("starlette", "uvicorn")
    from sdk.emulator.project.state import ProjectState

    file = tmp_path / "project.json"
    garbage(file)
    if not file.exists():
        return
    with pytest.raises(InputError, match=r"cannot be read: .*Next: remove it"):
        ProjectState(file)


def test_a_file_that_is_small_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    (tmp_path / "link").symlink_to("a")
    assert small_files.read(tmp_path / "a") == small_files.read(tmp_path / "link", 4) == b"text"
    with pytest.raises(OSError, match="more than 3 bytes"):
        small_files.read(tmp_path / "a", 3)
