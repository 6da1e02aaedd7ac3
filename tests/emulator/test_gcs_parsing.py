"""Bodies and headers that no client sends on purpose: an object holds the bytes sent, or the answer is 400 without one."""

from __future__ import annotations

import json
import random

import pytest
import requests
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import any_json

from sdk.emulator.gcs.downloads import parse_range
from sdk.emulator.gcs.errors import StorageApiError
from sdk.emulator.gcs.resumable import parse_content_range
from sdk.emulator.gcs.uploads import MultipartParser

QUANTUM = 256 << 10
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def framed(data: bytes, newline: bytes, boundary: bytes, metadata: dict) -> bytes:
    mark = b"--" + boundary
    lines = [mark, b"Content-Type: application/json", b"", json.dumps(metadata).encode()]
    lines += [mark, b"content-type: text/x", b"", data, mark + b"--"]
    return newline.join(lines)


@quick
@given(
    data=st.binary(max_size=200) | st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--", b"==", b"x"])).map(b"".join),
    newline=st.sampled_from([b"\r\n", b"\n"]),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    tail=st.sampled_from([b"", b"\r\n", b"\n", b"epilogue"]),
)
@example(data=b"\r", newline=b"\n", cuts=[], tail=b"")
@example(data=b"", newline=b"\r\n", cuts=list(range(200)), tail=b"")
def test_a_multipart_body_in_any_pieces_gives_its_bytes(data, newline, cuts, tail) -> None:
    boundary = b"==0=="
    if newline + b"--" + boundary in newline + data:
        return
    body = framed(data, newline, boundary, {"name": "x"}) + tail
    parser, found = MultipartParser(boundary), b""
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(body)], strict=True):
        found += parser.feed(body[start:stop])
    parser.finish()
    assert (found, parser.metadata, parser.content_type) == (data, {"name": "x"}, "text/x")


@quick
@given(body=st.binary(max_size=300), flips=st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=4))
def test_a_broken_multipart_body_is_an_error_and_never_a_crash(body, flips) -> None:
    good = framed(b"data" * 10, b"\r\n", b"b", {"name": "x"})
    for at, other in flips:
        good = good[:at] + other + good[at + 1 :]
    for each in (body, good, good[: len(good) // 2]):
        parser = MultipartParser(b"b")
        try:
            parser.feed(each)
            parser.finish()
        except StorageApiError as error:
            assert error.code == 400


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, None), ("bytes=0-0", (0, 1)), ("bytes=0-99", (0, 10)), ("bytes=9-", (9, 10)), ("bytes=-1", (9, 10)),
     ("bytes=-99", (0, 10)), ("bytes=5-4", None), ("bytes=-", None), ("bytes=1-2,4-5", None), ("lines=1-2", None)],
)  # fmt: skip
def test_a_range_names_bytes_from_the_first_to_the_last_one(header, expected) -> None:
    assert parse_range(header, 10) == expected


@settings(quick)
@given(st.text("bytes=-0123456789,/* ", max_size=25) | st.text(max_size=10))
def test_no_range_header_is_a_crash(text) -> None:
    for parse in (lambda: parse_range(text, 10), lambda: parse_content_range(text)):
        try:
            parse()
        except StorageApiError as error:
            assert error.code in (400, 416)


@settings(quick, max_examples=25)
@given(data=st.data())
def test_a_resumable_upload_in_any_order_of_steps_ends_with_the_bytes_sent(gcs, data) -> None:
    gcs.reset()
    session = requests.Session()
    session.post(f"{gcs.url}/storage/v1/b", json={"name": "bucket"})
    draws = random.Random(data.draw(st.integers(0, 9)))
    content = draws.randbytes(data.draw(st.sampled_from([0, 5, QUANTUM, 3 * QUANTUM + 7])))
    base = f"{gcs.url}/upload/storage/v1/b/bucket/o"
    place = session.post(f"{base}?uploadType=resumable&name=x").headers["Location"]
    have = 0
    for _ in range(data.draw(st.integers(0, 6))):
        start = data.draw(st.sampled_from([0, have, max(have - QUANTUM, 0), have + 1]))
        stop = data.draw(st.sampled_from([start + QUANTUM, start + 10, len(content)]))
        piece = content[start:stop]
        ranged = f"bytes {start}-{start + len(piece) - 1}/*" if piece else "bytes */*"
        answer = session.put(place, piece, headers={"Content-Range": ranged})
        assert answer.status_code in (308, 400), answer.text
        known = session.put(place, headers={"Content-Range": "bytes */*"}).headers.get("Range")
        now = int(known.partition("-")[2]) + 1 if known else 0
        assert now >= have
        assert now % QUANTUM == 0 or now == len(content)
        have = now
    # The last chunk may repeat stored bytes.
    have = data.draw(st.sampled_from([0, max(have - QUANTUM, 0), have]))
    rest = content[have:]
    ranged = f"bytes {have}-{len(content) - 1}/{len(content)}" if rest else f"bytes */{len(content)}"
    answer = session.put(place, rest, headers={"Content-Range": ranged})
    assert answer.status_code == 200, answer.text
    assert session.get(f"{gcs.url}/bucket/x").content == content
    assert session.put(place, headers={"Content-Range": "bytes */*"}).json() == answer.json()


NAMES = (
    "autoclass", "customPlacementConfig", "iamConfiguration", "labels", "softDeletePolicy", "versioning", "lifecycle",
    "location", "storageClass", "cors", "rule", "action", "type", "condition", "retentionDurationSeconds", "enabled",
    "customTime", "metadata", "contentType", "sourceObjects", "name", "generation", "destination", "bindings", "members",
)  # fmt: skip
WORDS = ["9" * 5000, "2026-13-45T08:00:00Z", "2026-11-28T24:00:60+99:99", "serviceAccount:x", "Delete", "x"]
JSON = any_json(st.sampled_from(WORDS), keys=st.sampled_from(NAMES))
PLACES = [(m, p) for m in ("PATCH", "PUT") for p in ("b/bucket", "b/bucket/o/x")]
PLACES += [("POST", "b/bucket/o/y/compose"), ("PUT", "b/bucket/iam")]
BODIES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)


@settings(quick, max_examples=40)
@given(sent=st.tuples(st.sampled_from(PLACES), BODIES))
@example(sent=(("PUT", "b/bucket/iam"), {"bindings": ["x"]}))
@example(sent=(("PUT", "b/bucket/iam"), {"bindings": [{"members": 5}]}))
@example(sent=(("PATCH", "b/bucket"), {"softDeletePolicy": {"retentionDurationSeconds": "9" * 5000}}))
def test_a_body_of_any_json_is_stored_or_refused_and_never_a_crash(gcs, bucket, sent) -> None:
    bucket.blob("x").upload_from_string("x")
    (method, path), body = sent
    answer = requests.request(method, f"{gcs.url}/storage/v1/{path}", json=body)
    assert answer.status_code < 500, answer.text
    for stored in ("b/bucket", "b/bucket/o", "b/bucket/iam"):
        assert requests.get(f"{gcs.url}/storage/v1/{stored}").status_code == 200
