"""Preconditions: what each of them lets through, and that of many at once one wins."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import requests
from google.api_core import exceptions
from google.cloud import storage

RACERS = 8
LARGE = 9 << 20


def put(blob, data: bytes, **conditions) -> None:
    blob.upload_from_file(io.BytesIO(data), size=len(data), retry=None, **conditions)


@pytest.mark.parametrize("size", [10, LARGE], ids=["one request", "resumable"])
def test_uploads_obey_all_four(bucket, size) -> None:
    data = bytes(size)

    def refused(**conditions) -> None:
        with pytest.raises(exceptions.PreconditionFailed):
            put(bucket.blob("object"), data, **conditions)

    refused(if_generation_not_match=0)
    refused(if_metageneration_match=1)
    put(bucket.blob("object"), data, if_generation_match=0)
    refused(if_generation_match=0)
    first = bucket.get_blob("object").generation
    put(bucket.blob("object"), data, if_generation_match=first, if_metageneration_match=1)
    refused(if_generation_match=first)
    second = bucket.get_blob("object").generation
    refused(if_generation_not_match=second)
    refused(if_metageneration_not_match=1)
    put(bucket.blob("object"), data, if_generation_not_match=first, if_metageneration_not_match=2)
    assert bucket.get_blob("object").generation > second > first


def test_reading_changing_and_deleting_obey_them_too(bucket) -> None:
    blob = bucket.blob("object")
    blob.upload_from_string("x")
    right, wrong = blob.generation, blob.generation + 1
    for attempt in (
        lambda **conditions: bucket.blob("object").download_as_bytes(retry=None, **conditions),
        lambda **conditions: bucket.blob("object").reload(retry=None, **conditions),
        lambda **conditions: bucket.blob("object").patch(retry=None, **conditions),
        lambda **conditions: bucket.blob("object").delete(retry=None, **conditions),
    ):
        blob.upload_from_string("x")
        right, wrong = blob.generation, blob.generation + 1
        for conditions in ({"if_generation_match": wrong}, {"if_metageneration_match": 7}):
            with pytest.raises(exceptions.PreconditionFailed):
                attempt(**conditions)
        with pytest.raises((exceptions.PreconditionFailed, exceptions.NotModified)):
            attempt(if_generation_not_match=right)
        attempt(if_generation_match=right, if_metageneration_match=1, if_metageneration_not_match=7)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("object").delete(if_generation_match=right)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("object").download_as_bytes(if_generation_match=right)


def test_a_bucket_has_a_metageneration_too(bucket) -> None:
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.patch(if_metageneration_match=9)
    bucket.patch(if_metageneration_match=1)
    assert bucket.metageneration == 2


@pytest.mark.parametrize("query", ["ifGenerationmatch=0", "ifGenerationMatch=-1", "ifGenerationMatch=", "generation=x"])
def test_a_precondition_that_cannot_be_read_is_an_error(bucket, gcs, query) -> None:
    url = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=media&name=x&{query}"
    answer = requests.post(url, b"x")
    assert answer.status_code == 400, answer.text
    assert list(bucket.list_blobs()) == []


@pytest.mark.parametrize("size", [100, 300 << 10])
def test_of_many_that_create_an_object_at_once_one_wins(bucket, gcs, size) -> None:
    def create(racer: int) -> bool:
        try:
            put(gcs.client().bucket("bucket").blob("lock"), bytes([racer]) * size, if_generation_match=0)
        except exceptions.PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        won = list(pool.map(create, range(RACERS)))
    assert sum(won) == 1
    assert bucket.blob("lock").download_as_bytes() == bytes([won.index(True)]) * size


def count_up(client: storage.Client, times: int) -> None:
    """Raise the number in an object by one, that many times, by compare and swap."""
    while times:
        blob = client.bucket("bucket").get_blob("counter")
        with suppress(exceptions.PreconditionFailed, exceptions.NotFound):
            value = int(blob.download_as_bytes(if_generation_match=blob.generation, retry=None))
            put(blob, str(value + 1).encode(), if_generation_match=blob.generation)
            times -= 1


def test_compare_and_swap_by_several_clients_loses_no_count(bucket, gcs) -> None:
    bucket.blob("counter").upload_from_string("0")
    clients, times = 3, 8
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda _: count_up(gcs.client(), times), range(clients)))
    assert int(bucket.blob("counter").download_as_bytes()) == clients * times
