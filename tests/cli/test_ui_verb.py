"""`podlift ui` as a person starts and stops it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from page_runs import page_run
from support import LIMIT_S, holds, needs

needs("starlette", "uvicorn")


@pytest.mark.process
def test_the_command_serves_until_it_is_interrupted(root: Path, environment: Callable[..., dict[str, str]]) -> None:
    page_run(root, "digits-aaaaaa")
    command = [sys.executable, "-m", "sdk", "ui", str(root)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipes) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert urlsplit(url).hostname == "127.0.0.1"
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
            with browser.open(url, timeout=LIMIT_S) as answer:
                assert "token" not in answer.url and b"digits-aaaaaa" in answer.read()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    holds(said, "Runs are not affected", lacks=[urlsplit(url).query])


def test_a_port_in_use_and_a_root_that_is_none_are_told(root: Path, here) -> None:
    root.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shown = here("ui", str(root), "--port", str(taken.getsockname()[1]))
    assert (shown.code, "The port cannot be used: address already in use" in shown.stderr) == (2, True)
    shown = here("ui", str(root / "nowhere"), "s3://bucket")
    assert shown.code == 2
    holds(shown.stderr, "nowhere", "s3://bucket")
