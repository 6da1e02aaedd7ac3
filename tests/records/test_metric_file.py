"""A metrics file that was read before gives the same as a first reading, whatever was done to it; only new lines are parsed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.errors import CorruptRunError
from sdk.records import metric_file

LINE = b'{"time": 1.5, "step": 7, "metrics": {"loss": 0.5}}\n'


def fresh(path: Path) -> list[dict] | str:
    metric_file._read_parts.clear()
    return found(path)


def found(path: Path) -> list[dict] | str:
    try:
        return metric_file.read_metrics(str(path))
    except CorruptRunError as error:
        return str(error)


# The effects of writers, copies and damage on a file: add to it, write it anew in place, replace it, cut it, remove it.
PARTS = st.sampled_from([LINE, LINE.replace(b"7", b"8"), LINE[:20], LINE[20:], b"\n", b"[]\n", b"{}"])
WRITES = st.tuples(st.sampled_from(["add", "rewrite", "replace"]), st.lists(PARTS, max_size=6).map(b"".join))
CUTS = st.tuples(st.just("cut"), st.integers(0, 300))
CHANGES = st.lists(WRITES | CUTS | st.just(("remove", None)), max_size=6)


def change(path: Path, how: str, what) -> None:
    if how == "add":
        with path.open("ab") as file:
            file.write(what)
    elif how == "rewrite":
        path.write_bytes(what)
    elif how == "replace":
        other = path.with_name("other")
        other.write_bytes(what)
        other.replace(path)
    elif how == "cut" and path.exists():
        os.truncate(path, min(what, path.stat().st_size))
    elif how == "remove":
        path.unlink(missing_ok=True)


@given(changes=CHANGES)
def test_a_file_that_was_read_before_is_read_like_a_new_one(tmp_path_factory, changes) -> None:
    path = tmp_path_factory.mktemp("records") / "chief-0.jsonl"
    kept = metric_file._RECORDS
    metric_file._RECORDS = 1
    try:
        metric_file._read_parts.clear()
        for how, what in changes:
            change(path, how, what)
            known = dict(metric_file._read_parts)
            expected = fresh(path)
            metric_file._read_parts.update(known)
            assert found(path) == expected
    finally:
        metric_file._RECORDS = kept


def test_only_new_lines_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parsed = tmp_path / "chief-0.jsonl", list[bytes]()
    monkeypatch.setattr(metric_file.json, "loads", lambda line, loads=json.loads: parsed.append(line) or loads(line))
    path.write_bytes(LINE * 1000 + LINE[:10])
    assert len(found(path)) == len(parsed) == 1000
    change(path, "add", LINE[10:] + LINE)
    assert len(found(path)) == len(parsed) == 1002
    found(path).clear()
    assert len(found(path)) == 1002


def test_few_files_are_remembered_and_damage_is_named_by_its_line_in_the_whole_file(tmp_path: Path) -> None:
    metric_file._read_parts.clear()
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(LINE * 1000)
        found(tmp_path / f"{number}")
    assert list(metric_file._read_parts) == [str(tmp_path / f"{number}") for number in range(6, 10)]
    change(tmp_path / "9", "add", b"{}\n")
    assert "is damaged in line 1001" in str(found(tmp_path / "9"))
