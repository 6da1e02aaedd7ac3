"""Who comes in: those with the token in their URL, and no other user, address, page or slow connection."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import requests
from support import LIMIT_S

import sdk
from sdk.emulator.access import AccessMiddleware
from sdk.emulator.admin import MAX_BYTES
from sdk.emulator.connections import Connections
from sdk.emulator.server import bind, listen, make_server
from sdk.process.redirect import tokens
from sdk.process.redirect.tokens import ReplicaIdentity

TOKEN = "0123456789abcdef" * 2
REPLICA = tokens.replica_token(TOKEN, ReplicaIdentity(job="7", name="workerpool0-1"))
OWN = {"host": "127.0.0.1:80"}


async def application(scope, receive, send) -> None:
    scope.get("seen", []).append((scope["path"], scope["podlift.base"]))
    assert scope["raw_path"].decode() == scope["path"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def answered(path: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """The status, and the path and the start of URLs that the application was given."""
    seen: list[tuple[str, str]] = []
    sent: list[dict] = []

    async def receive() -> dict:
        raise AssertionError("the body is not read")

    async def send(message) -> None:
        sent.append(message)

    pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "path": path, "raw_path": path.encode(), "headers": pairs, "client": ("127.0.0.1", 1)}
    scope["seen"] = seen
    asyncio.run(AccessMiddleware(application, TOKEN, Connections())(scope, receive, send))
    return sent[0]["status"], *(seen[0] if seen else ("", ""))


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        (f"/{TOKEN}/storage/v1/b", OWN, (200, "/storage/v1/b", f"/{TOKEN}")),
        (f"/{TOKEN}", OWN, (200, "/", f"/{TOKEN}")),
        (f"/{TOKEN}/", {"host": "localhost:1"}, (200, "/", f"/{TOKEN}")),
        (f"/{TOKEN}//x", OWN, (200, "//x", f"/{TOKEN}")),
        (f"/{TOKEN}/x", {"host": "storage.googleapis.com"}, (200, "/x", "")),
        ("/x", {**OWN, "authorization": f"Bearer {TOKEN}"}, (200, "/x", f"/{TOKEN}")),
        (f"/{REPLICA}/computeMetadata/v1/", OWN, (200, "/computeMetadata/v1/", f"/{REPLICA}")),
        (f"/{REPLICA}", OWN, (200, "/", f"/{REPLICA}")),
        ("/", OWN, (403, "", "")),
        ("/x", {"host": "storage.googleapis.com"}, (403, "", "")),
        (f"//{TOKEN}/x", OWN, (403, "", "")),
        (f"/x/{TOKEN}/x", OWN, (403, "", "")),
        (f"/{TOKEN[:-1]}/x", OWN, (403, "", "")),
        (f"/{TOKEN}0/x", OWN, (403, "", "")),
        (f"/{TOKEN.upper()}/x", OWN, (403, "", "")),
        (f"/{TOKEN[:-1]}%66/x", OWN, (403, "", "")),
        ("/é/x", OWN, (403, "", "")),
        (f"/x?{TOKEN}", {**OWN, "authorization": "Bearer "}, (403, "", "")),
        ("/x", {**OWN, "authorization": f"Basic {TOKEN}"}, (403, "", "")),
        ("/x", {**OWN, "authorization": f"Bearer {REPLICA}"}, (403, "", "")),
        (f"/{REPLICA}/storage/v1/b", OWN, (403, "", "")),
        (f"/{REPLICA.replace('workerpool0-1', 'workerpool0-0')}/computeMetadata/v1/", OWN, (403, "", "")),
        (f"/{TOKEN}/x", {"host": "evil.example"}, (403, "", "")),
        (f"/{TOKEN}/x", {}, (403, "", "")),
        (f"/{TOKEN}/x", {**OWN, "origin": "http://127.0.0.1:80"}, (403, "", "")),
        (f"/{TOKEN}/x", {**OWN, "sec-fetch-site": "cross-site"}, (403, "", "")),
    ],
)
def test_a_request_comes_in_by_its_token_alone(path, headers, expected) -> None:
    assert answered(path, headers) == expected


ANOTHER = """
import encodings.idna, os, socket, sys
address, port, token, uid = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if uid:
    os.setuid(uid)
body = b'{"name": "stolen"}'
for path in ("/storage/v1/b?project=p", "/v1/projects/p/locations/us-central1/customJobs", "/_requests"):
    for wait in (True, False):
        with socket.create_connection(("127.0.0.1", port), 60, (address, 0)) as client:
            head = f"POST {token}{path} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
            client.sendall(head.encode() + body)
            if wait:
                print(client.makefile("rb").readline().split()[1].decode())
"""


@pytest.mark.parametrize(("address", "token"), [("127.0.0.1", f"/{'0' * 32}"), ("127.0.0.2", "")])
def test_no_other_user_and_no_other_address_gets_anything_done(gcs, address, token) -> None:
    uid = "65534" if os.geteuid() == 0 else "0"
    gcs.forget_requests()
    # A client that leaves at once after its request has no trace in /proc; all of them are refused.
    words = [sys.executable, "-c", ANOTHER, address, str(gcs.port), token, uid]
    found = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert found.stdout.split() == ["403"] * 3, found.stderr
    assert gcs.requests().total == 0
    assert list(gcs.client().list_buckets()) == []


def test_a_request_without_the_token_learns_its_place_and_not_its_value(gcs) -> None:
    bare = gcs.url.rpartition("/")[0]
    for url in (bare, f"{bare}/storage/v1/b/x", f"{bare}/{'0' * 32}"):
        answer = requests.post(url, b"x")
        said = answer.json()["error"]["message"]
        assert answer.status_code == 403 and "http://127.0.0.1:PORT/TOKEN" in said
        assert urlsplit(gcs.url).path.strip("/") not in answer.text


def test_the_token_file_is_readable_by_its_user_only_and_each_start_has_a_new_token(tmp_path) -> None:
    first = tokens.create(tmp_path)
    path = tmp_path / "token"
    assert (path.read_text().strip(), stat.S_IMODE(path.stat().st_mode)) == (first, 0o600)
    second = tokens.create(tmp_path)
    assert second != first and path.read_text().strip() == second
    tokens.remove(tmp_path, first)
    assert path.exists()
    tokens.remove(tmp_path, second)
    assert not path.exists()


SPOILED = {
    "other users may read it": lambda path: path.chmod(0o644),
    "short": lambda path: path.write_text("short"),
    "empty": lambda path: path.write_text(""),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "huge": lambda path: path.write_bytes(b"0" * (1 << 24)),
    "gone": lambda path: path.unlink(),
    "a link": lambda path: linked(path),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path, 0o600)),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_token_that_was_spoiled_is_not_kept(tmp_path, spoil) -> None:
    path = tmp_path / "token"
    before = tokens.create(tmp_path)
    assert tokens.create(tmp_path, keep=True) == before
    spoil(path)
    for keep in (True, False):
        after = tokens.create(tmp_path, keep=keep)
        assert after != before and stat.S_IMODE(path.stat().st_mode) == 0o600 and not path.is_symlink()
        assert [each.name for each in tmp_path.iterdir() if each.name.startswith("token")] == ["token"]


def test_a_folder_in_the_place_of_the_token_is_named(tmp_path) -> None:
    (tmp_path / "token").mkdir()
    said = r"cannot be written: Is a directory. Received: .*/token'. Next: remove it"
    with pytest.raises(sdk.InputError, match=said):
        tokens.create(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def linked(path) -> None:
    other = path.with_name("planted")
    other.write_text("0" * 32)
    other.chmod(0o600)
    path.unlink()
    path.symlink_to(other)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_data_folder_of_another_user_is_refused(tmp_path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(sdk.InputError, match="belongs to another user"):
        tokens.create(tmp_path)


def raw(gcs, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", gcs.port), LIMIT_S) as client:
        client.sendall(text)
        return client.makefile("rb").read()


def test_an_unwanted_body_is_not_waited_for(gcs) -> None:
    path = urlsplit(gcs.url).path
    large = f"Host: localhost\r\nContent-Length: {300 << 20}\r\n\r\n"
    assert b" 403 " in raw(gcs, f"POST /storage/v1/b HTTP/1.1\r\n{large}".encode())
    for name in ("_faults", "_reset", "_requests", "_nothing"):
        assert b" 413 " in raw(gcs, f"POST {path}/{name} HTTP/1.1\r\n{large}".encode())
    piece = b"%x\r\n%s\r\n" % (MAX_BYTES + 1, b" " * (MAX_BYTES + 1))
    chunked = f"POST {path}/_faults HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", gcs.port), LIMIT_S) as client:
        client.sendall(chunked + piece)
        assert b" 413 " in client.makefile("rb").readline()


def test_the_head_of_a_request_has_a_limited_time_and_a_client_may_rest() -> None:
    connections = Connections(head_s=0.3, max_admitted=1)
    server = make_server(AccessMiddleware(application, TOKEN, connections), connections)
    with closing(bind(0)) as listener:
        listen(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        address = listener.getsockname()
        head = f"GET /{TOKEN}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        try:
            with (
                socket.create_connection(address, LIMIT_S) as resting,
                socket.create_connection(address, LIMIT_S) as slow,
            ):
                resting.sendall(head)
                assert resting.recv(1000).startswith(b"HTTP/1.1 200")
                began = time.monotonic()
                slow.sendall(head[:20])
                assert ended(slow) and time.monotonic() - began >= 0.25
                # Its next request has begun, and the one that is in the middle of it is too slow.
                resting.sendall(head)
                assert resting.recv(1000).startswith(b"HTTP/1.1 200")
                with socket.create_connection(address, LIMIT_S) as second:
                    second.sendall(head)
                    assert second.recv(1000).startswith(b"HTTP/1.1 503"), "one more than may be connected"
                resting.sendall(head[:20])
                assert ended(resting)
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True
