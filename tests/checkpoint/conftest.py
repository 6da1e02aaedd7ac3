"""Where the tests of checkpoints work."""

from pathlib import Path

import pytest

from sdk.storage.posix_store import PosixStore


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path / "store")
