"""A file that was read once is not read again, and a wrong or damaged cache changes no plan."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import sdk
from sdk.packaging import bundle

LONG_AGO = time.time() - 3600


@pytest.fixture
def project(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with files that were written long ago, as far as podlift can tell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The time of a change cannot be set back: the test shortens the wait for it.
    monkeypatch.setattr("sdk.packaging.bundle_cache._SETTLED_NS", -(10**12))
    write("pkg/data.bin", "1" * 1000)
    return write("train.py", "import pkg\n").parent


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    real = bundle._read

    def counting(project: Path, path: str, missed):
        paths.append(path)
        return real(project, path, missed)

    monkeypatch.setattr(bundle, "_read", counting)
    return paths


@pytest.mark.process
def test_an_unchanged_project_is_read_once(project: Path, monkeypatch) -> None:
    first = sdk.plan("train.py")
    paths = reads(monkeypatch)
    second = sdk.plan("train.py")
    assert paths == []
    assert (second.code.digest, second.code.files) == (first.code.digest, first.code.files)
    run = sdk.submit(second)
    run.result(60)


@pytest.mark.parametrize("change", ["text", "same size and time", "mode", "new", "gone", "name", "include"])
def test_whatever_changes_is_noticed(project: Path, change: str) -> None:
    before = sdk.plan("train.py")
    data = project / "pkg" / "data.bin"
    about = data.stat()
    job = sdk.Job("train.py")
    if change == "text":
        data.write_text("2")
    elif change == "same size and time":
        data.write_text("2" * 1000)
        os.utime(data, ns=(about.st_atime_ns, about.st_mtime_ns))
    elif change == "mode":
        data.chmod(0o755)
    elif change == "new":
        (project / "new.txt").write_text("")
    elif change == "gone":
        data.unlink()
    elif change == "name":
        data.rename(data.with_name("renamed.bin"))
    else:
        (project / "key.txt").write_text("-----BEGIN PRIVATE KEY-----")
        assert sdk.plan("train.py").code.digest == before.code.digest
        job = sdk.Job("train.py", code=sdk.Code(include=("key.txt",)))
    assert sdk.plan(job).code.digest != before.code.digest


@pytest.mark.parametrize("damage", ["{", "[]", "", "null", "forged"])
def test_a_damaged_cache_is_none_and_one_that_cannot_be_written_neither(project: Path, tmp_path, damage: str) -> None:
    before = sdk.plan("train.py")
    (file,) = (tmp_path / "cache" / "podlift" / "files").iterdir()
    if damage == "forged":
        damage = file.read_text().replace(before.code.digest, "0" * 64)
        assert damage != file.read_text()
    file.write_text(damage)
    assert sdk.plan("train.py").code.digest == before.code.digest
    (tmp_path / "cache").rename(tmp_path / "away")
    (tmp_path / "cache").write_text("a file")
    assert sdk.plan("train.py").code.digest == before.code.digest


def test_a_file_written_a_moment_ago_is_not_cached(project: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sdk.packaging.bundle_cache._SETTLED_NS", 2 * 10**9)
    (project / "train.py").write_text("print(2)\n")
    sdk.plan("train.py")
    assert not (tmp_path / "cache" / "podlift").exists()
