"""`gcloud ai custom-jobs` against the emulator, set up by the lines that `podlift emulator` prints, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO, full_only

pytestmark = pytest.mark.skipif(
    shutil.which("gcloud") is None, reason="gcloud is not installed: https://cloud.google.com/sdk/docs/install"
)
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


class Gcloud:
    """`gcloud ... --region=us-central1` with an emulator's lines sourced, and the emulator's own answers."""

    def __init__(self, folder: Path, lines: list[str]) -> None:
        self._source = folder / "settings.sh"
        self._source.write_text("".join(lines))
        self.url = lines[0].strip().partition("=")[2]
        own = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
        self._env = own | {
            "HOME": str(folder),
            "CLOUDSDK_CONFIG": str(folder / "config"),
            "CLOUDSDK_CORE_PROJECT": "podlift",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        }

    def run(self, *words: str) -> tuple[int, str, str]:
        command = ["sh", "-c", f'. {self._source}; exec gcloud "$@"', "sh", *words, "--region=us-central1"]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stdout, done.stderr

    def value(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert code == 0, err
        return out.strip()

    def ask(self, method: str, path: str, body: object = None) -> dict:
        answer = requests.request(method, f"{self.url}/{path}", json=body, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    folder = tmp_path_factory.mktemp("gcloud")
    words = [sys.executable, "-m", "sdk", "emulator", "--data", str(folder / "data")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO) as emulator:
        assert emulator.stdout and emulator.stderr
        lines = [emulator.stdout.readline()]
        while not lines[-1].endswith("api_transport='rest')\n"):
            lines.append(emulator.stderr.readline())
            assert lines[-1], f"the emulator has ended: {lines}"
        yield Gcloud(folder, lines)
        emulator.terminate()
        emulator.communicate(timeout=LIMIT_S)


def test_jobs_are_created_listed_followed_described_and_cancelled(gcloud: Gcloud, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    one = gcloud.value(
        *JOBS, "create", "--display-name=one", f"--config={tmp_path / 'job.yaml'}", "--format=value(name)"
    )
    two = gcloud.ask("POST", PARENT, {"displayName": "two", "jobSpec": {"workerPoolSpecs": [POOL]}})["name"]
    listed = [line.split() for line in gcloud.value(*JOBS, "list", "--format=value(displayName,name)").splitlines()]
    assert listed == [["two", two], ["one", one]]
    followed = gcloud.value(*JOBS, "stream-logs", one.rpartition("/")[2], "--polling-interval=1").splitlines()
    lines = [line.split("\t") for line in followed]
    assert ["INFO", "workerpool0-0", "trained"] in [[line[0], *line[2:]] for line in lines]
    assert ["ERROR", "workerpool0-0", "failed"] in [[line[0], *line[2:]] for line in lines]
    assert lines[-1][-1] == "Job completed successfully."
    shown = "--format=value(state,jobSpec.workerPoolSpecs[0].replicaCount)"
    assert gcloud.value(*JOBS, "describe", one.rpartition("/")[2], shown).split() == ["JOB_STATE_SUCCEEDED", "1"]
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
