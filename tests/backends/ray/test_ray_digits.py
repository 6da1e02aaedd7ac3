"""The small slice on a real cluster: a training of two workers by `ray start`, with the weights of the run on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import sdk
from sdk.testing.ray_cluster import RayCluster

from .conftest import DIGITS

pytestmark = pytest.mark.tensorflow


@pytest.mark.shows("A Ray cluster that you have")
@pytest.mark.usefixtures("digits")
def test_digits_on_two_workers_of_a_cluster_get_the_weights_of_the_local_run(
    cluster: RayCluster, tmp_path: Path
) -> None:
    there = sdk.submit(DIGITS, workers=2, backend=sdk.Ray(address=cluster.address), root=tmp_path / "shared")
    here = sdk.submit(DIGITS, workers=2, root=tmp_path / "own", local_cores="all")
    assert there.result(120).value == here.result(120).value
    assert there.url == f"file://{tmp_path}/shared/runs/{there.id}"
    assert sdk.attach(f"{tmp_path}/shared/runs/{there.id}").status() == there.status()
