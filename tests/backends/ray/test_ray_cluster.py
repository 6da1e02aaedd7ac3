"""The small slice on a real cluster, and what every backend owes: runs of two workers, with the values of runs here."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import sdk
from benchmarks.real_ray import RayCluster
from sdk.testing.backend import BackendContract
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

from .conftest import DIGITS

__all__ = ["podlift_gcs", "podlift_gcs_server"]
pytestmark = [pytest.mark.process, pytest.mark.full]

PROGRAM = """
import json, os
def main(epochs):
    roles = sorted(json.loads(os.environ["CLUSTER_SPEC"])["cluster"])
    return {"epochs": epochs, "roles": roles, "task": os.environ["PODLIFT_TASK"]}
"""


def test_a_plan_runs_on_a_cluster_as_on_this_machine_and_the_client_has_no_ray(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("ray")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    backend = sdk.Ray(address=cluster.address)
    there = sdk.submit("train:main", args={"epochs": 3}, backend=backend, root=tmp_path / "shared")
    here = sdk.submit("train:main", args={"epochs": 3}, root=tmp_path / "own")
    assert there.result(120).value == here.result(120).value
    assert there.url == f"file://{tmp_path}/shared/runs/{there.id}"
    assert sdk.attach(f"{tmp_path}/shared/runs/{there.id}").status() == there.status()


@pytest.mark.tensorflow
@pytest.mark.usefixtures("digits")
def test_digits_on_two_workers_of_a_cluster_get_the_weights_of_the_local_run(
    cluster: RayCluster, tmp_path: Path
) -> None:
    there = sdk.submit(DIGITS, workers=2, backend=sdk.Ray(address=cluster.address), root=tmp_path / "shared")
    here = sdk.submit(DIGITS, workers=2, root=tmp_path / "own", local_cores="all")
    assert there.result(120).value == here.result(120).value


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


class TestRay(BackendContract):
    name = "ray"

    @pytest.fixture
    def where(self, cluster: RayCluster, tmp_path: Path) -> dict[str, Any]:
        return {"backend": sdk.Ray(address=cluster.address), "root": tmp_path / "shared"}
