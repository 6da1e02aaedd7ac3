"""Preconditions: what each of them lets through, and that of many at once one wins."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.api_core import exceptions

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
