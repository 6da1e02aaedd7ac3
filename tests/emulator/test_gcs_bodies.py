"""Fields of objects and buckets that callers set: kept on every way in, checked, and refused where unknown."""

from __future__ import annotations

import base64
import io

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
    "storageClass": "NEARLINE",
    "metadata": {"a": "b"},
}


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
        "x-goog-storage-class": "nearline",
        "x-goog-meta-a": "b",
    }
    assert requests.put(f"{gcs.url}/bucket/xml", b"x", headers=headers).status_code == 200
    for name in ("multipart", "resumable", "in parts", "xml"):
        assert described(bucket.blob(name)) == METADATA, name
    start = f"{gcs.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=encoded&contentEncoding=gzip"
    requests.put(requests.post(start, json={}).headers["Location"], b"x")
    assert bucket.get_blob("encoded").content_encoding == "gzip"
