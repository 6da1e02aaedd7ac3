"""The variable that names an emulator: a wrong one is named soon, its token is in no kept text, and its clock counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import REPO, full_only, serving

import sdk
from sdk.clock import SystemClock
from sdk.errors import InputError, UnavailableError
from sdk.storage import emulator
from sdk.storage.emulator_clock import EmulatorTime, service_clock
from sdk.storage.gcs.files import BucketFiles
from sdk.testing.vertex import Cloud

LIMIT_S, SOON_S = 60, 8.0
TOKEN = "0123456789abcdef" * 2


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("http://127.0.0.1:9000", "lacks the token"),
        (f"http://127.0.0.1:9000/{TOKEN}/storage", "has a path other than the token"),
        (f"http://127.0.0.1:9000/{TOKEN[1:]}", "has a path other than the token"),
        ("yes", "lacks the token"),
        (f"http://127.0.0.1:99999/{TOKEN}", "is not the address of an emulator"),
        (f"export PODLIFT_EMULATOR=http://127.0.0.1:1/{TOKEN}", "is not the address of an emulator"),
        (f"http://127.0.0.1:1/{TOKEN}?x", "is not the address of an emulator"),
        (f"http://127.0.0.1:0/{TOKEN}", "is not the address of an emulator"),
        (f"http://[::1/{TOKEN}", "is not the address of an emulator"),
        (f"http://me:hunter2@127.0.0.1:1/{TOKEN}", "is not the address of an emulator"),
    ],
)
def test_a_text_that_is_no_address_is_named_at_once(given: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        emulator.address({"PODLIFT_EMULATOR": given})
    text = str(refused.value)
    assert text.startswith(f"PODLIFT_EMULATOR {said}") and "Received: " in text
    assert "podlift emulator --data DIR" in text
    assert TOKEN not in text and "hunter2" not in text


def test_an_address_is_taken_as_it_is() -> None:
    for given in (f"http://127.0.0.1:1/{TOKEN}", f" http://127.0.0.1:1/{TOKEN}/ ", f"127.0.0.1:1/{TOKEN}"):
        assert emulator.address({"PODLIFT_EMULATOR": given}) == f"http://127.0.0.1:1/{TOKEN}"
    assert emulator.address({}) == emulator.address({"PODLIFT_EMULATOR": " "}) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PODLIFT_EMULATOR", "is not running: nothing listens"),
        ("STORAGE_EMULATOR_HOST", "is not running: nothing listens"),
        ("PODLIFT_EMULATOR", "has a different token"),
        ("PODLIFT_EMULATOR", "is something else"),
    ],
)
def test_a_missing_emulator_or_another_server_is_reported_soon(monkeypatch, podlift_gcs, name: str, said: str) -> None:
    with serving(lambda request: (200, b"<html>")) as other:
        ports = {"has a different token": podlift_gcs.port, "is something else": other.rpartition(":")[2]}
        port = ports.get(said) or free_port()
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}/{TOKEN if name == 'PODLIFT_EMULATOR' else ''}")
        began = time.monotonic()
        with pytest.raises(InputError, match=f"The emulator that {name} names {said}") as refused:
            BucketFiles("gs://bucket/x").read("y")
    assert time.monotonic() - began < SOON_S
    assert f"Received: http://127.0.0.1:{port}/..." in str(refused.value) and TOKEN not in str(refused.value)


COMMANDS = [
    "list --root gs://bucket/root",
    full_only("submit train.py --backend vertex --detach"),
    full_only("plan train.py --backend vertex --online"),
    full_only("submit train.py --detach --root gs://bucket/root"),
]
CLOUD = """
[vertex]
project = "my-project"
regions = ["us-central1"]
bucket = "bucket"
image = "us-docker.pkg.dev/p/r/i:1"
"""


@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_names_a_dead_emulator_and_does_not_wait_for_it(tmp_path: Path, words: str) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "podlift.toml").write_text(CLOUD)
    own = {name: text for name, text in os.environ.items() if not name.startswith("PODLIFT_")}
    env = {**own, "PYTHONPATH": str(REPO), "PODLIFT_EMULATOR": f"http://127.0.0.1:{free_port()}/{TOKEN}"}
    began = time.monotonic()
    command = [sys.executable, "-m", "sdk", *words.split()]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    spent_s = time.monotonic() - began
    assert done.returncode == 2, done.stderr
    assert "The emulator that PODLIFT_EMULATOR names is not running" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    assert spent_s < 2 * SOON_S


def test_an_error_with_the_url_leaves_no_token_in_the_run_of_its_program(root, write, podlift_gcs, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", podlift_gcs.url)
    write("train.py", "import os\nraise ValueError('404 GET ' + os.environ['PODLIFT_EMULATOR'] + '/storage/v1/b/x')\n")
    assert sdk.submit("train.py").wait(LIMIT_S).state is sdk.State.FAILED
    token = podlift_gcs.url.rpartition("/")[2].encode()
    kept = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert any(b"/TOKEN/storage/v1/b/x" in data for data in kept.values())
    assert [str(path) for path, data in kept.items() if token in data] == []


@pytest.mark.process
def test_the_time_is_the_time_of_this_machine_or_of_an_emulator_with_a_moved_clock(tmp_path: Path, monkeypatch) -> None:
    assert type(service_clock()) is SystemClock
    with Cloud(tmp_path) as cloud:
        monkeypatch.setenv("PODLIFT_EMULATOR", cloud.url)
        assert service_clock().now() == pytest.approx(time.time(), abs=5)
        cloud.advance(3 * 86400.0)
        assert service_clock().now() == pytest.approx(time.time() + 3 * 86400.0, abs=5)
    with pytest.raises(UnavailableError, match="does not tell its time"):
        EmulatorTime(cloud.url).now()
