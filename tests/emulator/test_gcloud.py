"""gcloud against the emulator, set up by the lines that `podlift emulator` prints, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from gcloud_command import Gcloud, serving
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO

pytestmark = [
    pytest.mark.full,
    pytest.mark.process,
    pytest.mark.skipif(
        shutil.which("gcloud") is None, reason="gcloud is not installed: https://cloud.google.com/sdk/docs/install"
    ),
]
PLACE = "projects/podlift/locations/us-central1"
REGION, LOCATION = "--region=us-central1", "--location=us-central1"
BUILDS, JOBS, SCHEDULER = ("builds",), ("ai", "custom-jobs"), ("scheduler", "jobs")


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    with serving(tmp_path_factory.mktemp("gcloud")) as found:
        yield found


@pytest.mark.parametrize("access", ["--uniform-bucket-level-access", "--no-uniform-bucket-level-access"])
def test_files_go_up_are_listed_come_back_and_go_with_their_bucket(gcloud: Gcloud, tmp_path: Path, access: str) -> None:
    options = {"api_endpoint": gcloud.url}
    client = storage.Client(project="podlift", credentials=AnonymousCredentials(), client_options=options)
    gcloud.value("storage", "buckets", "create", "gs://bucket", access)
    bucket = client.get_bucket("bucket")
    (tmp_path / "small file").write_bytes(b"small")
    (tmp_path / "large").write_bytes(os.urandom(20 << 20))
    gcloud.value("storage", "cp", str(tmp_path / "small file"), str(tmp_path / "large"), "gs://bucket/folder/")
    assert bucket.blob("folder/small file").download_as_bytes() == b"small"
    assert bucket.blob("folder/large").download_as_bytes(checksum="crc32c") == (tmp_path / "large").read_bytes()
    listed = gcloud.value("storage", "ls", "gs://bucket/folder/").split("\n")
    assert listed == ["gs://bucket/folder/large", "gs://bucket/folder/small file"]
    gcloud.value("storage", "cp", "gs://bucket/folder/large", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
    gcloud.value("storage", "cp", "gs://bucket/folder/large", "gs://bucket/deep/copy")
    assert "small" in gcloud.value("storage", "cat", "gs://bucket/folder/small file")
    gcloud.value("storage", "rm", "--recursive", "gs://bucket/folder")
    assert [each.name for each in bucket.list_blobs()] == ["deep/copy"]
    gcloud.value("storage", "rm", "--recursive", "gs://bucket")
    assert client.lookup_bucket("bucket") is None


def test_the_printed_build_is_submitted_and_cancelled(gcloud: Gcloud, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sdk", "image", "gpu", "--vertex-project", "podlift"]
    shown = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    id = submitted(gcloud, tmp_path, shown.stdout)
    assert gcloud.value(*BUILDS, "list", REGION, "--format=value(id,status)") == f"{id}\tQUEUED"
    assert gcloud.value(*BUILDS, "describe", id, REGION, "--format=value(status)") == "WORKING"
    gcloud.value(*BUILDS, "cancel", id, REGION)
    assert gcloud.value(*BUILDS, "describe", id, REGION, "--format=value(status)") == "CANCELLED"


def submitted(gcloud: Gcloud, folder: Path, build: str) -> str:
    (folder / "build.yaml").write_text(build)
    config = f"--config={folder / 'build.yaml'}"
    return gcloud.value(*BUILDS, "submit", "--no-source", config, "--async", "--format=value(id)", REGION)


JOB = """
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec: {imageUri: any, command: [sh, -c], args: ["echo trained; echo failed >&2"]}
"""
FLAGS = "--worker-pool-spec=machine-type=n1-standard-4,replica-count=1"


def test_a_job_is_created_from_a_file_and_followed(gcloud: Gcloud, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    config = f"--config={tmp_path / 'job.yaml'}"
    one = gcloud.value(*JOBS, "create", "--display-name=one", config, "--format=value(name)", REGION)
    followed = gcloud.value(*JOBS, "stream-logs", one.rpartition("/")[2], "--polling-interval=1", REGION).splitlines()
    lines = [line.split("\t") for line in followed]
    assert ["INFO", "workerpool0-0", "trained"] in [[line[0], *line[2:]] for line in lines]
    assert ["ERROR", "workerpool0-0", "failed"] in [[line[0], *line[2:]] for line in lines]
    assert lines[-1][-1] == "Job completed successfully."


HTTP = (
    "--schedule=0 3 * * *", "--time-zone=Europe/Berlin", "--headers=Content-Type=application/json",
    f"--uri=https://us-central1-aiplatform.googleapis.com/v1/{PLACE}/customJobs",
    "--oauth-service-account-email=runner@podlift.iam.gserviceaccount.com", LOCATION,
)  # fmt: skip


def test_a_schedule_is_created_forced_paused_resumed_changed_and_deleted(gcloud: Gcloud, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text("{}")
    body = f"--message-body-from-file={tmp_path / 'body.json'}"
    create = (*SCHEDULER, "create", "http", "daily", *HTTP, body, "--max-retry-attempts=3", "--min-backoff=30s")
    gcloud.value(*create)
    shown = gcloud.ask("GET", f"v1/{PLACE}/jobs/daily")
    assert (shown["schedule"], shown["state"], shown["timeZone"]) == ("0 3 * * *", "ENABLED", "Europe/Berlin")
    assert (shown["retryConfig"]["retryCount"], shown["retryConfig"]["minBackoffDuration"]) == (3, "30s")
    gcloud.value(*SCHEDULER, "run", "daily", LOCATION)
    gcloud.ask("POST", "_clock", {"advance_s": 0})
    (attempt,) = gcloud.ask("GET", "_attempts")["attempts"]
    # The body is no custom job.
    assert (attempt["job"], attempt["forced"], attempt["code"]) == (f"{PLACE}/jobs/daily", True, 3)
    gcloud.value(*SCHEDULER, "pause", "daily", LOCATION)
    state = gcloud.value(*SCHEDULER, "describe", "daily", "--format=value(state,attemptDeadline)", LOCATION)
    assert state == "PAUSED\t180s"
    assert gcloud.ask("POST", "_clock", {"advance_s": 2 * 86400})["attempts"] == []
    gcloud.value(*SCHEDULER, "resume", "daily", LOCATION)
    gcloud.value(*SCHEDULER, "update", "http", "daily", "--schedule=30 4 * * 1", "--max-retry-attempts=0", LOCATION)
    listed = gcloud.value(*SCHEDULER, "list", "--format=value(name.basename(),schedule,state)", LOCATION)
    assert listed == "daily\t30 4 * * 1\tENABLED"
    gcloud.value(*SCHEDULER, "delete", "daily", LOCATION)
    assert gcloud.value(*SCHEDULER, "list", "--format=value(name)", LOCATION) == ""


PACKAGE = (
    "--display-name=tf", "--python-package-uris=gs://mine/trainer-0.1.tar.gz", REGION,
    f"{FLAGS},executor-image-uri=us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17:latest,python-module=trainer",
)  # fmt: skip
TOPIC = ("--schedule=0 3 * * *", "--topic=t", "--message-body=x", LOCATION)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("ai", "endpoints", "list", REGION), "UNIMPLEMENTED: podlift's emulator of Vertex AI does not serve GET"),
        (("beta", *JOBS, "list", REGION), "/v1beta1/"),
        ((*JOBS, "describe", "12", REGION), "NOT_FOUND"),
        ((*JOBS, "create", *PACKAGE), "is past its end of availability"),
        ((*SCHEDULER, "create", "http", "odd", *HTTP, "--schedule=0 3 L * *"), "Schedule or time zone is invalid."),
        ((*SCHEDULER, "describe", "nothing", LOCATION), "NOT_FOUND"),
        ((*SCHEDULER, "create", "pubsub", "odd", *TOPIC), "UNIMPLEMENTED"),
    ],
    ids=["endpoints", "beta", "no such job", "retired image", "schedule", "no such schedule", "another target"],
)
def test_gcloud_asks_once_and_gives_the_reason_for_unserved_and_wrong_requests(gcloud, words, sentence) -> None:
    gcloud.ask("DELETE", "_requests")
    code, _, err = gcloud.run(*words)
    assert code == 1 and sentence in err
    # gcloud repeats a request after a supposed fault of the service, for half a minute.
    recent = gcloud.ask("GET", "_requests")["recent"]
    asked = Counter(each["path"] for each in recent if each["path"].count("/") > 5 or "v1beta1" in each["path"])
    assert set(asked.values()) <= {1}, asked
