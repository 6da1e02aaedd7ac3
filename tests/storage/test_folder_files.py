"""Files in a folder that several machines share, which has the records of runs as objects beside them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sdk.errors import ConflictError, InputError, MissingError, StoreError
from sdk.planning import roots
from sdk.storage.folder_files import FolderFiles
from sdk.storage.gcs import download
from sdk.storage.posix_store import PosixStore
from sdk.storage.registry import open_files, open_store


@pytest.fixture
def files(tmp_path: Path) -> FolderFiles:
    found = open_files(f"file://{tmp_path}/shared")
    assert isinstance(found, FolderFiles)
    return found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here"
    path.write_bytes(b"content")
    return path


def test_an_uploaded_file_is_listed_and_comes_back(files: FolderFiles, here: Path, tmp_path: Path) -> None:
    known = files.upload("a/b.bin", str(here), None)
    for listed in (files.list("a/"), files.list("", suffix=".bin")):
        assert [each.name for each in listed] == ["a/b.bin"]
    assert (known.name, known.size) == ("a/b.bin", 7)
    files.download("a/b.bin", str(tmp_path / "back" / "b.bin"))
    assert (tmp_path / "back" / "b.bin").read_bytes() == b"content" == bytes(files.read("a/b.bin"))
    # A copy that is the same is not written again; one of the same size is.
    assert files.upload("a/b.bin", str(here), known).generation == known.generation
    here.write_bytes(b"CONTENT")
    assert files.upload("a/b.bin", str(here), known).generation != known.generation
    assert files.folder("") == (["a"], [])
    assert files.folder("a") == ([], ["b.bin"])
    assert list(files.matching("*/b.bin")) == ["a/b.bin"]
    assert 0 <= files.age_s("a/b.bin") < 60


def test_records_and_growing_files_are_listed_and_read_as_they_were_written(files: FolderFiles, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/shared")
    store.put_new("runs/r/plan.json", [b"{}"])
    store.put_new("runs/r/log/000000000000000.part", [b"line\n"])
    assert {each.name for each in files.versions("runs/")[0]} == {"runs/r/plan.json", "runs/r/log/000000000000000.part"}
    assert bytes(files.read("runs/r/plan.json")) == b"{}"
    assert bytes(PosixStore(tmp_path / "shared").get("runs/r/plan.json")) == b"{}"


def test_a_file_is_removed_only_as_it_was_seen(files: FolderFiles, here: Path) -> None:
    seen = files.upload("a/x", str(here), None)
    here.write_bytes(b"other")
    files.upload("a/x", str(here), None)
    with pytest.raises(ConflictError):
        files.delete(seen)
    (now,) = files.list("")
    assert files.touch("a/x")
    with pytest.raises(ConflictError):
        files.delete(now)
    (now,) = files.list("")
    assert files.delete(now)
    assert not files.delete(now)
    assert files.folder("") == ([], [])


def test_an_object_that_another_one_created_stays(files: FolderFiles) -> None:
    assert files.create("spec.json", b"first") == b"first"
    assert files.create("spec.json", b"second") == b"first"


def test_an_absent_object_is_missing(files: FolderFiles) -> None:
    for call in (files.read, files.age_s, lambda name: files.download(name, "/nowhere/x")):
        with pytest.raises((MissingError, StoreError, OSError)):
            call("a")
    assert list(files.list("")) == []
    assert not files.exists("a")
    assert not files.touch("a")
    with pytest.raises(StoreError):
        files.bucket_info()


def test_the_first_stage_names_the_machine_that_does_not_see_the_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    path = tmp_path / "out"
    with path.open("wb") as file, pytest.raises(download.DownloadError) as refused:
        download.fetch("/", f"{tmp_path}/entry.py".lstrip("/"), "0" * 64, file)
    assert f"{tmp_path}/entry.py cannot be read on " in str(refused.value)
    assert "No such file" in str(refused.value)
    assert "--root that all machines see at the same path" in str(refused.value)
    (tmp_path / "entry.py").write_bytes(b"other")
    with path.open("wb") as file, pytest.raises(download.DownloadError, match="was planned"):
        download.fetch("/", f"{tmp_path}/entry.py".lstrip("/"), "0" * 64, file)
    with path.open("wb") as file:
        download.fetch("/", f"{tmp_path}/entry.py".lstrip("/"), hashlib.sha256(b"other").hexdigest(), file)
    assert path.read_bytes() == b"other"


def test_a_folder_that_was_shared_once_is_known_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    assert roots.resolve_root(folder, {}) == str(folder)
    roots.share(f"file://{folder}")
    assert roots.resolve_root(folder, {}) == f"file://{folder}"
    assert roots.resolve_root(f"file://{folder}/", {}) == f"file://{folder}"
    with pytest.raises(InputError, match="absolute path"):
        roots.resolve_root("file://relative/path", {})
