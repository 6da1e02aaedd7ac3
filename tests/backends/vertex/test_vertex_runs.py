"""Runs on an emulated Vertex AI that refuses, forgets, is late, takes machines away: their ends, and the messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S, made, until
from vertex_faults import HOLD, only_run

import sdk
from sdk import Reason, State
from sdk.errors import PodliftError


def test_a_final_refusal_is_a_failed_run_that_says_why_and_is_resumed(cloud, start) -> None:
    cloud.faults({"api": "vertex", "kind": "quota"})
    with pytest.raises(PodliftError, match=r"was not started.*quota.*podlift resume"):
        start()
    run = only_run(cloud)
    status = run.status()
    assert (status.state, status.reason, status.exit_code) == (State.FAILED, Reason.QUOTA, 3)
    assert "custom_model_training_" in run.why()
    cloud.faults(HOLD)
    run.resume()
    assert run.status().state is State.PENDING
    assert [job.labels["podlift-job"] for job in made(cloud)] == ["2"]


def test_a_setting_missing_or_unknown_to_google_is_refused_before_any_write(cloud, start) -> None:
    with pytest.raises(sdk.InputError) as caught:
        start(project=None, image=None)
    assert "PODLIFT_VERTEX_PROJECT" in str(caught.value)
    assert "--vertex-image" in str(caught.value)
    with pytest.raises(sdk.InputError, match="no field named"):
        start(raw={"jobSpec": {"schedulling": {}}})
    assert [blob.name for blob in cloud.client().list_blobs(cloud.bucket)] == []
    assert made(cloud) == []


def test_a_run_without_a_job_after_a_killed_submit_is_cancelled_at_once_and_resumed(cloud, start, monkeypatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("sdk.backends.vertex.job.create_job.JobCreation._create", killed)
        start()
    run = only_run(cloud)
    assert run.status().reason is Reason.SUBMITTED
    assert "podlift cancel" in run.why()
    with pytest.raises(sdk.InputError, match=r"is not created yet.*podlift cancel"):
        run.resume()
    run.cancel()
    assert run.status().state is State.CANCELLED
    assert made(cloud) == []
    cloud.faults(HOLD)
    run.resume()
    assert run.status().state is State.PENDING and len(made(cloud)) == 1


def test_a_submit_imports_nothing_of_googles(cloud, start) -> None:
    Path("program.py").write_text("print('here')")
    heavy = ("google.cloud", "google.api_core", "google.auth", "google.protobuf", "grpc", "cryptography")
    code = (
        "import sys\nfrom sdk.cli.app import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        # Packages of a namespace are there from the start, and are empty.
        "loaded = [n for n, module in sys.modules.items() if getattr(module, '__file__', None)]\n"
        f"print([n for n in loaded if n.startswith({heavy!r})])"
    )
    place = ["--vertex-project", cloud.project, "--vertex-bucket", cloud.bucket]
    words = ["submit", "program.py", "--backend", "vertex", *place, "--vertex-image", "any", "--detach"]
    shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == "[]"
    assert len(made(cloud)) == 1


@pytest.mark.full
def test_a_job_removed_before_its_end_was_read_keeps_the_verdict_of_its_tasks(cloud, start) -> None:
    run = start()
    until(lambda: made(cloud)[0].state.name == "JOB_STATE_SUCCEEDED", run.why)
    name = made(cloud)[0].name
    cloud.jobs().delete_custom_job(name=name, timeout=30).result(timeout=30)
    status = run.status()
    assert (status.state, status.reason, status.exit_code) == (State.SUCCEEDED, Reason.DONE, 0)
    assert "chief-0    done" in run.why()
