"""Runs on an emulated Vertex AI that refuses, forgets, is late, takes machines away: their ends, and the messages."""

import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from support import LIMIT_S, full_only, heard, made, until
from vertex_faults import HOLD, asked, only_run, vertex

import sdk
from sdk import Reason, State, api
from sdk.backends.vertex.client import VertexRejectedError
from sdk.backends.vertex.job.create_job import JobCreation
from sdk.errors import PodliftError
from sdk.records.sync import push
from sdk.status import Progress
from sdk.storage.gcs.files import BucketFiles
from sdk.upkeep import remove
from sdk.upkeep.remove import root as removed


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
    assert "PODLIFT_VERTEX_PROJECT" in str(caught.value) and "--vertex-image" in str(caught.value)
    with pytest.raises(sdk.InputError, match="no field named"):
        start(raw={"jobSpec": {"schedulling": {}}})
    assert [blob.name for blob in cloud.client().list_blobs(cloud.bucket)] == []
    assert made(cloud) == []


def test_a_run_without_a_job_after_a_killed_submit_is_cancelled_at_once_and_resumed(cloud, start, monkeypatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(JobCreation, "_create", Mock(side_effect=KeyboardInterrupt))
        start()
    run = only_run(cloud)
    assert run.status().reason is Reason.SUBMITTED
    assert "podlift cancel" in run.why()
    with pytest.raises(sdk.InputError, match=r"is not created yet.*podlift cancel"):
        run.resume()
    run.cancel()
    assert run.status().state is State.CANCELLED and made(cloud) == []
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


def test_a_denied_cancel_is_reported_and_the_run_can_still_be_read(cloud, start, monkeypatch) -> None:
    monkeypatch.setattr("sdk.backends.vertex.job.run._CANCEL_MARGIN_S", 0.0)
    cloud.faults(HOLD, vertex("deny", "customJobs.cancel"))
    run, lines = start(), heard("backends")
    with pytest.raises(VertexRejectedError, match=r"refuses to cancel the job.*roles/aiplatform\.user"):
        run.cancel(grace_s=0)
    assert [run.status().state for _ in range(2)] == [State.PENDING] * 2
    (line,) = lines
    assert line.startswith("The time to stop by itself is over for the job. The emulator at ")
    assert asked(cloud, "customJobs.cancel") == 2
    cloud.faults(HOLD)
    assert api.attach(run.url).wait(LIMIT_S).state is State.CANCELLED, "any client that may cancels it"


@pytest.mark.parametrize(
    ("kind", "requests"), [full_only("status_before", 2), ("silent_before", 2), ("silent_after", 1)]
)
def test_whatever_becomes_of_the_create_request_there_is_one_job(cloud, start, monkeypatch, kind, requests) -> None:
    monkeypatch.setattr("sdk.backends.vertex.client._WRITE_S", 0.3)
    monkeypatch.setattr("sdk.backends.vertex.job.create_job.SEARCH_DELAYS_S", (0.0, 0.05))
    cloud.faults(HOLD, vertex(kind, "customJobs.create", nth=1))
    lines = heard("backends")
    run = start()
    until(lambda: asked(cloud, "customJobs.create") == requests)
    (job,) = made(cloud)
    assert (job.labels["podlift-run"], run.status().state) == (run.id, State.PENDING)
    assert lines[0].startswith("Request 1 for a job in us-central1 got no answer:")
    if kind.startswith("silent"):
        assert "has accepted the request, but did not answer within 0.3 s." in lines[0]


@pytest.mark.full
def test_a_replica_is_preempted_once_the_run_reports_a_step(cloud, start, monkeypatch) -> None:
    run = start("import time; print('started', flush=True); time.sleep(600)", provisioning="spot")
    until(lambda: any(line.text == "started" for line in run.logs()), run.status)
    reports = iter([None, Progress(step=3), Progress(step=12)])
    monkeypatch.setattr(run, "progress", lambda: next(reports))
    assert cloud.preempt_at_step(run, 12)
    assert next(reports, "all were read") == "all were read"
    (job,) = made(cloud)
    said = [entry["textPayload"] for entry in cloud.entries(job.name, "service")]
    assert "The machine of workerpool0-0 is being taken away." in said
    run.cancel(grace_s=0)
    assert run.wait(LIMIT_S).state is State.CANCELLED
    assert not cloud.preempt_at_step(run, 12), "it has ended"


@pytest.mark.full
def test_a_job_submitted_during_a_removal_finds_its_containers_downloads(cloud, start, monkeypatch) -> None:
    """The submit comes between two removals: removed files are uploaded again, and the rest stays."""
    cloud.faults(HOLD)
    first = start()
    first.cancel(grace_s=0)
    assert first.wait(LIMIT_S).state is State.CANCELLED
    cloud.faults()
    for module, name in ((removed, "SETTLED_S"), (removed, "JOB_SETTLED_S"), (push, "_FRESH_S")):
        monkeypatch.setattr(module, name, -2.0)
    root = f"gs://{cloud.bucket}/podlift"
    found = remove.find(root, older_than_s=0.0, keep=0, now=time.time())
    assert {item.kind for item in found.items} == {"run", "bundle", "runtime", "entrypoint"}
    runs: list[sdk.Run] = []

    def delete(files: BucketFiles, version, original=BucketFiles.delete) -> bool:
        done = original(files, version)
        if version.name.startswith("runtime/"):
            runs.append(start())
        return done

    monkeypatch.setattr(BucketFiles, "delete", delete)
    done = remove.remove(found)
    assert [each.path.split("/")[-2] for each in done.skipped] == ["entrypoints"], done
    (run,) = runs
    assert run.wait(LIMIT_S).state is State.SUCCEEDED
    assert [line.text for line in run.logs()] == ["here"]
