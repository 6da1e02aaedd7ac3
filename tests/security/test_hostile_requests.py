"""Requests that no client of ours sends: to the emulator's port, byte by byte."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import hostile
import pytest
from support import LIMIT_S

from sdk.testing.gcs import GcsServer
from sdk.testing.vertex import Cloud

BODY = b'{"name": "stolen"}'


def answered(port: int, request: bytes) -> bytes:
    """All answers on one connection."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            return client.makefile("rb").read()
        except OSError:  # the emulator does not wait for the end of a refused request
            return b"reset"


@pytest.fixture
def path(podlift_gcs: GcsServer) -> str:
    """Where a bucket is made, with the token."""
    return f"{urlsplit(podlift_gcs.url).path}/storage/v1/b?project=p"


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example", b"127.0.0.1.evil.example", b"evil.example:80", b"localhost.evil.example", b"127.0.0.1:80@evil.example",
        b"127.0.0.1@evil.example", b"localhost:evil", b"localhost:", b"[::1]", b"0.0.0.0", b"2130706433", b"0x7f.1",
        b"LOCALHOST.evil", b"storage.googleapis.com.evil.example", b"storage.googleapis.com:80", b"",
    ],
)  # fmt: skip
def test_a_name_that_another_server_can_have_is_refused_even_with_the_token(podlift_gcs, path: str, host) -> None:
    request = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s"
    found = answered(podlift_gcs.port, request % (path.encode(), host, len(BODY), BODY))
    assert found.split()[1:2] == [b"403"], found[:200]
    assert list(podlift_gcs.client().list_buckets()) == []


@pytest.mark.parametrize(
    "headers",
    {
        "two hosts": b"Host: localhost\r\nHost: evil.example\r\nContent-Length: 18\r\n",
        "no host": b"Content-Length: 18\r\n",
        "two lengths": b"Host: localhost\r\nContent-Length: 18\r\nContent-Length: 0\r\n",
        "a list of lengths": b"Host: localhost\r\nContent-Length: 18, 0\r\n",
        "a signed length": b"Host: localhost\r\nContent-Length: +18\r\n",
        "a negative length": b"Host: localhost\r\nContent-Length: -1\r\n",
        "a coding and another": b"Host: localhost\r\nTransfer-Encoding: chunked, identity\r\n",
        "an unknown coding": b"Host: localhost\r\nTransfer-Encoding: xchunked\r\n",
        "a space before the colon": b"Host: localhost\r\nContent-Length : 18\r\n",
        "a folded line": b"Host: localhost\r\n Content-Length: 18\r\nX: y\r\n",
        "a zero byte": b"Host: localhost\r\nX: a\0b\r\n",
        "a line without a colon": b"Host: localhost\r\nnothing\r\n",
        "many bytes": b"Host: localhost\r\nX: " + b"a" * 300_000 + b"\r\n",
        "many headers": b"Host: localhost\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(30_000)),
        "an origin": b"Host: localhost\r\nOrigin: null\r\nContent-Length: 18\r\n",
        "another site": b"Host: localhost\r\nSec-Fetch-Site: same-site\r\nContent-Length: 18\r\n",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_request_with_two_readings_makes_nothing_and_hides_no_second_one(podlift_gcs, path: str, headers) -> None:
    second = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\n\r\n%s" % (path.encode(), BODY)
    found = answered(podlift_gcs.port, b"POST %s HTTP/1.1\r\n%s\r\n%s%s" % (path.encode(), headers[1], BODY, second))
    statuses = [line.split()[1] for line in found.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert len(statuses) <= 1 and all(status[:1] == b"4" for status in statuses), found[:300]
    assert list(podlift_gcs.client().list_buckets()) == []


def test_a_length_with_chunks_is_read_as_chunks_and_the_rest_is_no_second_request(podlift_gcs, path: str) -> None:
    """RFC 9112, 6.3: the coding overrides the length."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\nTransfer-Encoding: chunked\r\n\r\n"
    rest = b"0\r\n\r\nGET /evil HTTP/1.1\r\nHost: evil.example\r\n\r\n"
    found = answered(podlift_gcs.port, head % path.encode() + rest)
    assert b" 200 " not in found and list(podlift_gcs.client().list_buckets()) == []


@pytest.mark.parametrize(
    "target", [b"http://evil.example/%s", b"//%s", b"/../%s", b"/%%2e%%2e%s", b"/x/..%s", b"*%s", b"\xff%s", b"/a b%s"]
)
def test_a_target_that_is_no_path_gets_nowhere(podlift_gcs: GcsServer, path: str, target: bytes) -> None:
    request = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18\r\n\r\n%s"
    found = answered(podlift_gcs.port, request % (target % path.encode(), BODY))
    assert found.split()[1:2] in ([b"403"], [b"400"]), found[:200]
    assert list(podlift_gcs.client().list_buckets()) == []


def test_names_of_objects_are_no_paths_on_the_disk(podlift_gcs: GcsServer) -> None:
    bucket = podlift_gcs.client().create_bucket("bucket")
    names = [*(f"a/{name}" for name in hostile.PATHS if "\0" not in name), *hostile.TERMINAL.values()]
    kept = []
    for name in names:
        try:
            bucket.blob(name).upload_from_string(name)
        except Exception as error:  # Google refuses some names, and so does the emulator
            assert "400" in str(error)
        else:
            kept.append(name)
    assert len(kept) > 5 and {each.name for each in bucket.list_blobs()} == set(kept)
    for name in kept:
        assert bucket.blob(name).download_as_bytes() == name.encode()
    folder = Path(podlift_gcs.folder)
    assert not any("owned" in path.name for path in (*folder.rglob("*"), *folder.parent.iterdir()))


def test_the_name_of_a_secret_is_no_path_on_the_disk(podlift_vertex: Cloud) -> None:
    url = urlsplit(podlift_vertex.url)
    (podlift_vertex.folder / "outside").write_text("private")
    for project in ("..", ".", "%2e%2e", "..%2f..", "a%2f.."):
        request = f"GET {url.path}/v1/projects/{project}/secrets/outside/versions/1:access HTTP/1.1\r\nHost: localhost\r\n\r\n"
        found = answered(url.port or 0, request.encode())
        assert b"cHJpdmF0ZQ" not in found and found.split()[1] != b"200", project
    number = "9" * 5000
    request = f"GET {url.path}/v1/projects/p/secrets/s/versions/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert answered(url.port or 0, request.encode()).split()[1][:1] == b"4"
    os.unlink(podlift_vertex.folder / "outside")
