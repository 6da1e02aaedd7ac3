"""Each fault as google-cloud-storage meets it: the answer, and the stored objects afterwards."""

from __future__ import annotations

import io

import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY

FAST = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02).with_timeout(20)
CUT = (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError)


def put(bucket, data: bytes = b"0123456789", **options) -> None:
    bucket.blob("object").upload_from_file(io.BytesIO(data), size=len(data), **{"retry": None, **options})


def stored(bucket) -> bytes | None:
    blob = bucket.get_blob("object")
    return None if blob is None else blob.download_as_bytes()


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_status_before_the_work_leaves_nothing(bucket, gcs, status) -> None:
    gcs.faults({"kind": "status_before", "status": status, "operation": "objects.insert", "nth": [1, 2]})
    with pytest.raises(exceptions.GoogleAPICallError) as failed:
        put(bucket)
    assert failed.value.code == status
    assert stored(bucket) is None
    if status != 403:
        put(bucket, retry=FAST)
        assert stored(bucket) == b"0123456789"


@pytest.mark.parametrize("kind", ["drop_after", "status_after"])
def test_a_create_with_a_lost_answer_has_happened_and_its_retry_receives_412(bucket, gcs, kind) -> None:
    gcs.faults({"kind": kind, "object": "object$", "method": "POST", "nth": 1})
    with pytest.raises(exceptions.PreconditionFailed):
        put(bucket, if_generation_match=0, retry=FAST)
    assert stored(bucket) == b"0123456789"
    assert gcs.requests().operations["objects.insert"] == 2


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "status_before", "status_after"])
def test_chunks_that_fail_are_resumed_not_repeated(bucket, gcs, kind) -> None:
    gcs.faults({"kind": kind, "operation": "uploads.chunk", "nth": [2, 4]})
    data = bytes(range(256)) * 4096 * 2
    blob = bucket.blob("object", chunk_size=256 << 10)
    blob.upload_from_file(io.BytesIO(data), checksum="crc32c", retry=FAST)
    assert stored(bucket) == data
    assert gcs.requests().operations["uploads.chunk"] == 9 + 2


@pytest.mark.parametrize("status", [404, 410])
def test_a_lost_session_ends_the_upload_and_leaves_nothing(bucket, gcs, status) -> None:
    gcs.faults({"kind": "lose_session", "operation": "uploads.chunk", "nth": 3, "status": status})
    blob = bucket.blob("object", chunk_size=256 << 10)
    with pytest.raises(exceptions.GoogleAPICallError) as failed:
        blob.upload_from_file(io.BytesIO(bytes(1 << 20)), retry=FAST)
    assert failed.value.code == status
    assert stored(bucket) is None


def test_a_truncated_download_is_resumed_or_noticed(bucket, gcs) -> None:
    data = bytes(range(256)) * 4096
    put(bucket, data)
    gcs.faults({"kind": "truncate", "operation": "objects.download", "nth": [1, 3]})
    target = io.BytesIO()
    bucket.blob("object").download_to_file(target, retry=FAST)
    assert target.getvalue() == data
    with pytest.raises((*CUT, DataCorruption)):
        bucket.blob("object").download_as_bytes(retry=None)


def test_bytes_that_are_changed_on_the_wire_are_refused_when_a_checksum_was_declared(bucket, gcs) -> None:
    gcs.faults({"kind": "corrupt", "at": "wire", "at_byte": 4, "method": "POST"})
    with pytest.raises(exceptions.BadRequest, match="CRC32C"):
        put(bucket, checksum="crc32c")
    assert stored(bucket) is None
    put(bucket, checksum=None)
    assert stored(bucket) == b"0123556789"


def statuses(gcs, times: int = 25) -> list[int]:
    gcs.forget_requests()
    for _ in range(times):
        requests.get(f"{gcs.url}/storage/v1/b/bucket")
    return [each["status"] for each in gcs.requests().recent]


def test_a_probability_draws_the_same_from_the_same_seed(bucket, gcs) -> None:
    rule = {"kind": "status_before", "probability": 0.3, "seed": 7}
    drawn = []
    for seed in (7, 7, 8):
        gcs.faults({**rule, "seed": seed})
        drawn.append(statuses(gcs))
    assert drawn[0] == drawn[1] != drawn[2]
    assert 1 <= drawn[0].count(503) <= 24
    gcs.faults({"kind": "latency", "api": "vertex"}, rule)
    assert statuses(gcs) == drawn[0], "a rule for the other service changes nothing"


def test_rules_match_by_operation_method_path_and_object_and_are_counted(bucket, gcs) -> None:
    gcs.faults(
        {"kind": "status_before", "path": r"alt=media", "status": 500},
        {"kind": "status_before", "object": r"^bucket/a b\?$", "method": "delete", "status": 501},
        {"kind": "status_before", "operation": "buckets.get", "times": 1, "status": 502},
    )
    blob = bucket.blob("a b?")
    blob.upload_from_string("x", retry=None)
    for attempt, code in (
        (lambda: blob.download_as_bytes(retry=None), 500),
        (lambda: blob.delete(retry=None), 501),
        (lambda: bucket.reload(retry=None), 502),
    ):
        with pytest.raises(exceptions.GoogleAPICallError) as failed:
            attempt()
        assert failed.value.code == code
    bucket.reload(retry=None)
    told = gcs.ask("GET", "/_faults")["faults"]
    assert [(each["matched"], each["fired"]) for each in told] == [(1, 1), (1, 1), (2, 1)]
    gcs.faults()
    blob.delete(retry=None)
