"""podlift tensorboard: the user's TensorBoard as a separate process, a stand-in and the real one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from foreign import Foreign
from support import LIMIT_S, has_ended, until

import sdk
from sdk.cli import tensorboard
from sdk.testing.gcs import podlift_gcs, podlift_gcs_server

__all__ = ["podlift_gcs", "podlift_gcs_server"]

FAKE = "import json, os, sys; json.dump(sys.argv[1:], open(os.environ['ASKED'], 'w')); sys.exit(3)"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called tensorboard on PATH, which writes its arguments to a file."""
    program = tmp_path / "bin" / "tensorboard"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{FAKE}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return tmp_path / "asked"


@pytest.mark.process
def test_it_gets_the_folders_of_the_runs_and_listens_on_this_machine_only(ended_runs, here, asked: Path) -> None:
    runs = [sdk.attach(url) for url in ended_runs("digits-aaaaaa", "digits-bbbbbb")]
    shown = here("tensorboard", runs[0].id, "--port", "0")
    assert shown.code == 3, "its own exit code"
    common = ["--host", "127.0.0.1", "--port", "0"]
    assert json.loads(asked.read_text()) == [*common, "--logdir", f"{runs[0].url}/logs"]
    assert f"{runs[0].id}: {runs[0].url}/logs" in shown.stderr
    here("tensorboard", runs[0].id, runs[1].id, "--port", "0")
    both = ",".join(f"{run.id}:{run.url}/logs" for run in runs)
    assert json.loads(asked.read_text()) == [*common, "--logdir_spec", both]


def test_a_folder_in_a_bucket_is_named_by_its_url_and_a_comma_is_refused_for_several() -> None:
    folders = {"a-1": "gs://mine/podlift/runs/a-1/logs", "b-2": "/r/runs/b-2/logs"}
    spec = "a-1:gs://mine/podlift/runs/a-1/logs,b-2:/r/runs/b-2/logs"
    assert tensorboard.arguments(folders) == ["--logdir_spec", spec]
    assert tensorboard.arguments({"a": "/with,comma"}) == ["--logdir", "/with,comma"]
    with pytest.raises(sdk.InputError, match="comma"):
        tensorboard.arguments({"a": "/with,comma", "b": "/b"})


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.process
def test_one_that_does_not_end_is_killed_before_podlift_ends() -> None:
    begin = "import sys; from sdk.cli import tensorboard as verb; verb._GRACE_S = 0.5"
    line = [sys.executable, "-c", f"{begin}; verb._run([sys.executable, '-c', {STUBBORN!r}])"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.terminate()
        process.wait(LIMIT_S)
    assert has_ended(pid)


def test_without_one_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(sdk.InputError, match="pip install tensorboard"):
        tensorboard.program()


# tf.summary.scalar needs the package; this has the same bytes.
PROGRAM = """
import tensorflow as tf

import sdk

with tf.io.TFRecordWriter(f"{sdk.context().dirs.tensorboard}/events.out.tfevents.1.here") as file:
    file.write(tf.compat.v1.Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
    for step in range(3):
        value = tf.compat.v1.Summary.Value(tag="loss", simple_value=1 / (step + 1))
        event = tf.compat.v1.Event(wall_time=2.0 + step, step=step, summary=tf.compat.v1.Summary(value=[value]))
        file.write(event.SerializeToString())
"""


def answered(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        return json.load(answer)


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="tensorflow is not installed")
@pytest.mark.parametrize("root", ["folder", "bucket"])
def test_the_scalars_of_a_run_are_served_on_this_machine_until_podlift_ends(root: str, write, tmp_path, mine) -> None:
    foreign = Foreign(tmp_path / "foreign", "tensorboard")
    write("train.py", PROGRAM)
    run = sdk.submit("train.py", root={"folder": str(tmp_path / "root"), "bucket": "gs://mine/podlift"}[root])
    run.result(LIMIT_S)
    said = tmp_path / "said"
    with said.open("w") as output:
        process = foreign.begin("-m", "sdk", "tensorboard", run.url, "--port", "0", output=output.fileno())
    with process:
        try:
            until(lambda: "http://" in said.read_text() or process.poll() is not None, said.read_text)
            url = re.search(r"http://(127\.0\.0\.1|localhost):\d+/", said.read_text())
            assert url is not None, said.read_text()
            tags = f"{url[0]}data/plugin/scalars/tags"
            until(lambda: answered(tags), said.read_text)
            assert {name: list(found) for name, found in answered(tags).items()} == {".": ["loss"]}
            points = answered(f"{url[0]}data/plugin/scalars/scalars?run={quote('.')}&tag=loss")
            assert [(step, round(value, 3)) for _, step, value in points] == [(0, 1.0), (1, 0.5), (2, 0.333)]
            (child,) = psutil.Process(process.pid).children()
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(LIMIT_S) == 130
            assert not child.is_running()
        finally:
            process.terminate()
    assert "TensorBoard has ended. The runs are not affected." in said.read_text()
