"""A tree of files arrives whole, or not at all, and nothing that was there before is lost."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.storage.trees import copy_into, put, walk

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
