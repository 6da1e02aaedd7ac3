"""What the two headers that speak of bytes mean, byte for byte."""

from __future__ import annotations

import pytest

from sdk.emulator.gcs.downloads import parse_range
from sdk.emulator.gcs.errors import StorageApiError
from sdk.emulator.gcs.resumable import Chunk, parse_content_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=0-9", (0, 10)),
        ("bytes=0-99", (0, 10)),
        ("bytes=9-9", (9, 10)),
        ("bytes=4-", (4, 10)),
        ("bytes=9-", (9, 10)),
        ("bytes=-1", (9, 10)),
        ("bytes=-10", (0, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=5-4", None),
        ("bytes=-", None),
        ("bytes=1-2,4-5", None),
        ("lines=1-2", None),
    ],
)
def test_a_range_names_bytes_from_the_first_to_the_last_one(
    header: str | None, expected: tuple[int, int] | None
) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-10", "bytes=99-", "bytes=-0"])
def test_a_range_of_which_no_byte_is_there_is_refused_with_the_size(header: str) -> None:
    with pytest.raises(StorageApiError) as caught:
        parse_range(header, 10)
    assert (caught.value.code, caught.value.headers) == (416, {"Content-Range": "bytes */10"})


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (0, None, None)),
        ("bytes 0-0/1", (0, 1, 1)),
        ("bytes 0-9/10", (0, 10, 10)),
        ("bytes 5-9/*", (5, 10, None)),
        ("bytes */10", (None, None, 10)),
        ("bytes */*", (None, None, None)),
    ],
)
def test_a_chunk_says_which_bytes_it_brings(header: str | None, expected: tuple[int | None, ...]) -> None:
    start, stop, total = expected
    assert parse_content_range(header) == Chunk(start=start, stop=stop, total=total)


@pytest.mark.parametrize(
    "header", ["bytes 5-4/10", "bytes 0-10/10", "bytes 0-9/9", "bytes 0-9", "0-9/10", "bytes -9/10"]
)
def test_a_chunk_that_contradicts_itself_is_refused(header: str) -> None:
    with pytest.raises(StorageApiError):
        parse_content_range(header)
