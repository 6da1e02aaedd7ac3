"""TensorFlow's own `gs://`, gcsfs and Google's client, in separate processes that only their environment leads there."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from urllib.parse import urlsplit

import pytest
from support import LIMIT_S

import sdk
from sdk.process.redirect.proxy import Redirect, _is_here


@pytest.fixture
def redirect(gcs, tmp_path):
    with Redirect(gcs.url, tmp_path / "redirect", without_proxies()) as redirect:
        yield redirect


def program(env: dict[str, str], text: str) -> None:
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-5000:]


def without_proxies() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}


TENSORFLOW = """
import tensorflow as tf
assert not tf.io.gfile.exists("gs://bucket/none")
data = bytes(range(256)) * 40_000
with tf.io.gfile.GFile("gs://bucket/a dir/file?#1", "wb") as file:
    file.write(data)
assert tf.io.gfile.GFile("gs://bucket/a dir/file?#1", "rb").read() == data
assert tf.io.gfile.stat("gs://bucket/a dir/file?#1").length == len(data)
tf.io.gfile.makedirs("gs://bucket/d/e")
tf.io.gfile.copy("gs://bucket/a dir/file?#1", "gs://bucket/d/copy")
assert sorted(tf.io.gfile.listdir("gs://bucket")) == ["a dir/", "d/"], tf.io.gfile.listdir("gs://bucket")
assert tf.io.gfile.glob("gs://bucket/d/c*") == ["gs://bucket/d/copy"]
tf.io.gfile.rename("gs://bucket/d/copy", "gs://bucket/d/moved")
assert tf.io.gfile.exists("gs://bucket/d/moved") and not tf.io.gfile.exists("gs://bucket/d/copy")
tf.io.gfile.remove("gs://bucket/d/moved")
variable = tf.Variable(tf.range(1000.0))
manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=variable), "gs://bucket/ckpt", max_to_keep=1)
for _ in range(2):
    saved = manager.save()
variable.assign(tf.zeros(1000))
manager.checkpoint.restore(saved).assert_consumed()
assert float(tf.reduce_sum(variable)) == 499500.0
"""
GOOGLE = """
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
bucket = storage.Client(project="p", credentials=AnonymousCredentials()).bucket("bucket")
bucket.blob("large").upload_from_string(bytes(9 << 20))
assert len(bucket.blob("large").download_as_bytes()) == 9 << 20
"""


@pytest.mark.full
def test_tensorflows_files_and_checkpoints_live_in_the_emulator(redirect, gcs, bucket) -> None:
    program(redirect.environment, TENSORFLOW)
    names = [each.name for each in bucket.list_blobs()]
    assert "a dir/file?#1" in names
    assert [name for name in names if name.startswith("ckpt/") and name.endswith(".index")] == ["ckpt/ckpt-2.index"]
    assert bucket.blob("a dir/file?#1").download_as_bytes() == bytes(range(256)) * 40_000


def test_a_client_of_google_cloud_storage_gets_there_without_being_told(redirect, bucket) -> None:
    redirect.environment.pop("STORAGE_EMULATOR_HOST")
    program(redirect.environment, GOOGLE)
    assert bucket.get_blob("large").size == 9 << 20


GCSFS = """
import gcsfs
from pytest import raises
fs = gcsfs.GCSFileSystem(token="anon", project="p", skip_instance_cache=True)
fs.invalidate_cache()
fs.pipe_file("bucket/a/one", b"1" * 10)
fs.pipe({"bucket/a/two ?#%": b"22", "bucket/b/three": b"333"})
assert fs.cat_file("bucket/a/two ?#%") == b"22"
assert fs.cat_file("bucket/a/one", start=2, end=5) == b"111"
assert sorted(fs.ls("bucket/a", detail=False)) == ["bucket/a/one", "bucket/a/two ?#%"]
assert sorted(fs.find("bucket")) == ["bucket/a/one", "bucket/a/two ?#%", "bucket/b/three"]
assert sorted(fs.glob("bucket/*/t*")) == ["bucket/a/two ?#%", "bucket/b/three"]
assert fs.info("bucket/a/one")["size"] == 10
assert fs.isdir("bucket/a") and fs.isfile("bucket/a/one") and not fs.exists("bucket/zzz")
assert fs.du("bucket") == 15
fs.cp_file("bucket/a/one", "bucket/c")
fs.mv("bucket/c", "bucket/d")
assert fs.exists("bucket/d") and not fs.exists("bucket/c")
fs.rm("bucket/a", recursive=True)
assert sorted(fs.find("bucket")) == ["bucket/b/three", "bucket/d"]
for read, place in ((fs.cat_file, "bucket/a/one"), (fs.ls, "nowhere-at-all")):
    with raises(FileNotFoundError):
        read(place)
for size in (6, 6 << 20):
    with raises(FileExistsError):
        fs.pipe_file("bucket/d", bytes(size), mode="create")
assert fs.cat_file("bucket/d") == b"1" * 10
"""


def test_gcsfs_writes_reads_lists_and_removes_files(gcs, bucket) -> None:
    pytest.importorskip("gcsfs")
    there = {"STORAGE_EMULATOR_HOST": gcs.url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    program({**without_proxies(), **there}, GCSFS)
    assert sorted(each.name for each in bucket.list_blobs()) == ["b/three", "d"]


def asked(redirect, request: str, *, credentials: str | None = None) -> bytes:
    """The answer of the proxy to a request with these credentials, by default the right ones."""
    place = urlsplit(redirect.environment["https_proxy"])
    given = f"{place.username}:{place.password}" if credentials is None else credentials
    basic = f"Proxy-Authorization: Basic {base64.b64encode(given.encode()).decode()}\r\n" if given else ""
    with socket.create_connection(("127.0.0.1", place.port), LIMIT_S) as client:
        client.sendall(f"{request} HTTP/1.1\r\nHost: x\r\n{basic}\r\n".encode())
        return client.makefile("rb").readline()


def test_only_a_client_with_the_token_may_use_the_proxy(redirect) -> None:
    for credentials in ("", "podlift:", "podlift:wrong", f"{'0' * 32}:", "no base64"):
        for target in ("storage.googleapis.com:443", "127.0.0.1:1", "192.0.2.1:443"):
            assert b" 407 " in asked(redirect, f"CONNECT {target}", credentials=credentials)
        assert b" 407 " in asked(redirect, "GET http://elsewhere/", credentials=credentials)
    assert b" 405 " in asked(redirect, "GET http://elsewhere/")
    token = urlsplit(redirect.environment["https_proxy"]).password
    assert b" 200 " in asked(redirect, "CONNECT storage.googleapis.com:443", credentials=f"{token}:")


def test_the_proxy_leads_to_no_port_of_this_machine(redirect) -> None:
    port = urlsplit(redirect.environment["https_proxy"]).port
    for host in (
        "127.0.0.1", "127.0.0.2", "localhost", "LOCALHOST", "x.localhost.", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "0",
        "[::1]", "[::]", "[::ffff:127.0.0.1]", "localhost.localdomain",
    ):  # fmt: skip
        assert asked(redirect, f"CONNECT {host}:{port}").split()[1] in (b"403", b"502", b"405"), host
        assert _is_here(host.strip("[]")), host


def test_other_servers_are_reached_by_the_users_own_proxy(gcs, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        heads = []

        def echo() -> None:
            connection, _ = other.accept()
            with connection, connection.makefile("rb") as lines:
                heads.extend(iter(lines.readline, b"\r\n"))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + lines.read(3)[::-1])

        thread = threading.Thread(target=echo)
        thread.start()
        own = {"https_proxy": f"http://127.0.0.1:{other.getsockname()[1]}"}
        with Redirect(gcs.url, tmp_path / "redirect", own) as redirect:
            place = urlsplit(redirect.environment["https_proxy"])
            basic = base64.b64encode(f"{place.username}:{place.password}".encode()).decode()
            with socket.create_connection(("127.0.0.1", place.port), LIMIT_S) as client, client.makefile("rb") as lines:
                text = f"CONNECT example.com:443 HTTP/1.1\r\nProxy-Authorization: Basic {basic}\r\nHost: x\r\n\r\nabc"
                client.sendall(text.encode())
                assert lines.read() == b"HTTP/1.1 200 OK\r\n\r\ncba"
            thread.join()
            assert b" 403 " in asked(redirect, "CONNECT localhost:1")
    assert heads == [b"CONNECT example.com:443 HTTP/1.1\r\n", b"Host: x\r\n"]


def test_no_other_process_trusts_the_certificate(redirect) -> None:
    proxy = urllib.request.ProxyHandler({"https": redirect.environment["https_proxy"]})
    trusted = ssl.create_default_context(cafile=redirect.environment["CURL_CA_BUNDLE"])
    for context, said in ((None, "CERTIFICATE_VERIFY_FAILED"), (trusted, "HTTP Error 404")):
        opener = urllib.request.build_opener(proxy, urllib.request.HTTPSHandler(context=context))
        with pytest.raises(OSError, match=said):
            opener.open("https://storage.googleapis.com/bucket/x", timeout=10)


def test_a_proxy_that_cannot_be_combined_is_refused(tmp_path) -> None:
    for proxy in ("socks5://127.0.0.1:1", "http://user:secret@127.0.0.1:1"):
        with pytest.raises(sdk.InputError, match="unset https_proxy") as failed:
            Redirect("http://127.0.0.1:1", tmp_path, {"https_proxy": proxy})
        assert "secret" not in str(failed.value)
    with pytest.raises(sdk.InputError, match="http://HOST:PORT/TOKEN"):
        Redirect("gs://bucket", tmp_path, {})
