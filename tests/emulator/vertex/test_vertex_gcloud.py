"""`gcloud ai custom-jobs` against the emulator, set up by the lines that `podlift emulator` prints, where it is installed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from gcloud_command import Gcloud, serving
from support import full_only

pytestmark = [
    pytest.mark.skipif(
        shutil.which("gcloud") is None, reason="gcloud is not installed: https://cloud.google.com/sdk/docs/install"
    ),
    pytest.mark.process,
]
PARENT = "v1/projects/podlift/locations/us-central1/customJobs"
JOB = """
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec: {imageUri: any, command: [sh, -c], args: ["echo trained; echo failed >&2"]}
"""
POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "1",
    "containerSpec": {"imageUri": "any", "command": ["sleep"], "args": ["600"]},
}
JOBS = ("ai", "custom-jobs")
FLAGS = "--worker-pool-spec=machine-type=n1-standard-4,replica-count=1"


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    with serving(tmp_path_factory.mktemp("gcloud"), "--region=us-central1") as found:
        yield found


def test_a_job_is_created_from_a_file_and_followed(gcloud: Gcloud, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    one = gcloud.value(
        *JOBS, "create", "--display-name=one", f"--config={tmp_path / 'job.yaml'}", "--format=value(name)"
    )
    followed = gcloud.value(*JOBS, "stream-logs", one.rpartition("/")[2], "--polling-interval=1").splitlines()
    lines = [line.split("\t") for line in followed]
    assert ["INFO", "workerpool0-0", "trained"] in [[line[0], *line[2:]] for line in lines]
    assert ["ERROR", "workerpool0-0", "failed"] in [[line[0], *line[2:]] for line in lines]
    assert lines[-1][-1] == "Job completed successfully."


@pytest.mark.full
def test_jobs_are_listed_described_and_cancelled(gcloud: Gcloud) -> None:
    before = [line.split()[1] for line in gcloud.value(*JOBS, "list", "--format=value(displayName,name)").splitlines()]
    two = gcloud.ask("POST", PARENT, {"displayName": "two", "jobSpec": {"workerPoolSpecs": [POOL]}})["name"]
    listed = [line.split() for line in gcloud.value(*JOBS, "list", "--format=value(displayName,name)").splitlines()]
    assert listed[0] == ["two", two] and [name for _, name in listed[1:]] == before
    shown = "--format=value(displayName,jobSpec.workerPoolSpecs[0].replicaCount)"
    assert gcloud.value(*JOBS, "describe", two.rpartition("/")[2], shown).split() == ["two", "1"]
    gcloud.value(*JOBS, "cancel", two.rpartition("/")[2])
    state = gcloud.ask("GET", f"v1/{two}")["state"]
    assert state in ("JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED")


@pytest.mark.full
def test_a_job_is_created_by_flags_alone(gcloud: Gcloud) -> None:
    spec = f"{FLAGS},container-image-uri=any"
    words = ("--display-name=three", spec, "--command=sleep", "--args=600", "--format=value(name)")
    made = gcloud.ask("GET", f"v1/{gcloud.value(*JOBS, 'create', *words)}")
    assert made["jobSpec"]["workerPoolSpecs"][0]["containerSpec"] == POOL["containerSpec"]


RETIRED = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17:latest"
PACKAGE = (
    "--display-name=tf",
    f"{FLAGS},executor-image-uri={RETIRED},python-module=trainer",
    "--python-package-uris=gs://mine/trainer-0.1.tar.gz",
)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("ai", "endpoints", "list"), "UNIMPLEMENTED: podlift's emulator of Vertex AI does not serve GET"),
        full_only(("beta", "ai", "custom-jobs", "list"), "/v1beta1/"),
        full_only((*JOBS, "describe", "12"), "NOT_FOUND"),
        full_only((*JOBS, "create", *PACKAGE), "is past its end of availability"),
    ],
    ids=["endpoints", "beta", "no such job", "retired image"],
)
def test_what_is_not_served_and_what_is_wrong_is_asked_once_and_gcloud_gives_the_reason(
    gcloud: Gcloud, words: tuple[str, ...], sentence: str
) -> None:
    gcloud.ask("DELETE", "_requests")
    code, _, err = gcloud.run(*words)
    assert code == 1 and sentence in err
    # gcloud repeats what it takes for a fault of the service, for half a minute.
    asked = Counter((each["method"], each["path"]) for each in gcloud.ask("GET", "_requests")["recent"])
    assert [count for (_, path), count in asked.items() if "/locations/" in path] == [1], asked
