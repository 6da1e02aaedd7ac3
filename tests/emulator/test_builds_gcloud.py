"""The build that `podlift image` prints, submitted and followed by the real gcloud, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gcloud_command import Gcloud, serving
from support import LIMIT_S, REPO

pytestmark = [
    pytest.mark.full,
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]


@pytest.fixture
def gcloud(tmp_path: Path) -> Iterator[Gcloud]:
    with serving(tmp_path, "--region=us-central1") as found:
        yield found


def test_gcloud_submits_the_printed_build_and_cancels_it(gcloud: Gcloud, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sdk", "image", "gpu", "--vertex-project", "podlift"]
    shown = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    (tmp_path / "build.json").write_text(shown.stdout)
    submit = ("builds", "submit", "--no-source", f"--config={tmp_path / 'build.json'}", "--async", "--format=value(id)")
    id = gcloud.value(*submit)
    assert gcloud.value("builds", "list", "--format=value(id,status)") == f"{id}\tQUEUED"
    assert gcloud.value("builds", "describe", id, "--format=value(status)") == "WORKING"
    gcloud.value("builds", "cancel", id)
    assert gcloud.value("builds", "describe", id, "--format=value(status)") == "CANCELLED"


def test_gcloud_submits_a_build_with_default_logging_and_finds_the_bucket_of_its_log(
    gcloud: Gcloud, tmp_path: Path
) -> None:
    (tmp_path / "build.yaml").write_text("steps:\n- name: gcr.io/cloud-builders/docker\n  args: [version]\n")
    submit = ("builds", "submit", "--no-source", f"--config={tmp_path / 'build.yaml'}", "--async", "--format=value(id)")
    id = gcloud.value(*submit)
    bucket = gcloud.value("builds", "describe", id, "--format=value(logsBucket)")
    assert bucket.startswith("gs://") and bucket.endswith(".cloudbuild-logs.googleusercontent.com")
