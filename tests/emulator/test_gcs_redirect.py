"""TensorFlow's own `gs://` against the emulator, in a process of its own whose environment alone leads it there."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request

import pytest

import sdk
from sdk.emulator.gcs.redirect import Redirect

LIMIT_S = 200


@pytest.fixture
def redirect(gcs, tmp_path):
    own = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    with Redirect(gcs.url, tmp_path / "redirect", own) as redirect:
        yield redirect


def program(redirect, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", text], env=redirect.environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.full
def test_tensorflows_files_and_checkpoints_live_in_the_emulator(redirect, gcs, bucket) -> None:
    program(
        redirect,
        """
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
""",
    )
    names = [each.name for each in bucket.list_blobs()]
    assert "a dir/file?#1" in names
    assert [name for name in names if name.startswith("ckpt/") and name.endswith(".index")] == ["ckpt/ckpt-2.index"]
    assert bucket.blob("a dir/file?#1").download_as_bytes() == bytes(range(256)) * 40_000


def test_a_client_of_google_cloud_storage_gets_there_without_being_told(redirect, bucket) -> None:
    redirect.environment.pop("STORAGE_EMULATOR_HOST")
    program(
        redirect,
        """
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
bucket = storage.Client(project="p", credentials=AnonymousCredentials()).bucket("bucket")
bucket.blob("large").upload_from_string(bytes(9 << 20))
assert len(bucket.blob("large").download_as_bytes()) == 9 << 20
""",
    )
    assert bucket.get_blob("large").size == 9 << 20


def test_other_servers_are_reached_as_ever(redirect) -> None:
    proxy = redirect.environment["https_proxy"].rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def echo() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(connection.recv(100)[::-1])

        thread = threading.Thread(target=echo)
        thread.start()
        with socket.create_connection(("127.0.0.1", int(proxy))) as client, client.makefile("rb") as lines:
            client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b"200" in lines.readline()
            assert lines.readline() == b"\r\n"
            client.sendall(b"abc")
            assert lines.read() == b"cba"
        thread.join()
    with socket.create_connection(("127.0.0.1", int(proxy))) as client:
        client.sendall(b"GET http://elsewhere/ HTTP/1.1\r\n\r\n")
        assert b"405" in client.recv(100)


def test_nobody_else_believes_the_certificate(redirect) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"https": redirect.environment["https_proxy"]}))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        opener.open("https://storage.googleapis.com/bucket/x", timeout=10)
    trusting = ssl.create_default_context(cafile=redirect.environment["CURL_CA_BUNDLE"])
    handlers = (
        urllib.request.ProxyHandler({"https": redirect.environment["https_proxy"]}),
        urllib.request.HTTPSHandler(context=trusting),
    )
    with pytest.raises(OSError, match="HTTP Error 404"):
        urllib.request.build_opener(*handlers).open("https://storage.googleapis.com/bucket/x", timeout=10)


def test_a_proxy_that_cannot_be_combined_is_refused(tmp_path) -> None:
    for proxy in ("socks5://127.0.0.1:1", "http://user:secret@127.0.0.1:1"):
        with pytest.raises(sdk.InputError, match="unset https_proxy") as failed:
            Redirect("http://127.0.0.1:1", tmp_path, {"https_proxy": proxy})
        assert "secret" not in str(failed.value)
    with pytest.raises(sdk.InputError, match="http://HOST:PORT"):
        Redirect("gs://bucket", tmp_path, {})
