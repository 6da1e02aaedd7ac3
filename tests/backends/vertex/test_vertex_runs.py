"""Runs on an emulated Vertex AI that refuses, forgets, is late, takes machines away: their ends, and the messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S, made, until
from vertex_faults import HOLD, Start, only_run

import sdk
from sdk import Reason, State
from sdk.errors import PodliftError
from sdk.testing.vertex import Cloud


def test_a_final_refusal_is_a_failed_run_that_says_why_and_is_resumed(podlift_vertex: Cloud, start: Start) -> None:
    podlift_vertex.faults({"api": "vertex", "kind": "quota"})
    with pytest.raises(PodliftError, match=r"was not started.*quota.*podlift resume"):
        start()
    run = only_run(podlift_vertex)
    status = run.status()
    assert (status.state, status.reason, status.exit_code) == (State.FAILED, Reason.QUOTA, 3)
    assert "custom_model_training_" in run.why()
    podlift_vertex.faults(HOLD)
    run.resume()
    assert run.status().state is State.PENDING
    assert [job.labels["podlift-job"] for job in made(podlift_vertex)] == ["2"]


def test_a_setting_missing_or_unknown_to_google_is_refused_before_any_write(
    podlift_vertex: Cloud, start: Start
) -> None:
    with pytest.raises(sdk.InputError) as caught:
        start(project=None, image=None)
    assert "PODLIFT_VERTEX_PROJECT" in str(caught.value)
    assert "--vertex-image" in str(caught.value)
    with pytest.raises(sdk.InputError, match="no field named"):
        start(raw={"jobSpec": {"schedulling": {}}})
    assert [blob.name for blob in podlift_vertex.client().list_blobs(podlift_vertex.bucket)] == []
    assert made(podlift_vertex) == []


def test_a_run_without_a_job_after_a_killed_submit_is_cancelled_at_once_and_resumed(
    podlift_vertex: Cloud, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("sdk.backends.vertex.job.create_job.JobCreation._create", killed)
        start()
    run = only_run(podlift_vertex)
    assert run.status().reason is Reason.SUBMITTED
    assert "podlift cancel" in run.why()
    with pytest.raises(sdk.InputError, match=r"is not created yet.*podlift cancel"):
        run.resume()
    run.cancel()
    assert run.status().state is State.CANCELLED
    assert made(podlift_vertex) == []
    podlift_vertex.faults(HOLD)
    run.resume()
    assert run.status().state is State.PENDING and len(made(podlift_vertex)) == 1


def test_a_submit_imports_nothing_of_googles(podlift_vertex: Cloud, start: Start) -> None:
    Path("program.py").write_text("print('here')")
    heavy = ("google.cloud", "google.api_core", "google.auth", "google.protobuf", "grpc", "cryptography")
    code = (
        "import sys\nfrom sdk.cli.app import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        # Packages of a namespace are there from the start, and are empty.
        "loaded = [n for n, module in sys.modules.items() if getattr(module, '__file__', None)]\n"
        f"print([n for n in loaded if n.startswith({heavy!r})])"
    )
    place = ["--vertex-project", podlift_vertex.project, "--vertex-bucket", podlift_vertex.bucket]
    words = ["submit", "program.py", "--backend", "vertex", *place, "--vertex-image", "any", "--detach"]
    shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == "[]"
    assert len(made(podlift_vertex)) == 1


@pytest.mark.full
def test_a_job_removed_before_its_end_was_read_keeps_the_verdict_of_its_tasks(
    podlift_vertex: Cloud, start: Start
) -> None:
    run = start()
    until(lambda: made(podlift_vertex)[0].state.name == "JOB_STATE_SUCCEEDED", run.why)
    name = made(podlift_vertex)[0].name
    podlift_vertex.jobs().delete_custom_job(name=name, timeout=30).result(timeout=30)
    status = run.status()
    assert (status.state, status.reason, status.exit_code) == (State.SUCCEEDED, Reason.DONE, 0)
    assert "chief-0    done" in run.why()
