"""`gcloud ai custom-jobs` against the emulator, set up by the lines that `podlift emulator` prints, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]
# With room for gcloud's own start; with its retries it takes 28 s and more.
PROMPT_S = 25.0
JOB = """
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec: {imageUri: any, command: [sh, -c], args: ["echo trained; echo failed >&2"]}
"""


@pytest.fixture
def gcloud(tmp_path) -> Iterator:
    """Run `gcloud ai ... --region=us-central1`; return its exit code and what it prints."""
    words = [sys.executable, "-m", "sdk", "emulator", "--data", str(tmp_path / "data")]
    own = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO) as emulator:
        lines = [emulator.stdout.readline()]
        while not lines[-1].endswith("api_transport='rest')\n"):
            lines.append(emulator.stderr.readline())
            assert lines[-1], f"the emulator has ended: {lines}"
        source = tmp_path / "settings.sh"
        source.write_text("".join(lines))
        own |= {
            "HOME": str(tmp_path),
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_PROJECT": "podlift",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        }

        def run(*words: str) -> tuple[int, str, str]:
            command = ["sh", "-c", f'. {source}; exec gcloud "$@"', "sh", *words, "--region=us-central1"]
            done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=LIMIT_S)
            return done.returncode, done.stdout, done.stderr

        yield run
        emulator.terminate()
        emulator.communicate(timeout=LIMIT_S)


def value(gcloud, *words: str) -> str:
    code, out, err = gcloud(*words)
    assert code == 0, err
    return out.strip()


def test_jobs_are_created_listed_described_followed_and_cancelled(gcloud, tmp_path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    jobs = ("ai", "custom-jobs")
    name = value(
        gcloud, *jobs, "create", "--display-name=one", f"--config={tmp_path / 'job.yaml'}", "--format=value(name)"
    )
    spec = "--worker-pool-spec=machine-type=n1-standard-4,replica-count=1,container-image-uri=any"
    value(gcloud, *jobs, "create", "--display-name=two", spec, "--command=sleep", "--args=600")
    listed = dict(
        line.split() for line in value(gcloud, *jobs, "list", "--format=value(displayName,name)").splitlines()
    )
    assert listed["one"] == name and list(listed) == ["two", "one"]
    one, two = (listed[each].rpartition("/")[2] for each in ("one", "two"))
    assert value(
        gcloud, *jobs, "describe", one, "--format=value(state,jobSpec.workerPoolSpecs[0].replicaCount)"
    ).split() == [
        "JOB_STATE_SUCCEEDED",
        "1",
    ]
    followed = value(gcloud, *jobs, "stream-logs", one, "--polling-interval=1").splitlines()
    lines = [line.split("\t") for line in followed]
    assert ["INFO", "workerpool0-0", "trained"] in [[line[0], *line[2:]] for line in lines]
    assert ["ERROR", "workerpool0-0", "failed"] in [[line[0], *line[2:]] for line in lines]
    assert lines[-1][-1] == "Job completed successfully."
    value(gcloud, *jobs, "cancel", two)
    assert value(gcloud, *jobs, "describe", two, "--format=value(state)") in (
        "JOB_STATE_CANCELLING",
        "JOB_STATE_CANCELLED",
    )


def test_what_is_not_served_and_what_is_wrong_end_gcloud_at_once_with_the_reason(gcloud) -> None:
    image = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17:latest"
    spec = f"--worker-pool-spec=machine-type=n1-standard-4,replica-count=1,executor-image-uri={image},python-module=trainer"
    packages = "--python-package-uris=gs://mine/trainer-0.1.tar.gz"
    for words, sentence in (
        (("ai", "endpoints", "list"), "UNIMPLEMENTED: podlift's emulator of Vertex AI does not serve GET"),
        (("beta", "ai", "custom-jobs", "list"), "/v1beta1/"),
        (("ai", "custom-jobs", "describe", "12"), "NOT_FOUND"),
        (("ai", "custom-jobs", "create", "--display-name=tf", spec, packages), "is past its end of availability"),
    ):
        started = time.monotonic()
        code, _, err = gcloud(*words)
        assert code == 1 and sentence in err
        assert time.monotonic() - started < PROMPT_S
