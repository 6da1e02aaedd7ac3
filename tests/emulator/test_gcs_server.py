"""The server itself: its clients, its own description, and the command that starts it."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from gcloud_command import command
from support import LIMIT_S

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
