"""The server, its command and its folder: a restart, and a kill at any moment, lose no acknowledged write."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from gcloud_command import command
from google.api_core import exceptions
from support import LIMIT_S, full_only, until

from sdk.cli import app
from sdk.emulator.server import serve
from sdk.testing.gcs import GcsServer

pytestmark = pytest.mark.process

WRITERS = 3


@pytest.fixture(scope="module")
def _one(tmp_path_factory):
    with GcsServer(tmp_path_factory.mktemp("survival") / "data") as server:
        yield server


@pytest.fixture
def server(_one):
    _one.reset()
    return _one


def restarted(server: GcsServer) -> None:
    server.kill()
    server.start()


def test_a_resumable_upload_goes_on_after_the_server_was_killed(server) -> None:
    bucket = server.client().create_bucket("bucket")
    data = random.Random(1).randbytes(2 << 20)
    start = requests.post(f"{server.url}/upload/storage/v1/b/bucket/o?uploadType=resumable&name=x&ifGenerationMatch=0")
    place = start.headers["Location"]
    half = 1 << 20
    answer = requests.put(place, data[:half], headers={"Content-Range": f"bytes 0-{half - 1}/*"})
    assert (answer.status_code, answer.headers["Range"]) == (308, f"bytes=0-{half - 1}")
    restarted(server)
    answer = requests.put(place, headers={"Content-Range": "bytes */*"})
    assert (answer.status_code, answer.headers["Range"]) == (308, f"bytes=0-{half - 1}")
    answer = requests.put(place, data[half:], headers={"Content-Range": f"bytes {half}-{len(data) - 1}/{len(data)}"})
    assert answer.status_code == 200
    assert bucket.blob("x").download_as_bytes(checksum="crc32c") == data
    restarted(server)
    again = requests.put(place, headers={"Content-Range": "bytes */*"})
    assert again.json()["generation"] == answer.json()["generation"]


@pytest.mark.parametrize("kills", [1, full_only(5)])
def test_nothing_that_was_acknowledged_is_lost_or_torn_by_kills(server, kills: int) -> None:
    server.client().create_bucket("bucket")
    acknowledged: dict[str, int] = {}
    stop = threading.Event()

    def write(writer: int) -> None:
        draws, number = random.Random(writer), 0
        client = server.client()
        while not stop.is_set():
            name, number = f"{writer}/{number}", number + 1
            data = draws.randbytes(draws.choice((10, 5_000, 300_000)))
            blob = client.bucket("bucket").blob(name, chunk_size=256 << 10 if number % 5 == 0 else None)
            try:
                once = {"checksum": "crc32c", "retry": None, "if_generation_match": 0}
                blob.upload_from_file(io.BytesIO(data), size=len(data), **once)
                acknowledged[name] = blob.generation
            except (OSError, exceptions.GoogleAPICallError):
                pass

    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(write, writer) for writer in range(WRITERS)]
        for _ in range(kills):
            enough = len(acknowledged) + 8
            until(lambda least=enough: len(acknowledged) >= least)
            restarted(server)
        stop.set()
        for writer in writers:
            writer.result()
    there = {blob.name: blob for blob in server.client().list_blobs("bucket")}
    assert {name: there[name].generation for name in acknowledged} == acknowledged
    for blob in there.values():
        blob.download_as_bytes(checksum="crc32c")
    restarted(server)
    assert len(os.listdir(server.folder / "blobs")) <= len(there) + 2 * WRITERS + 5


def test_a_client_that_leaves_in_the_middle_leaves_nothing(server) -> None:
    bucket = server.client().create_bucket("bucket")

    def half():
        yield bytes(1 << 20)
        raise OSError("gone")

    url = f"{server.url}/upload/storage/v1/b/bucket/o?uploadType=media&name=x"
    with pytest.raises(OSError, match="gone"):
        requests.post(url, half(), headers={"Content-Length": str(2 << 20)})
    until(lambda: os.listdir(server.folder / "blobs") == [])
    assert list(bucket.list_blobs()) == []


def test_two_servers_never_share_a_folder(server, capfd) -> None:
    with pytest.raises(RuntimeError, match="did not start"), GcsServer(server.folder):
        pass
    assert "Another emulator serves the data folder" in capfd.readouterr().err
    server.client().create_bucket("still-works")


def test_a_folder_that_holds_something_else_is_refused(tmp_path, capfd) -> None:
    (tmp_path / "tables.sqlite").write_bytes(b"these are no tables, whatever their name says" * 100)
    with pytest.raises(RuntimeError), GcsServer(tmp_path):
        pass
    assert "is damaged" in capfd.readouterr().err


def test_only_loopback_is_listened_on(gcs) -> None:
    port = gcs.port
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = {words[1] for words in lines if words[3] == "0A" and int(words[1].split(":")[1], 16) == port}
    assert local == {f"0100007F:{port:04X}"}
    with socket.create_connection(("127.0.0.1", port)) as raw:
        path = urlsplit(gcs.url).path.encode()
        raw.sendall(b"GET " + path + b"/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 404 " in raw.makefile("rb").readline() + b" "


def test_the_command_prints_its_url_serves_and_stops_and_each_start_has_a_new_token(tmp_path) -> None:
    script, data, urls = tmp_path / "faults.json", tmp_path / "data", list[str]()
    script.write_text(json.dumps([{"kind": "status_before", "operation": "buckets.get", "status": 429, "nth": 1}]))
    for end in (signal.SIGKILL, signal.SIGINT):
        with command("--port", "0", "--data", str(data), "--bucket", "mine", "--faults", str(script)) as process:
            name, _, url = process.stdout.readline().strip().partition("=")
            assert name == "export PODLIFT_EMULATOR"
            assert [requests.get(f"{url}/storage/v1/b/mine").status_code for _ in range(2)] == [429, 200]
            place, _, token = url.rpartition("/")
            assert (data / "token").read_text().strip() == token
            for old in urls:
                assert requests.get(f"{place}/{old.rpartition('/')[2]}/_faults").status_code == 403
            process.send_signal(end)
            said = process.communicate(timeout=LIMIT_S)
        urls.append(url)
        # One that was killed leaves its token, which opens nothing.
        assert (data / "token").exists() == (end == signal.SIGKILL)
    assert len({url.rpartition("/")[2] for url in urls}) == 2
    assert (process.returncode, said[0]) == (0, "")
    assert token not in said[1], "the token is printed once"
    assert "export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false" in said[1]
    assert "The data remain in" in said[1]


def test_a_client_that_connects_as_soon_as_it_reads_the_url_is_not_refused(tmp_path) -> None:
    class ConnectedError(Exception):
        pass

    def connect(url: str) -> None:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port), LIMIT_S):
            raise ConnectedError

    with pytest.raises(ConnectedError):
        serve(tmp_path, port=0, announce=connect)


def test_the_commands_mistakes_are_sentences(tmp_path, capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        script = tmp_path / "faults.json"
        script.write_text('[{"kind": "explode"}]')
        (tmp_path / "file").write_text("")
        for words, expected in (
            (["--port", port, "--data", str(tmp_path / "a")], "The port cannot be used"),
            (["--data", str(tmp_path / "file")], "The data folder cannot be used"),
            (["--data", str(tmp_path / "a"), "--bucket", "NO"], "Invalid bucket name"),
            (["--data", str(tmp_path / "a"), "--bucket", "mine@mars"], "location constraint is not valid: 'MARS'"),
            (["--data", str(tmp_path / "a"), "--faults", str(script)], "unknown kind. Received: 'explode'"),
            (["--data", str(tmp_path / "a"), "--faults", str(tmp_path / "none")], "--faults cannot be read"),
        ):
            assert app.run(["emulator", *words]) == 2
            assert expected in capsys.readouterr().err
