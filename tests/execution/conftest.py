"""A cloud for each test: a bucket of its own, and containers that end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

from .cloud import Cloud
from .hosts import LOCAL, PROGRAM, Containers, Given, Local, Play, Player

__all__ = ["podlift_gcs", "podlift_gcs_server"]


@pytest.fixture(scope="session")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's cache."""
    return tmp_path_factory.mktemp("remembered")


@pytest.fixture
def cloud(podlift_gcs: GcsServer, monkeypatch, tmp_path: Path, remembered: Path) -> Iterator[Cloud]:
    """A bucket, and containers."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", podlift_gcs.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "containers"
    folder.mkdir()
    found = Cloud(podlift_gcs, folder, remembered)
    yield found
    found.close()


@pytest.fixture
def play(write: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest) -> Play:
    """Start `PROGRAM` on a host."""

    def start(host: str, given: Given) -> Player:
        write("train.py", PROGRAM)
        shared = tmp_path / "shared"
        shared.mkdir()
        if host in LOCAL:
            return Local(given, shared)
        cloud: Cloud = request.getfixturevalue("cloud")
        if host.startswith("folder"):
            cloud.root = f"file://{tmp_path}/runs"
        return Containers(given, shared, cloud)

    return start
