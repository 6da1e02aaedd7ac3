"""google-cloud-storage against the emulator: every operation on objects, fields that are set, and lists like a pure model."""

from __future__ import annotations

import base64
import io
from urllib.parse import quote

import google_crc32c
import pytest
import requests
import urllib3
from google.api_core import exceptions
from google.cloud.storage import transfer_manager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WRONG = {"crc32c": "AAAAAA==", "md5": base64.b64encode(bytes(16)).decode()}
METADATA = {
    "cacheControl": "no-store",
    "contentDisposition": "attachment; filename=x",
    "contentEncoding": "identity",
    "contentLanguage": "de",
    "contentType": "text/plain",
    "storageClass": "NEARLINE",
    "metadata": {"a": "b"},
}


@pytest.mark.parametrize("name", ["what? #1 100%", "späce ünïcode 日本", "a%2Fb", "..a/../b", "a//b/"])
def test_an_object_of_any_name_comes_back_as_it_was_sent(bucket, name) -> None:
    blob = bucket.blob(name)
    blob.metadata = {"who": "wé"}
    blob.upload_from_string(b"some bytes", content_type="text/x-test", checksum="crc32c")
    assert [each.name for each in bucket.list_blobs()] == [name]
    found = bucket.get_blob(name)
    assert found.download_as_bytes(checksum="crc32c") == found.download_as_bytes(checksum="md5") == b"some bytes"
    crc32c = base64.b64encode(google_crc32c.Checksum(b"some bytes").digest()).decode()
    assert (found.size, found.crc32c, found.content_type) == (10, crc32c, "text/x-test")
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


@pytest.mark.parametrize("size", [10, 9 << 20], ids=["one request", "resumable"])
def test_uploads_obey_all_four_preconditions(bucket, size) -> None:
    def put(**conditions) -> int:
        blob = bucket.blob("object")
        blob.upload_from_file(io.BytesIO(bytes(size)), size=size, retry=None, **conditions)
        return blob.generation

    def refused(**conditions) -> None:
        with pytest.raises(exceptions.PreconditionFailed):
            put(**conditions)

    refused(if_generation_not_match=0)
    refused(if_metageneration_match=1)
    first = put(if_generation_match=0)
    refused(if_generation_match=0)
    second = put(if_generation_match=first, if_metageneration_match=1)
    refused(if_generation_match=first)
    refused(if_generation_not_match=second)
    refused(if_metageneration_not_match=1)
    assert put(if_generation_not_match=first, if_metageneration_not_match=2) > second > first


@pytest.mark.parametrize("checksum", ["crc32c", None])
def test_googles_client_cannot_hide_a_wrong_hash_behind_its_own(bucket, checksum: str | None) -> None:
    blob = bucket.blob("x", chunk_size=256 << 10)
    blob.crc32c = WRONG["crc32c"]
    for size in (100, 300 << 10):
        with pytest.raises(exceptions.BadRequest, match="CRC32C"):
            blob._properties["crc32c"] = WRONG["crc32c"]
            blob.upload_from_file(io.BytesIO(bytes(size)), checksum=checksum, retry=None)
    assert bucket.get_blob("x") is None


def test_each_of_several_headers_with_hashes_counts_and_none_is_unknown(bucket, gcs) -> None:
    url = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
    md5, crc32c = "md5=ndTkYSaMgDT1yFZOFVxnpg==", "crc32c=qTxfkw=="
    wrong, unknown = f"crc32c={WRONG['crc32c']}", "crc32=AAAAAA=="
    for hashes, status in (((md5, wrong), 400), ((wrong, md5), 400), ((unknown,), 400), ((md5, crc32c), 200)):
        assert list(bucket.list_blobs()) == []
        headers = urllib3.HTTPHeaderDict([("x-goog-hash", each) for each in hashes])
        answer = urllib3.request("POST", url, body=b"x", headers=headers)
        assert (answer.status, unknown in answer.data.decode()) == (status, unknown in hashes), hashes
    wrong = {"Content-MD5": WRONG["md5"]}
    assert requests.post(url, b"x", headers=wrong).status_code == 400


def test_every_way_of_uploading_keeps_the_same_metadata(bucket, gcs, tmp_path) -> None:
    def new(name: str):
        blob = bucket.blob(name)
        for key, value in METADATA.items():
            blob._patch_property(key, value)
        return blob

    new("multipart").upload_from_string("x", content_type="text/plain")
    new("resumable").upload_from_file(io.BytesIO(bytes(9 << 20)), content_type="text/plain")
    source, in_threads = tmp_path / "large", {"chunk_size": 5 << 20, "worker_type": transfer_manager.THREAD}
    source.write_bytes(bytes(6 << 20))
    transfer_manager.upload_chunks_concurrently(str(source), new("in parts"), **in_threads)
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": "attachment; filename=x",
        "Content-Encoding": "identity",
        "Content-Language": "de",
        "Content-Type": "text/plain",
        "x-goog-storage-class": "nearline",
        "x-goog-meta-a": "b",
    }
    assert requests.put(f"{gcs.url}/bucket/xml", b"x", headers=headers).status_code == 200
    for name in ("multipart", "resumable", "in parts", "xml"):
        found = bucket.get_blob(name)._properties
        assert {field: found.get(field) for field in METADATA} == METADATA, name
    start = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=encoded&contentEncoding=gzip"
    requests.put(requests.post(start, json={}).headers["Location"], b"x")
    assert bucket.get_blob("encoded").content_encoding == "gzip"


ALPHABET = "ab/\U0010ffff\ud7ffé"
names = st.text(ALPHABET, min_size=1, max_size=5)
maybe = st.one_of(st.just(""), st.text(ALPHABET, max_size=3))


def model(there: set[str], asked: dict[str, str]) -> list[tuple[str, str]]:
    """Return ("item" or "prefix", name) in order."""
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    start, end = asked.get("startOffset", ""), asked.get("endOffset", "")
    shown = set()
    for name in there:
        if not name.startswith(prefix) or name < start or (end and name >= end):
            continue
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        if at < 0:
            shown.add(("item", name))
            continue
        group = name[: at + len(delimiter)]
        shown.add(("prefix", group))
        if asked.get("includeTrailingDelimiter") == "true" and name == group:
            shown.add(("item", name))
    return sorted(shown, key=lambda each: (each[1].encode(), each[0] == "item"))


def listed(url: str, asked: dict[str, str], page_size: int) -> list[tuple[str, str]]:
    """Return what all pages show, and check each of them."""
    found, token = [], ""
    while True:
        more = {"pageToken": token} if token else {}
        answer = requests.get(f"{url}/storage/v1/b/bucket/o", {**asked, **more, "maxResults": str(page_size)})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        items = [("item", each["name"]) for each in page.get("items", [])]
        prefixes = [("prefix", name) for name in page.get("prefixes", [])]
        assert [name for _, name in items] == sorted(name for _, name in items)
        assert len(items) + len(prefixes) <= page_size
        found += sorted(items + prefixes, key=lambda each: (each[1].encode(), each[0] == "item"))
        token = page.get("nextPageToken", "")
        if not token:
            return found
        assert len(items) + len(prefixes) == page_size


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pages_show_the_same_as_the_model(gcs, data) -> None:
    gcs.reset()
    session = requests.Session()
    session.post(f"{gcs.url}/storage/v1/b", json={"name": "bucket"})
    there = data.draw(st.sets(names, max_size=12).map(lambda found: found - {".", ".."}))
    for name in there:
        url = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}"
        assert session.post(url, b"").status_code == 200
    for _ in range(4):
        asked = {
            "prefix": data.draw(maybe),
            "delimiter": data.draw(st.sampled_from(["", "/", "a", "//"])),
            "startOffset": data.draw(maybe),
            "endOffset": data.draw(maybe),
            "includeTrailingDelimiter": data.draw(st.sampled_from(["false", "true"])),
        }
        assert listed(gcs.url, asked, data.draw(st.integers(1, 5))) == model(there, asked)


def test_globs(bucket) -> None:
    for name in ("a.bin", "a.txt", "b.txt", "d/c.txt", "d/e/f.txt"):
        bucket.blob(name).upload_from_string("")
    for glob, expected in (
        ("*.txt", ["a.txt", "b.txt"]),
        ("**.txt", ["a.txt", "b.txt", "d/c.txt", "d/e/f.txt"]),
        ("d/**/f.txt", ["d/e/f.txt"]),
        ("?.{txt,bin}", ["a.bin", "a.txt", "b.txt"]),
        ("[!a].txt", ["b.txt"]),
        ("[a-b].txt", ["a.txt", "b.txt"]),
    ):
        assert [each.name for each in bucket.list_blobs(match_glob=glob)] == expected, glob
