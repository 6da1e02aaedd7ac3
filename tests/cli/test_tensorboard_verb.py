"""podlift tensorboard: the user's TensorBoard, as a separate process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S, has_ended

import sdk
from sdk.cli import tensorboard

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
