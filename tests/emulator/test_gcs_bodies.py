"""What callers set of objects and buckets: kept wherever it comes in, checked, and refused where it is not known."""

from __future__ import annotations

import base64
import io
import random

import pytest
import requests
import urllib3
from google.api_core import exceptions
from google.cloud.storage import transfer_manager

WRONG = {"crc32c": "AAAAAA==", "md5": base64.b64encode(bytes(16)).decode()}
METADATA = {
    "cacheControl": "no-store",
    "contentDisposition": "attachment; filename=x",
    "contentEncoding": "identity",
    "contentLanguage": "de",
    "contentType": "text/plain",
    "customTime": "2026-11-22T08:00:00Z",
    "storageClass": "NEARLINE",
    "metadata": {"a": "b"},
}


@pytest.mark.parametrize("kind", ["crc32c", "md5"])
@pytest.mark.parametrize("place", ["body", "header"])
def test_a_wrong_hash_at_the_start_of_a_resumable_upload_is_refused_whatever_comes_later(
    bucket, gcs, kind, place
) -> None:
    start = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=x"
    field = {"crc32c": "crc32c", "md5": "md5Hash"}[kind]
    given = {field: WRONG[kind]} if place == "body" else {}
    headers = {"X-Goog-Hash": f"{kind}={WRONG[kind]}"} if place == "header" else {}
    url = requests.post(start, json=given, headers=headers).headers["Location"]
    bucket.blob("right").upload_from_string(b"data", checksum=None)
    there = bucket.get_blob("right")
    right = {"crc32c": there.crc32c, "md5": there.md5_hash}
    answer = requests.put(url, b"data", headers={"X-Goog-Hash": f"{kind}={right[kind]}"})
    assert answer.status_code == 400 and "doesn't match calculated" in answer.text
    assert bucket.get_blob("x") is None


@pytest.mark.parametrize("checksum", ["crc32c", None])
def test_googles_client_cannot_hide_a_wrong_hash_behind_its_own(bucket, checksum: str | None) -> None:
    blob = bucket.blob("x", chunk_size=256 << 10)
    blob.crc32c = WRONG["crc32c"]
    for size in (100, 300 << 10):
        with pytest.raises(exceptions.BadRequest, match="CRC32C"):
            blob._properties["crc32c"] = WRONG["crc32c"]
            blob.upload_from_file(io.BytesIO(bytes(size)), checksum=checksum, retry=None)
    assert bucket.get_blob("x") is None


@pytest.mark.parametrize("again", [0, 256 << 10], ids=["everything", "its second half"])
def test_what_a_chunk_repeats_is_stored_once(bucket, gcs, again: int) -> None:
    url = requests.post(f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=x").headers["Location"]
    data, half = random.Random(1).randbytes(700_000), 512 << 10
    assert requests.put(url, data[:half], headers={"Content-Range": f"bytes 0-{half - 1}/*"}).status_code == 308
    rest = {"Content-Range": f"bytes {again}-{len(data) - 1}/{len(data)}"}
    answer = requests.put(url, data[again:], headers=rest)
    assert answer.status_code == 200, answer.text
    assert bucket.blob("x").download_as_bytes() == data


def test_a_chunk_behind_a_gap_is_refused_and_the_upload_goes_on_where_it_was(bucket, gcs) -> None:
    url = requests.post(f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=x").headers["Location"]
    chunks = [random.Random(number).randbytes(256 << 10) for number in range(3)]
    places = [f"bytes {number << 18}-{((number + 1) << 18) - 1}/{3 << 18}" for number in range(3)]
    assert requests.put(url, chunks[0], headers={"Content-Range": places[0]}).status_code == 308
    answer = requests.put(url, chunks[2], headers={"Content-Range": places[2]})
    assert (answer.status_code, "begins at byte 524288" in answer.text) == (400, True)
    stored = requests.put(url, headers={"Content-Range": "bytes */*"})
    assert stored.headers["Range"] == f"bytes=0-{(256 << 10) - 1}"
    for number in (1, 2):
        answer = requests.put(url, chunks[number], headers={"Content-Range": places[number]})
    assert answer.status_code == 200, answer.text
    assert bucket.blob("x").download_as_bytes() == b"".join(chunks)


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


def described(blob) -> dict:
    blob.reload()
    return {name: blob._properties.get(name) for name in METADATA}


def test_every_way_of_uploading_keeps_the_same_metadata(bucket, gcs, tmp_path) -> None:
    def new(name: str):
        blob = bucket.blob(name)
        for key, value in METADATA.items():
            blob._patch_property(key, value)
        return blob

    new("multipart").upload_from_string("x", content_type="text/plain")
    new("resumable").upload_from_file(io.BytesIO(bytes(9 << 20)), content_type="text/plain")
    (tmp_path / "large").write_bytes(bytes(6 << 20))
    thread = transfer_manager.THREAD
    source = str(tmp_path / "large")
    transfer_manager.upload_chunks_concurrently(source, new("in parts"), chunk_size=5 << 20, worker_type=thread)
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": "attachment; filename=x",
        "Content-Encoding": "identity",
        "Content-Language": "de",
        "Content-Type": "text/plain",
        "x-goog-custom-time": "2026-11-22T08:00:00Z",
        "x-goog-storage-class": "nearline",
        "x-goog-meta-a": "b",
    }
    assert requests.put(f"{gcs.url}/bucket/xml", b"x", headers=headers).status_code == 200
    for name in ("multipart", "resumable", "in parts", "xml"):
        assert described(bucket.blob(name)) == METADATA, name
    start = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=encoded&contentEncoding=gzip"
    requests.put(requests.post(start, json={}).headers["Location"], b"x")
    assert bucket.get_blob("encoded").content_encoding == "gzip"


def test_a_header_of_an_xml_upload_that_would_be_ignored_is_refused(bucket, gcs) -> None:
    for method, path, header in (
        ("PUT", "x", "x-goog-content-length-range"),
        ("PUT", "x", "x-goog-storge-class"),
        ("POST", "x?uploads", "x-goog-if-generation-match"),
    ):
        answer = requests.request(method, f"{gcs.url}/bucket/{path}", data=b"", headers={header: "0"})
        assert answer.status_code == 405 and header in answer.text
    assert bucket.get_blob("x") is None


def test_composing_and_rewriting_invent_no_content_type(bucket) -> None:
    for name in ("a", "b"):
        bucket.blob(name).upload_from_string(name, content_type="text/plain")
    sources = [bucket.get_blob("a"), bucket.get_blob("b")]
    made = bucket.blob("made")
    made.compose(sources)
    made.reload()
    assert made.content_type is None
    assert made.download_as_bytes() == b"ab"
    typed = bucket.blob("typed")
    typed.content_type = "text/html"
    typed.compose(sources)
    assert bucket.get_blob("typed").content_type == "text/html"
    same, other = bucket.blob("same"), bucket.blob("other")
    same.rewrite(sources[0])
    other.cache_control = "no-store"
    other.rewrite(sources[0])
    assert bucket.get_blob("same").content_type == "text/plain"
    assert (bucket.get_blob("other").content_type, bucket.get_blob("other").cache_control) == (None, "no-store")


def test_unknown_fields_of_all_bodies_are_refused_with_the_nearest(bucket, gcs) -> None:
    bucket.blob("x").upload_from_string("x")
    wrong, there = {"cacheControll": "no-store"}, f"{gcs.url}/storage/v1/b/bucket/o"
    source = [{"name": "x"}]
    for method, url, body in (
        ("POST", f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=y", wrong),
        ("PATCH", f"{there}/x", wrong),
        ("PUT", f"{there}/x", wrong),
        ("POST", f"{there}/x/rewriteTo/b/bucket/o/y", wrong),
        ("POST", f"{there}/x/copyTo/b/bucket/o/y", wrong),
        ("POST", f"{there}/y/compose", {"sourceObjects": source, "destination": wrong}),
        ("POST", f"{there}/y/compose", {"sourceObjects": source, "destinatoin": {}}),
        ("POST", f"{there}/y/compose", {"sourceObjects": [{"name": "x", "generatoin": "1"}]}),
        ("POST", f"{there}/y/compose", {"sourceObjects": [{"name": "x", "objectPreconditions": {"ifMatch": 1}}]}),
    ):
        answer = requests.request(method, url, json=body)
        assert answer.status_code == 400 and "Unknown name" in answer.text, (url, body)
        assert "Did you mean" in answer.text or "Known:" in answer.text
    assert [blob.name for blob in bucket.list_blobs()] == ["x"]


def test_all_mistakes_of_a_body_are_told_at_once(gcs) -> None:
    given = {"name": "made", "storageClass": "X", "location": "mars", "labels": {"A": "b"}, "nme": "x"}
    answer = requests.post(f"{gcs.url}/storage/v1/b?project=p", json=given)
    assert all(word in answer.json()["error"]["message"] for word in ("'X'", "'mars'", "'A'", "'nme'"))


def test_managed_folders_are_answered_as_for_a_bucket_without_any(gcs, bucket) -> None:
    url = f"{gcs.url}/storage/v1/b"
    assert requests.get(f"{url}/bucket/managedFolders").status_code == 412
    requests.post(
        f"{url}?project=p",
        json={"name": "uniform", "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}},
    )
    assert requests.get(f"{url}/uniform/managedFolders?pageSize=1000").json() == {"kind": "storage#managedFolders"}
    assert requests.get(f"{url}/uniform/managedFolders/a%2F").status_code == 404
    assert requests.get(f"{url}/none/managedFolders").status_code == 404
    assert requests.get(f"{url}/bucket/folders").status_code == 409
    assert requests.post(f"{url}/bucket/managedFolders", json={"name": "x/"}).status_code == 405
