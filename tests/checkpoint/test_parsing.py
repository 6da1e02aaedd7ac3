"""What somebody else may have written into a store: every byte of it is read as data, and nothing else happens."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdk.checkpoint import names, opening
from sdk.checkpoint.contents import decode_receipt
from sdk.checkpoint.envelope import unwrap, wrap
from sdk.checkpoint.manifest import ArrayEntry, BlobEntry, FileEntry, Manifest, decode, encode
from sdk.checkpoint.names import CheckpointId
from sdk.errors import CorruptCheckpointError, FutureFormatError
from sdk.storage.checksums import crc32c

FOLDER = "data/e000001/000000000007-01234567/"


def file(index: int, size: int, rank: int = 0, kind: str = "arrays") -> FileEntry:
    key = names.packed(FOLDER, rank, index)
    return FileEntry(key=key, size=size, crc32c=1, generation="g", rank=rank, kind=kind)


GOOD = Manifest(
    epoch=1,
    step=7,
    serial=0,
    nonce="n",
    files=(file(0, 64), file(1, 6), file(2, 3, kind="blobs"), file(0, 4, 1, "blobs")),
    arrays=(
        ArrayEntry(path="a", dtype="float32", shape=(2, 1), offset=0, nbytes=8),
        ArrayEntry(path="b", dtype="int8", shape=(6,), offset=64, nbytes=6),
    ),
    blobs=(BlobEntry(rank=0, name="rng", offset=0, nbytes=3), BlobEntry(rank=1, name="rng", offset=0, nbytes=4)),
    ranks=2,
    total_bytes=77,
    metrics={"loss": 0.5, "odd": float("inf")},
)


def second(**changes: object) -> dict[str, object]:
    """Return the manifest's arrays with another second one."""
    return {"arrays": (GOOD.arrays[0], replace(GOOD.arrays[1], **changes))}


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode(encode(GOOD)) == GOOD
    for loss in (1e30, -1e30, 1e308):
        assert decode(encode(replace(GOOD, metrics={"loss": loss}))).metrics == {"loss": loss}
    assert str(decode(encode(replace(GOOD, metrics={"x": float("nan")}))).metrics["x"]) == "nan"


def test_a_backslash_or_control_character_in_a_text_is_no_half_of_a_surrogate_pair() -> None:
    texts = ("C:\\udata\\ud800", "\x1b", "\U0001f600")
    assert decode(encode(replace(GOOD, downgrades=texts))).downgrades == texts


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": (*GOOD.files, GOOD.files[0])}, "a file twice"),
        ({"files": GOOD.files[1:], "total_bytes": 13}, "its arrays do not match its files"),
        ({"files": (*GOOD.files, file(9, 10)), "total_bytes": 87}, "its arrays do not match its files"),
        ({"files": GOOD.files[:-1], "total_bytes": 73}, "the blobs of rank 1"),
        ({"total_bytes": 1}, "do not add up"),
        ({"ranks": 1}, "a file of an unknown task"),
        ({"arrays": (GOOD.arrays[0], GOOD.arrays[0])}, "an array twice"),
        (second(offset=0), "its arrays do not match"),
        (second(nbytes=1 << 50), "its arrays do not match"),
        ({"blobs": (GOOD.blobs[0], GOOD.blobs[0])}, "a blob twice"),
        ({"blobs": (GOOD.blobs[0], replace(GOOD.blobs[1], offset=1))}, "the blobs of rank 1"),
        ({"blobs": (*GOOD.blobs, BlobEntry(rank=2, name="rng", offset=0, nbytes=0))}, "a blob of an unknown task"),
        ({"reason": "because"}, "not written by podlift: 'reason' is 'because', not one of interval, preempt"),
        ({"ranks": 0}, "'ranks' is 0, not a number from 1 to 100000"),
        ({"created_at": 1e17}, "'created_at' is 1e\\+17, not a unix time"),
        ({"total_bytes": 10**200}, r"'total_bytes' is 10{99}, not a number from 0 to 2\*\*60"),
        ({"timings": {"write_s": 10**400}}, "too large"),
        ({"position": {"stages": [], "at": {"epoch": -1, "batch": 0}}}, "the epoch of its position is -1"),
        ({"position": {"stages": [], "at": {"epoch": 0, "batch": "x"}}}, "the batch of its position is 'x'"),
        (second(dtype="object"), "the dtype 'object', which is none of numbers"),
        (second(shape=(1 << 40,)), "which are not 6 bytes"),
        (second(shape=(-1, -6)), "'shape' is -1"),
        ({"step": True}, "step is bool"),
        ({"files": (replace(GOOD.files[0], key="../../etc/passwd"),)}, "not a file of a checkpoint"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=said):
        decode(encode(replace(GOOD, **change)))


@settings(max_examples=30)
@given(
    at=st.integers(0, 1),
    dtype=st.sampled_from(["float32", "int8", "object", "O", "V8", "str", "bfloat16", "float8_e4m3fn", "int4", ""])
    | st.text(max_size=12),
    shape=st.lists(st.integers(-2, 9) | st.sampled_from([1 << 40, 1 << 59]), max_size=4),
)
def test_an_array_in_a_manifest_fits_its_bytes_or_is_refused(at: int, dtype: str, shape: list[int]) -> None:
    arrays = list(GOOD.arrays)
    arrays[at] = replace(arrays[at], dtype=dtype, shape=tuple(shape))
    try:
        found = decode(encode(replace(GOOD, arrays=tuple(arrays)))).arrays[at]
    except CorruptCheckpointError:
        return
    size = {"float32": 4, "bfloat16": 2}.get(found.dtype, 1)
    assert all(each >= 0 for each in found.shape)
    if found.dtype in ("float32", "int8", "bfloat16", "float8_e4m3fn", "int4"):
        assert np.prod(found.shape, dtype=object) * size == found.nbytes
    assert found.dtype not in ("object", "O", "V8", "str", "")


def test_a_manifest_of_a_newer_format_says_so() -> None:
    body = unwrap("manifest", encode(GOOD))
    with pytest.raises(FutureFormatError, match="its format is 2; this podlift reads 1"):
        decode(wrap("manifest", {**body, "format_version": 2}))
    for version in (0, True):
        with pytest.raises(CorruptCheckpointError, match="no valid format_version"):
            decode(wrap("manifest", {**body, "format_version": version}))


@given(st.binary(max_size=300))
def test_no_bytes_at_all_are_more_than_refused(data: bytes) -> None:
    receipt = partial(decode_receipt, checkpoint_id=CheckpointId(1, 2, 0), nonce="n", rank=1)
    for read in (decode, opening.decode_lease, opening._parse, receipt):
        with pytest.raises(CorruptCheckpointError):
            read(data)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 10_000, "NaN", "null", "[]", '{"format_version": true}', '{"a": 1} x', '"\ud800"']
)
def test_json_that_is_built_to_hurt_is_refused(text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    with pytest.raises(CorruptCheckpointError):
        decode(b'{"podlift": "manifest", "crc32c": "%08x"}\n' % crc32c([raw]) + raw)


@given(st.integers(min_value=0), st.integers(0, 7))
def test_a_flipped_bit_of_an_object_is_noticed_before_its_store_looks(place: int, bit: int) -> None:
    data = bytearray(encode(GOOD))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(CorruptCheckpointError):
        decode(data)


@given(st.integers(0, 10**7), st.integers(0, 10**13), st.integers(0, 10**7))
def test_the_name_of_a_commit_says_its_place_and_its_data_is_found_by_it(epoch: int, step: int, serial: int) -> None:
    place = CheckpointId(epoch, step, serial)
    assert names.parse_commit(names.commit(place)) == place
    folder = names.folder(place, "nonce")
    for key in (names.packed(folder, 3, 4), names.receipt(folder, 3)):
        assert names.parse_data_key(key) == (folder, epoch, step)
    assert names.folder_is_of(folder, place)
    assert not names.folder_is_of(folder, CheckpointId(epoch, step + 1, serial))


@pytest.mark.parametrize("key", ["e1/2-3.json", "e000001/000000000001-000001.json.part", "LATEST", "e0000001/1-1.json"])
def test_a_foreign_object_is_no_commit(key: str) -> None:
    assert names.parse_commit(f"commits/{key}") is None
