"""Another user's many half-open connections: a client of the emulator and a browser of the page are served all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from support import LIMIT_S, REPO, needs

needs("starlette", "uvicorn")
pytestmark = [pytest.mark.process, pytest.mark.full]
ATTACK = Path(__file__).parents[1] / "programs" / "half_open.py"
# More than the files that the server may open.
FILES, CONNECTIONS = 1024, 1500
SOON_S = 5.0


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that ends with the block, as one that may open few files if it is a server."""
    limit = f"ulimit -n {FILES}; " if ATTACK.name not in words[0] else ""
    command = ["sh", "-c", f'{limit}exec "$@"', "sh", sys.executable, *words]
    env = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("server", ["emulator", "page"])
def test_many_half_open_connections_of_another_user_keep_no_client_out(tmp_path: Path, server: str) -> None:
    (tmp_path / "runs").mkdir()
    words = ("emulator", "--data", str(tmp_path / "data")) if server == "emulator" else ("ui", str(tmp_path))
    with started("-m", "sdk", *words) as process:
        url = line(process).removeprefix("export PODLIFT_EMULATOR=")
        asked = f"{url}/_faults" if server == "emulator" else url
        with started(str(ATTACK), str(urlsplit(url).port), str(CONNECTIONS)) as attack:
            assert line(attack) == "open"
            until = time.monotonic() + LIMIT_S
            for _ in range(20):
                assert time.monotonic() < until
                began = time.monotonic()
                with requests.Session() as session:
                    session.trust_env = False
                    assert session.get(asked, timeout=LIMIT_S).status_code == 200
                assert time.monotonic() - began < SOON_S
            assert attack.poll() is None
