"""A run on a real cluster whose root is in a bucket."""

from __future__ import annotations

import pytest

import sdk
from benchmarks.real_ray import RayCluster
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

__all__ = ["podlift_gcs", "podlift_gcs_server"]
pytestmark = [pytest.mark.process, pytest.mark.full]


def test_a_run_in_a_bucket_needs_no_folder_that_machines_share(
    cluster: RayCluster, podlift_gcs: GcsServer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", podlift_gcs.url)
    podlift_gcs.client().create_bucket("mine")
    (tmp_path / "train.py").write_text(
        "import os; print('from', os.environ['PODLIFT_TASK'], os.environ['AIP_MODEL_DIR'])"
    )
    monkeypatch.chdir(tmp_path)
    run = sdk.submit("train.py", workers=2, backend=sdk.Ray(address=cluster.address), root="gs://mine/podlift")
    assert run.wait(120).state is sdk.State.SUCCEEDED, run.why()
    for task in run.plan.tasks:
        assert f"from {task} gs://mine/podlift/runs/{run.id}/model/" in [line.text for line in run.logs(task=task)]
