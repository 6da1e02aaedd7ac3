"""The job classes of google-cloud-aiplatform, each run for real against an emulator in another process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import WAIT_S
from support import Later
from wheels import module, wheel

from sdk.testing.vertex import Cloud

pytestmark = [pytest.mark.process, pytest.mark.full]

# Their import takes seconds, which collection would spend in every run of any test.
grpc, exceptions = Later("grpc"), Later("google.api_core.exceptions")
aiplatform = Later("google.cloud.aiplatform")
AnonymousCredentials = Later("google.auth.credentials", "AnonymousCredentials")
JobServiceClient = Later("google.cloud.aiplatform_v1", "JobServiceClient")
JobServiceGrpcTransport = Later("google.cloud.aiplatform_v1.services.job_service.transports", "JobServiceGrpcTransport")
PipelineState = Later("google.cloud.aiplatform_v1.types", "PipelineState")
CURRENT = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
# A folder stands for everything that needs a network in these.
OFFLINE = {"PIP_NO_INDEX": "1", "GREETING": "hello world"}
SCRIPT = """
import argparse, importlib.util, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
needs = [name for name in ("tiny",) if importlib.util.find_spec(name)]
task = json.loads(os.environ["CLUSTER_SPEC"])["task"]["type"]
print("trained", epochs, os.environ["GREETING"], *needs)
folder = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
os.makedirs(folder, exist_ok=True)
with open(folder + task, "w") as file:
    file.write(str(epochs))
"""
GIVEN = {"args": ["--epochs", "3"], "environment_variables": OFFLINE}
# The longest answer to a request that is not served; a client that repeats it takes half a minute.
PROMPT_S = 25.0


@pytest.fixture(scope="module")
def cloud(tmp_path_factory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("sdk") / "data") as cloud:
        yield cloud


@pytest.fixture
def script(tmp_path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


@pytest.fixture
def links(tmp_path) -> str:
    """A folder of wheels in which pip finds `tiny`."""
    (tmp_path / "links").mkdir()
    wheel(tmp_path / "links", "tiny", "1.0", {"tiny.py": module("1.0")})
    return (tmp_path / "links").as_uri()


@pytest.fixture
def google(cloud, monkeypatch) -> Iterator[Cloud]:
    """The emulator, empty, and Google's SDK set up for it as the guide says."""
    cloud.reset()
    cloud.client().create_bucket("mine", location="us-central1")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    for each in ("jobs", "training_jobs"):
        monkeypatch.setattr(f"google.cloud.aiplatform.{each}._JOB_WAIT_TIME", 0.1)
    aiplatform.init(
        project="podlift",
        location="us-central1",
        staging_bucket="gs://mine",
        api_endpoint=cloud.url,
        api_transport="rest",
        credentials=AnonymousCredentials(),
    )
    yield cloud
    aiplatform.initializer.global_config.__init__()


def said(cloud: Cloud, job, task: str = "workerpool0-0") -> list[str]:
    name = job.resource_name
    if "trainingPipelines" in name:
        name = job.gca_resource.training_task_metadata["backingCustomJob"]
    return [each["textPayload"] for each in cloud.entries(name, task)]


def model_files(cloud: Cloud) -> dict[str, bytes]:
    blobs = cloud.client().list_blobs("mine")
    # A folder is an object with a name that ends in /.
    files = [blob for blob in blobs if "/model/" in blob.name and not blob.name.endswith("/")]
    return {blob.name.split("/model/")[1]: blob.download_as_bytes() for blob in files}


@pytest.mark.fidelity("pip-packages", "emulator")
def test_custom_training_job_installs_its_package_and_its_requirements(google, script, links) -> None:
    job = aiplatform.CustomTrainingJob("digits", str(script), CURRENT, requirements=["tiny"])
    given = {**GIVEN, "environment_variables": {**OFFLINE, "PIP_FIND_LINKS": links}}
    model = job.run(**given, timeout=600, restart_job_on_worker_restart=True)
    assert (model, job.state) == (None, PipelineState.PIPELINE_STATE_SUCCEEDED)
    assert said(google, job)[-1] == "trained 3 hello world tiny"
    assert model_files(google) == {"workerpool0": b"3"}


def test_custom_container_training_job_runs_is_listed_and_deleted(google) -> None:
    job = aiplatform.CustomContainerTrainingJob(
        "digits", "any", command=["python3", "-c", SCRIPT], labels={"team": "vision"}
    )
    assert job.run(**GIVEN) is None
    assert said(google, job) == ["trained 3 hello world"]
    (listed,) = aiplatform.CustomContainerTrainingJob.list(filter='labels.team="vision"', order_by="create_time desc")
    assert listed.resource_name == job.resource_name
    found = aiplatform.CustomContainerTrainingJob.get(job.resource_name)
    assert found.end_time is not None and not found.has_failed
    found.delete()
    assert aiplatform.CustomContainerTrainingJob.list() == []
    with pytest.raises(exceptions.NotFound):
        aiplatform.CustomContainerTrainingJob.get(job.resource_name)


def test_from_local_script_runs(google, script, links) -> None:
    job = aiplatform.CustomJob.from_local_script(
        display_name="digits",
        script_path=str(script),
        container_uri="us-docker.pkg.dev/acme/train/image:1",
        requirements=["tiny"],
        args=["--epochs", "3"],
        environment_variables={**OFFLINE, "PIP_FIND_LINKS": f"{links} {setuptools_link(google)}"},
    )
    job.run(create_request_timeout=WAIT_S)
    assert [each.display_name for each in aiplatform.CustomJob.list(filter='display_name="digits"')] == ["digits"]
    assert said(google, job)[-1] == "trained 3 hello world tiny"
    assert model_files(google) == {"workerpool0": b"3"}


def setuptools_link(cloud: Cloud) -> str:
    """The folder that pip would have used if the job had not named another one."""
    return (cloud.folder / "vertex" / "wheels").resolve().as_uri()


def test_a_feature_that_is_not_served_is_refused_at_once(google) -> None:
    started = time.monotonic()
    for call in (
        aiplatform.Endpoint.list,
        aiplatform.Model.list,
        aiplatform.TabularDataset.list,
        lambda: aiplatform.Tensorboard.create(display_name="x"),
        lambda: aiplatform.init(experiment="digits"),
        aiplatform.BatchPredictionJob.list,
    ):
        with pytest.raises(exceptions.MethodNotAllowed, match="emulator of Vertex AI does not serve"):
            call()
    assert time.monotonic() - started < PROMPT_S


def test_grpc_is_refused_at_once(google) -> None:
    started = time.monotonic()
    address = google.url.split("/")[2]
    with grpc.insecure_channel(address) as channel:
        client = JobServiceClient(transport=JobServiceGrpcTransport(channel=channel))
        with pytest.raises(exceptions.GoogleAPICallError):
            client.list_custom_jobs(parent=google.parent, timeout=WAIT_S)
    for place in (google.url, address):
        aiplatform.init(api_endpoint=place, api_transport="grpc")
        with pytest.raises(exceptions.ServiceUnavailable):
            aiplatform.CustomJob.list()
    assert time.monotonic() - started < PROMPT_S
