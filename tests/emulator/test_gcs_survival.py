"""The folder on disk: acknowledged objects are there after a restart and after a kill at any moment."""

from __future__ import annotations

import io
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from google.api_core import exceptions
from support import full_only, until

from sdk.testing.gcs import GcsServer

pytestmark = pytest.mark.process

WRITERS = 3


@pytest.fixture(scope="module")
def _one(tmp_path_factory):
    with GcsServer(tmp_path_factory.mktemp("survival") / "data") as server:
        yield server


@pytest.fixture
def server(_one):
    """A storage without buckets."""
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
    assert (
        requests.put(place, headers={"Content-Range": "bytes */*"}).json()["generation"] == answer.json()["generation"]
    )


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
                blob.upload_from_file(
                    io.BytesIO(data), size=len(data), checksum="crc32c", retry=None, if_generation_match=0
                )
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
