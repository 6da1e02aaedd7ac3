"""The examples and the changes that count, on this disk and in a bucket; and functions of the user."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk import InputError
from sdk.packaging import bundle
from sdk.schedules import preconditions
from sdk.schedules.preconditions import Firing, PreconditionError, state_of
from sdk.storage.fingerprints import DataState


def tfrecord(*records: bytes) -> bytes:
    """Return a file as TensorFlow writes it; the checksums are not looked at."""
    return b"".join(struct.pack("<Q", len(each)) + b"crc_" + each + b"crc_" for each in records)


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(0, 40))
def test_records_of_a_tfrecord_file_are_counted_and_one_that_is_being_written_is_not(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], cut: int
) -> None:
    path = tmp_path_factory.mktemp("data") / "a.tfrecord"
    path.write_bytes(tfrecord(*records))
    assert state_of(str(path)).examples == len(records)
    if records and 0 < cut <= len(records[-1]) + 16:
        path.write_bytes(tfrecord(*records)[:-cut])
        assert state_of(str(path)).examples == len(records) - 1


def test_a_tfrecord_file_of_tensorflow_has_as_many_examples_as_were_written(tmp_path: Path) -> None:
    golden = tfrecord(b"a", b"bb", b"")
    (tmp_path / "part-0.tfrecords").write_bytes(golden)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "part-1.tfrecord").write_bytes(golden)
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}')
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "image.png").write_bytes(b"\n" * 100)
    assert state_of(str(tmp_path)).examples == 3 + 3 + 2 + 0 + 1
    assert state_of(f"{tmp_path}/*.tfrecords").examples == 3
    with pytest.raises(PreconditionError, match="cannot be read: No such file"):
        state_of(str(tmp_path / "nothing"))


def test_a_change_is_one_of_names_sizes_or_times(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    os.utime(tmp_path / "a.csv", (1, 1))
    seen = [state_of(str(tmp_path)).digest]
    os.utime(tmp_path / "a.csv", (1, 2))
    seen.append(state_of(str(tmp_path)).digest)
    (tmp_path / "a.csv").rename(tmp_path / "b.csv")
    seen.append(state_of(str(tmp_path)).digest)
    (tmp_path / "b.csv").write_text("1\n1\n")
    seen.append(state_of(str(tmp_path)).digest)
    assert len(set(seen)) == 4
    assert state_of(str(tmp_path)).digest == seen[-1]


def test_in_a_bucket_each_object_is_an_example_and_a_new_version_is_a_change(mine) -> None:
    for name in ("data/a.csv", "data/b.csv", "other/c.csv"):
        mine.blob(name).upload_from_string("1\n2\n")
    before = state_of("gs://mine/data/")
    assert before.examples == 2
    mine.blob("data/a.csv").upload_from_string("1\n2\n")
    after = state_of("gs://mine/data/")
    assert (after.examples, after.digest != before.digest) == (2, True)
    assert state_of("gs://mine/nothing/").examples == 0
    # A pattern, and no folder with a name that begins alike.
    mine.blob("database/d.csv").upload_from_string("1\n")
    assert state_of("gs://mine/data").examples == 2
    for text, examples in (("data/*.csv", 2), ("da*/b.csv", 1), ("*.csv", 0), ("**", 4)):
        assert state_of(f"gs://mine/{text}").examples == examples, text


def test_at_another_url_each_file_is_an_example() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    for name in ("/rows/a.csv", "/rows/b/c.csv"):
        system.pipe(name, b"1\n")
    before = state_of("memory://rows")
    assert before.examples == 2
    system.pipe("/rows/d.csv", b"1\n")
    assert state_of("memory://rows").digest != before.digest
    for place in ("memory://nothing", "unheard://of", "s3://needs/a/package/that/is/not/here"):
        with pytest.raises(PreconditionError, match=r"cannot be read: [A-Z]"):
            state_of(place)


@pytest.fixture
def firing(tmp_path: Path) -> Callable[[str], Firing]:
    """Return the firing of a program with packaged code."""

    def make(code: str) -> Firing:
        (tmp_path / "train.py").write_text("print(1)\n")
        (tmp_path / "due.py").write_text(code)
        plan = sdk.plan(tmp_path / "train.py", root=tmp_path / "root", name="each")
        bundle.write(bundle.of(plan), Path(plan.code.project), Path(plan.bundle))
        slot = "2027-01-04T03:00:00+01:00"
        return Firing(plan=plan, schedule="each", slot=slot, now=0.0, success_data={})

    return make


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return firing['slot'].startswith('2027')", ""),
        ("return 0", "due:check: it returned a false value"),
        ("print('noise')\n    return 'no data on ' + firing['slot'][:10]", "due:check: no data on 2027-01-04"),
    ],
)
def test_a_function_of_the_packaged_code_decides(firing: Callable[[str], Firing], body: str, reason: str) -> None:
    assert preconditions.unmet(["due:check"], firing(f"def check(firing):\n    {body}\n"))[0] == reason


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("raise ValueError('broken')", "due:check failed: ValueError: broken"),
        ("import os; os._exit(0)", "due:check gave no answer"),
        ("import atexit; atexit.register(print, 'bye')", "due:check gave no answer"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\n'); raise ValueError('caf\xe9')", "ValueError: caf\xe9"),
    ],
)
def test_a_function_without_an_answer_is_an_error_of_its_slot(firing: Callable[[str], Firing], body, sentence) -> None:
    with pytest.raises(PreconditionError, match=sentence):
        preconditions.unmet(["due:check"], firing(f"def check(firing):\n    {body}\n"))


@pytest.mark.process
def test_a_function_that_hangs_is_an_error(firing: Callable[[str], Firing], monkeypatch) -> None:
    monkeypatch.setattr(preconditions, "_FUNCTION_LIMIT_S", 0.5)
    with pytest.raises(PreconditionError, match=r"due:hang took longer than"):
        preconditions.unmet(["due:hang"], firing("import time\ndef hang(firing):\n    time.sleep(60)\n"))


def test_all_preconditions_must_hold_and_the_first_that_does_not_is_the_reason(firing, tmp_path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("1\n2\n")
    made = firing("")
    made = replace(made, plan=replace(made.plan, inputs={"rows": str(rows)}), success="2027-01-03")
    seen = state_of(str(rows))
    again = replace(made, success_data={"rows": seen})
    assert preconditions.unmet(["data_changed(rows)", "min_new_examples(rows, 2)"], made) == ("", {"rows": seen})
    assert preconditions.unmet(["min_new_examples(rows, 3)"], replace(made, success=""))[0].endswith(
        "2 new examples since the beginning"
    )
    reason, _ = preconditions.unmet(["min_new_examples(rows, 1)", "data_changed(rows)"], again)
    assert reason == "min_new_examples(rows, 1): 0 new examples since 2027-01-03"
    fewer = replace(made, success_data={"rows": DataState(digest="", examples=5)})
    assert "-3 new examples" in preconditions.unmet(["min_new_examples(rows, 1)"], fewer)[0]
    with pytest.raises(InputError, match="unknown precondition"):
        preconditions.unmet(["data_change(rows)"], made)
