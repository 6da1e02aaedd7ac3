"""The store in a bucket: the contract of all stores, and what only a network can do to it."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.exceptions import RefreshError, TransportError
from hypothesis import given
from hypothesis import strategies as st
from requests import exceptions as http
from store_contract import StoreContract
from support import REPO, FakeClock
from urllib3.exceptions import MaxRetryError, NameResolutionError, NewConnectionError, ProtocolError

from sdk.errors import AccessError, ConflictError, CorruptObjectError, InputError, MissingError, StoreError
from sdk.storage import emulator
from sdk.storage.gcs import errors, requests
from sdk.storage.gcs import store as store_module
from sdk.storage.gcs.files import BucketFiles
from sdk.storage.gcs.requests import GcsStatusError, UploadBody
from sdk.storage.gcs.store import OBJECT_BYTES, GcsStore
from sdk.storage.registry import open_store
from sdk.storage.retry import RetryPolicy
from sdk.storage.store import DAMAGED, Buffer, Store
from sdk.testing.gcs import GcsServer

SHORT = RetryPolicy(connect_s=2, read_s=2, total_s=0.3, first_s=0.3)


@pytest.fixture
def gcs(podlift_gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    podlift_gcs.client().create_bucket("bucket")
    return podlift_gcs


class TestGcsStore(StoreContract):
    @pytest.fixture
    def store(self, gcs: GcsServer) -> Store:
        return open_store("gs://bucket/some/prefix")

    # It sends a request for each of 1,100 objects; in every run, pages are short.
    test_more_than_a_page_of_names_is_listed = pytest.mark.full(StoreContract.test_more_than_a_page_of_names_is_listed)


def test_several_pages_of_names_are_one_list(store: GcsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_PAGE", 2)
    keys = [f"commits/{number}" for number in range(5)]
    for key in keys:
        store.put_new(key, [b""])
    assert [stat.key for stat in store.list("commits/")] == keys


@pytest.fixture
def store(gcs: GcsServer) -> GcsStore:
    return GcsStore("bucket/run")


@pytest.mark.parametrize("url", ["gs://bucket/a/b", "gs://bucket/a/b/", "/gcs/bucket/a/b"])
def test_a_url_or_a_folder_of_vertex_is_a_place_in_a_bucket_and_nothing_is_asked_yet(gcs: GcsServer, url: str) -> None:
    gcs.forget_requests()
    found = open_store(url)
    assert found.url == "gs://bucket/a/b"
    assert gcs.requests().total == 0
    found.put_new("x", [b"1"])
    assert [blob.name for blob in gcs.client().list_blobs("bucket")] == ["a/b/x"]


@pytest.mark.parametrize("url", ["s4://bucket/x", "https://user:hunter2@host/x?token=hunter2", "memory://x"])
def test_a_url_that_cannot_hold_checkpoints_is_valid_only_for_inputs_and_outputs(url: str) -> None:
    known = r"Known: a path, file://, gs://\..* Inputs and outputs of a program may have"
    with pytest.raises(InputError, match=rf"Received: '{url.partition('user')[0]}.*{known}") as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("place", ["", "UPPER/x", "a", "bucket/../x", "bucket/a//b"])
def test_a_url_that_is_no_place_in_a_bucket_is_refused(place: str) -> None:
    with pytest.raises(InputError, match="Invalid name of"):
        open_store(f"gs://{place}")


@pytest.mark.parametrize("name", ["STORAGE_EMULATOR_HOST", "PODLIFT_EMULATOR"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_an_emulator_is_named_by_either_variable_and_no_proxy_stands_before_it(gcs, monkeypatch, name, scheme) -> None:
    monkeypatch.delenv("PODLIFT_EMULATOR")
    monkeypatch.setenv(name, scheme + gcs.url.removeprefix("http://"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    GcsStore("bucket", retry=SHORT).put_new("x", [b"1"])
    assert gcs.client().bucket("bucket").blob("x").exists()


@pytest.mark.process
def test_without_credentials_the_error_names_the_command_and_sends_no_request(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true", "PATH": os.environ["PATH"]}
    program = (
        "import socket, sys; from sdk.storage.registry import open_store; from sdk.errors import AccessError\n"
        "def no(*_, **__): sys.exit('the network was asked')\n"
        "socket.socket.connect = socket.getaddrinfo = no\n"
        "try: open_store('gs://bucket/x').stat('y')\n"
        "except AccessError as error: print(error)"
    )
    env = {**home, "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert "no credentials were found" in done.stdout, done.stderr
    assert "Next: gcloud auth application-default login." in done.stdout


def test_a_removal_with_a_lost_reply_is_a_removal(gcs: GcsServer, store: GcsStore) -> None:
    made = store.put_new("x0", [b"0"]), store.put_new("x1", [b"1"])
    for stat, generation in zip(made, (None, made[1].generation), strict=True):
        gcs.faults({"kind": "drop_after", "operation": "objects.delete", "nth": 1})
        store.delete(stat.key, generation=generation)
    assert list(store.list("")) == []
    with pytest.raises(MissingError):
        store.delete("x0")


def test_other_bytes_than_the_given_ones_are_not_taken_for_stored(gcs: GcsServer, store: GcsStore) -> None:
    gcs.faults({"kind": "corrupt", "operation": "objects.insert", "at": "stored", "at_byte": 2})
    with pytest.raises(CorruptObjectError, match="stored different bytes of 'x' than it was given: 5 bytes, not 5, or"):
        store.put_new("x", [b"12345"])


def test_a_bucket_that_is_not_there_is_no_empty_store(gcs: GcsServer) -> None:
    absent = GcsStore("absent/run")
    for call in (lambda: list(absent.list("")), lambda: absent.get("x"), lambda: absent.put_new("x", [b""])):
        said = r"no bucket 'absent'. Next: start the emulator at 127.0.0.1:\d+ with"
        with pytest.raises(StoreError, match=said) as told:
            call()
        assert not isinstance(told.value, MissingError)


def test_whoever_is_not_there_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", f"http://127.0.0.1:1/{'0' * 32}")
    # As in a process that has found it before.
    monkeypatch.setattr(emulator, "_check_skipped", True)
    said = r"Cannot list gs://bucket/: .*cannot be reached.*Connection refused.*Tried \d"
    with pytest.raises(StoreError, match=said):
        list(GcsStore("bucket", retry=RetryPolicy(first_s=0.3)).list(""))


def _unreachable(reason: Exception) -> Exception:
    return http.ConnectionError(MaxRetryError(None, "/b/x", reason))


UNRESOLVED = NameResolutionError("storage.googleapis.com", None, OSError("Temporary failure in name resolution"))
REFUSED = NewConnectionError(None, "Connection refused")
SERVICE_ACCOUNT = "job@project.iam.gserviceaccount.com does not have storage.objects.create access."
SLOW = [{"reason": "userRateLimitExceeded", "message": "Slow."}]
SENTENCES = {
    "name": (_unreachable(UNRESOLVED), StoreError, True, "host name cannot be resolved: .*Temporary failure"),
    "refused": (_unreachable(REFUSED), StoreError, True, "cannot be reached.*Connection refused"),
    "reset": (http.ConnectionError(ProtocolError("aborted", ConnectionResetError(104))), StoreError, True, "broke"),
    "read": (http.ReadTimeout(), StoreError, True, "did not respond in time"),
    "certificate": (http.SSLError("CERTIFICATE_VERIFY_FAILED"), StoreError, False, "not trusted"),
    "token": (RefreshError("invalid_grant: expired"), AccessError, False, "cannot be refreshed.*Next: gcloud auth"),
    "token server": (TransportError("unreachable"), StoreError, True, "cannot be refreshed now"),
    "401": (GcsStatusError(401, "Invalid Credentials"), AccessError, False, r"\(401\): Invalid.*Next: gcloud auth"),
    "403": (
        GcsStatusError(403, SERVICE_ACCOUNT),
        AccessError,
        False,
        r"\(403\): job@.*objects.create.*gs://b --member=serviceAccount:job@project.iam.gserviceaccount.com --role=roles/",
    ),
    "403 rate": (GcsStatusError(403, "x", errors=SLOW), StoreError, True, r"asks to slow down \(403\): Slow"),
    "404": (GcsStatusError(404, "No such object: b/x"), MissingError, False, "no such object"),
    "404 bucket": (GcsStatusError(404, "The specified bucket does not exist."), StoreError, False, "no bucket 'b'"),
    "412": (GcsStatusError(412, "x"), ConflictError, False, "generation is not the expected one"),
    "408": (GcsStatusError(408, "x"), StoreError, True, r"\(408\)"),
    "connect": (http.ConnectTimeout(), StoreError, True, "did not respond in time"),
    "429": (GcsStatusError(429, "Slow."), StoreError, True, r"slow down \(429\): Slow"),
    "500": (GcsStatusError(500, "x"), StoreError, True, r"has failed \(500\)"),
    "501": (GcsStatusError(501, "x"), StoreError, False, r"rejects the request \(501\)"),
    "400": (GcsStatusError(400, "Invalid field."), StoreError, False, r"rejects the request \(400\): Invalid field"),
    "400 crc": (GcsStatusError(400, "Provided CRC32C is wrong."), CorruptObjectError, True, "damaged in transit"),
}


@pytest.mark.parametrize(("error", "kind", "retry", "said"), SENTENCES.values(), ids=SENTENCES)
def test_every_trouble_has_its_sentence(error: Exception, kind: type, retry: bool, said: str) -> None:
    failure = errors.failure_of(error, "b")
    assert failure is not None
    assert (failure.kind, failure.retry) == (kind, retry)
    assert re.search(said, failure.text), failure.text
    assert "object at 0x" not in failure.text


def test_a_mistake_of_our_own_is_not_taken_for_the_services() -> None:
    assert errors.failure_of(TypeError("x"), "b") is None


def test_an_object_has_an_upper_limit(store: GcsStore) -> None:
    with pytest.raises(InputError, match=f"at most {OBJECT_BYTES} bytes. Received: {OBJECT_BYTES + 1} for 'x'"):
        store.put_new("x", [bytes(OBJECT_BYTES), b"1"])


def test_memory_of_another_size_gets_nothing(store: GcsStore) -> None:
    store.put_new("x", [b"0123456789"])
    for size in (0, 9, 11):
        with pytest.raises(CorruptObjectError, match="has 10 bytes"):
            store.get("x", into=memoryview(bytearray(size)))


def test_a_compressed_object_is_read_as_it_is_stored(gcs: GcsServer, store: GcsStore) -> None:
    blob = gcs.client().bucket("bucket").blob("run/x")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(b"abc"))
    assert gzip.decompress(bytes(store.get("x"))) == b"abc"


def test_a_generation_of_another_store_is_a_conflict(store: GcsStore) -> None:
    store.put_new("x", [b"1"])
    for call in (store.get, store.delete):
        for generation in (DAMAGED, "0123abcd0123abcd", "7"):
            with pytest.raises(ConflictError):
                call("x", generation=generation)
    with pytest.raises(MissingError):
        store.get("no", generation=DAMAGED)


def test_an_object_that_no_store_has_written_is_not_listed(gcs: GcsServer, store: GcsStore) -> None:
    store.put_new("a/x", [b"1"])
    for name in ("run/", "run/a/", "run/a/.hidden", "run/a//b", "runs/x"):
        gcs.client().bucket("bucket").blob(name).upload_from_string(b"")
    assert [stat.key for stat in store.list("")] == [stat.key for stat in store.list("a/")] == ["a/x"]


def test_a_child_process_does_not_share_its_parents_connections(store: GcsStore) -> None:
    store.put_new("x", [b"1"])
    from sdk.storage.gcs.auth import connection

    mine = connection().session
    child = os.fork()
    if not child:
        os._exit(connection().session is mine or bytes(store.get("x")) != b"1")
    assert os.waitpid(child, 0)[1] == 0


def test_a_dripping_server_holds_no_client_and_a_large_file_may_take_its_time(gcs: GcsServer, store: GcsStore) -> None:
    store.put_new("x", [bytes(1000)])
    files, hurried = BucketFiles("gs://bucket/run", retry=SHORT), GcsStore("bucket/run", retry=SHORT)
    gcs.faults({"kind": "drip", "bytes_per_s": 20})
    began = time.monotonic()
    for call in (
        lambda: files.read("x"),
        lambda: hurried.get("x"),
        lambda: files.exists("x"),
        lambda: list(files.list("")),
    ):
        with pytest.raises(StoreError, match=r"too slow|did not respond in time"):
            call()
    # Each answer would take ten seconds and more.
    assert time.monotonic() - began < 5
    gcs.faults({"kind": "drip", "bytes_per_s": 400_000})
    store.put_new("large", [bytes(200_000)])
    assert bytes(files.read("large")) == bytes(200_000)
    # An object is no file: its time is over although bytes move.
    with pytest.raises(StoreError, match=r"too slow|did not respond in time"):
        hurried.get("large")


def test_a_large_file_is_uploaded_although_it_takes_longer_than_call_and_deadline(gcs, monkeypatch, tmp_path) -> None:
    clock, pieces = FakeClock(), UploadBody.__iter__

    def slow(body: UploadBody) -> Iterator[Buffer]:
        for piece in pieces(body):
            clock.time += len(piece) / 200_000
            yield piece

    monkeypatch.setattr(UploadBody, "__iter__", slow)
    (tmp_path / "model").write_bytes(bytes(8 << 20))
    files = BucketFiles("gs://bucket/run", retry=SHORT, clock=clock)
    files.set_deadline(1.0)
    assert files.upload("model", str(tmp_path / "model"), None).size == 8 << 20
    assert clock.time > 1040, "far beyond both"


def test_more_bytes_than_an_object_can_have_are_not_read(gcs: GcsServer, store: GcsStore, monkeypatch) -> None:
    store.put_new("x", [bytes(1000)])
    monkeypatch.setattr(store_module, "OBJECT_BYTES", 999)
    with pytest.raises(CorruptObjectError, match="it has 1000 bytes, and at most 999"):
        store.get("x")
    monkeypatch.setattr(requests, "_JSON_BYTES", 10)
    with pytest.raises(StoreError, match="not one of Cloud Storage"):
        GcsStore("bucket/run", retry=SHORT).stat("x")


@given(st.lists(st.integers(0, 200_000).map(lambda size: b"%06d" % size * (size // 6)), max_size=5))
def test_a_body_is_as_long_as_it_says_and_holds_every_part(parts: list[bytes]) -> None:
    body = UploadBody({"name": "x"}, parts, lambda moved: None)
    for _ in range(2):
        sent = b"".join(bytes(piece) for piece in body)
        assert len(sent) == len(body)
        assert b"\r\n\r\n" + b"".join(parts) + b"\r\n--" in sent
