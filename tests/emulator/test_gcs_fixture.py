"""`podlift_gcs` as a user's own tests use it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from support import LIMIT_S

import sdk

pytestmark = pytest.mark.process

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(sdk.__file__).parent.parent), prepend=os.pathsep)
    installed = {point.name for point in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "podlift" in installed else ["-p", "sdk.testing.plugin"]

    def runner(test: str) -> pytest.RunResult:
        pytester.makepyfile(test)
        return pytester.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, timeout=LIMIT_S)

    return runner


def test_every_test_finds_an_empty_storage_and_no_faults_and_it_comes_back_the_same(run) -> None:
    shown = run("""
        import pytest

        @pytest.mark.parametrize("turn", range(3))
        def test(podlift_gcs, turn):
            bucket = podlift_gcs.client().create_bucket("mine")
            assert list(bucket.list_blobs()) == []
            bucket.blob("x").upload_from_string("x")
            assert podlift_gcs.requests().operations == {"buckets.insert": 1, "objects.list": 1, "objects.insert": 1}
            if turn == 0:
                podlift_gcs.faults({"kind": "status_before", "status": 403})
            if turn > 0:
                podlift_gcs.kill()
            if turn == 2:
                podlift_gcs.start()
                assert bucket.blob("x").download_as_bytes() == b"x"
    """)
    shown.assert_outcomes(passed=3)


def test_the_server_ends_with_the_process_that_started_it(tmp_path) -> None:
    program = (
        "import os, pathlib, sys; from sdk.testing.gcs import GcsServer; server = GcsServer(pathlib.Path(sys.argv[1])); "
        "server.start(); print(server.url, flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(sdk.__file__).parent.parent)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as parent:
        url = parent.stdout.readline().strip()
        assert requests.get(f"{url}/_faults").status_code == 200
        parent.kill()
        deadline = time.monotonic() + LIMIT_S
        with pytest.raises((requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError)):
            while time.monotonic() < deadline:
                requests.get(f"{url}/_faults", timeout=LIMIT_S)
