"""Preconditions: the requests that each of them lets through."""

from __future__ import annotations

import io

import pytest
from google.api_core import exceptions

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
