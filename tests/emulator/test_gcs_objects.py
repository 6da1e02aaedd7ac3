"""google-cloud-storage against the emulator: every operation of a client on objects and buckets."""

from __future__ import annotations

import base64
import io

import google_crc32c
import pytest
from google.api_core import exceptions

NAMES = ["what? #1 100%", "späce ünïcode 日本", "a%2Fb", "..a/../b", "a//b/"]


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


@pytest.mark.parametrize("name", NAMES)
def test_an_object_of_any_name_comes_back_as_it_was_sent(bucket, name) -> None:
    blob = bucket.blob(name)
    blob.metadata = {"who": "wé"}
    blob.upload_from_string(b"some bytes", content_type="text/x-test", checksum="crc32c")
    assert [each.name for each in bucket.list_blobs()] == [name]
    found = bucket.get_blob(name)
    assert found.download_as_bytes(checksum="crc32c") == found.download_as_bytes(checksum="md5") == b"some bytes"
    assert (found.size, found.crc32c, found.content_type) == (10, crc32c(b"some bytes"), "text/x-test")
    assert found.metadata == {"who": "wé"}
    assert (found.generation, found.metageneration) == (blob.generation, 1)
    found.delete()
    assert not blob.exists()


def test_a_resumable_upload_in_chunks_and_one_of_unknown_size(bucket, gcs) -> None:
    data = bytes(1 << 20) + b"tail"
    blob = bucket.blob("chunks", chunk_size=256 << 10)
    blob.upload_from_file(io.BytesIO(data))
    with bucket.blob("unknown").open("wb", chunk_size=256 << 10) as file:
        file.write(data)
    assert bucket.blob("chunks").download_as_bytes() == bucket.blob("unknown").download_as_bytes() == data
    assert gcs.requests().operations["uploads.chunk"] >= 10
    with pytest.raises(RuntimeError), bucket.blob("never").open("wb", chunk_size=256 << 10) as file:
        file.write(data)
        raise RuntimeError
    assert not bucket.blob("never").exists()


def test_copies_and_moves_keep_bytes_and_metadata(bucket, gcs) -> None:
    other = gcs.client().create_bucket("other")
    blob = bucket.blob("from")
    blob.metadata = {"a": "1"}
    blob.upload_from_string(b"bytes", content_type="text/plain")
    copied = bucket.copy_blob(blob, other, "a/copy")
    assert (copied.download_as_bytes(), copied.metadata, copied.content_type) == (b"bytes", {"a": "1"}, "text/plain")
    token, written, total = other.blob("rewritten").rewrite(blob)
    assert (token, written, total) == (None, 5, 5)
    moved = bucket.move_blob(blob, "to", if_generation_match=0)
    assert moved.download_as_bytes() == b"bytes"
    assert [each.name for each in bucket.list_blobs()] == ["to"]
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.copy_blob(moved, other, "a/copy", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        other.blob("new").rewrite(moved, if_source_generation_match=1)
    with pytest.raises(exceptions.NotFound):
        bucket.copy_blob(blob, other, "nothing")


def test_a_bucket_with_versioning_keeps_replaced_and_deleted_objects(gcs) -> None:
    bucket = gcs.client().bucket("versioned")
    bucket.versioning_enabled = True
    bucket.create()
    blob = bucket.blob("object")
    blob.upload_from_string("one")
    first = blob.generation
    blob.upload_from_string("two")
    bucket.blob("object").delete()
    assert list(bucket.list_blobs()) == []
    kept = list(bucket.list_blobs(versions=True))
    assert [each.download_as_bytes() for each in kept] == [b"one", b"two"]
    assert all(each.time_deleted for each in kept)
    bucket.blob("object", generation=first).delete()
    assert [each.generation for each in bucket.list_blobs(versions=True)] == [blob.generation]


def test_batches_delete_many_and_say_which_were_not_there(bucket, gcs) -> None:
    for number in range(5):
        bucket.blob(f"a {number}?").upload_from_string("x")
    client = bucket.client
    with client.batch():
        for number in range(4):
            bucket.blob(f"a {number}?").delete()
    assert [each.name for each in bucket.list_blobs()] == ["a 4?"]
    with pytest.raises(exceptions.NotFound), client.batch():
        bucket.blob("nothing").delete()
        bucket.blob("a 4?").delete()
    assert list(bucket.list_blobs()) == []
    assert gcs.requests().operations["batch"] == 2
