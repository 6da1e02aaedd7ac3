"""The small slice on a real cluster: runs of two workers by `ray start`, with the values of the runs on this machine."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

import sdk
from benchmarks.real_ray import RayCluster

from .conftest import DIGITS

PROGRAM = """
import json, os
def main(epochs):
    roles = sorted(json.loads(os.environ["CLUSTER_SPEC"])["cluster"])
    return {"epochs": epochs, "roles": roles, "task": os.environ["PODLIFT_TASK"]}
"""


@pytest.mark.process
@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.tensorflow
@pytest.mark.usefixtures("digits")
def test_digits_on_two_workers_of_a_cluster_get_the_weights_of_the_local_run(
    cluster: RayCluster, tmp_path: Path
) -> None:
    there = sdk.submit(DIGITS, workers=2, backend=sdk.Ray(address=cluster.address), root=tmp_path / "shared")
    here = sdk.submit(DIGITS, workers=2, root=tmp_path / "own", local_cores="all")
    assert there.result(120).value == here.result(120).value
