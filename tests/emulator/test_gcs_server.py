"""The server itself: who may talk to it, what it says about itself, and the command that starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from support import LIMIT_S, REPO

from sdk.cli import app
from sdk.emulator import server

pytestmark = pytest.mark.process


def test_only_loopback_is_listened_on(gcs) -> None:
    port = gcs.port
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = {words[1] for words in lines if words[3] == "0A" and int(words[1].split(":")[1], 16) == port}
    assert local == {f"0100007F:{port:04X}"}
    with socket.create_connection(("127.0.0.1", port)) as raw:
        path = urlsplit(gcs.url).path.encode()
        raw.sendall(b"GET " + path + b"/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 404 " in raw.makefile("rb").readline() + b" "


@contextlib.contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sdk", "emulator", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    with process:
        try:
            yield process
        finally:
            # Nobody waits for a server whose test has failed.
            process.kill()


def test_the_command_prints_its_url_serves_and_stops(tmp_path) -> None:
    script = tmp_path / "faults.json"
    script.write_text(json.dumps([{"kind": "status_before", "operation": "buckets.get", "status": 429, "nth": 1}]))
    words = ("--port", "0", "--data", str(tmp_path / "data"), "--bucket", "mine", "--faults", str(script))
    with command(*words) as process:
        name, _, url = process.stdout.readline().strip().partition("=")
        assert name == "export PODLIFT_EMULATOR"
        assert requests.get(f"{url}/storage/v1/b/mine").status_code == 429
        assert requests.get(f"{url}/storage/v1/b/mine").status_code == 200
        assert (tmp_path / "data" / "token").exists()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said[0]) == (0, "")
    assert not (tmp_path / "data" / "token").exists()
    assert urlsplit(url).path.strip("/") not in said[1], "the token is printed once"
    assert "export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false" in said[1]
    assert "The data remain in" in said[1]


def test_json_holds_the_port_and_a_bucket_may_be_one_of_a_region(tmp_path) -> None:
    with command("--data", str(tmp_path), "--json", "--bucket", "mine@us-central1", "--bucket", "any@us") as process:
        told = json.loads(process.stdout.readline())
        items = requests.get(f"{told['url']}/storage/v1/b?project=p").json()["items"]
        places = {each["name"]: (each["location"], each["locationType"]) for each in items}
        assert places == {"any": ("US", "multi-region"), "mine": ("US-CENTRAL1", "region")}
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and not (tmp_path / "token").exists()
    assert (told["data"], told["port"]) == (str(tmp_path), urlsplit(told["url"]).port)


def test_a_client_that_connects_as_soon_as_it_reads_the_url_is_not_refused(tmp_path) -> None:
    class ConnectedError(Exception):
        pass

    def connect(url: str) -> None:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port), LIMIT_S):
            raise ConnectedError

    with pytest.raises(ConnectedError):
        server.serve(tmp_path, port=0, announce=connect)


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
