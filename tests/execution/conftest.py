"""A cloud for each test: one bucket, and containers that end with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nvml import one_gpu
from ray_clusters import cluster

from sdk.backends.local import warm
from sdk.backends.local.backend import LocalBackend
from sdk.process import spawn
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

from .cloud import Cloud
from .hosts import LOCAL, PROGRAM, Containers, Given, Local, OnKubernetes, OnRay, Play, Player

__all__ = ["cluster", "podlift_gcs", "podlift_gcs_server"]


@pytest.fixture(scope="session")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's cache."""
    return tmp_path_factory.mktemp("remembered")


@pytest.fixture
def cloud(podlift_gcs: GcsServer, monkeypatch, tmp_path: Path, remembered: Path) -> Iterator[Cloud]:
    """A bucket, and containers."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", podlift_gcs.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "containers"
    folder.mkdir()
    found = Cloud(podlift_gcs, folder, remembered)
    yield found
    found.close()


@pytest.fixture
def play(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Play:
    """Start `PROGRAM` on a host."""

    def start(host: str, given: Given) -> Player:
        write("train.py", PROGRAM)
        shared = tmp_path / "shared"
        shared.mkdir()
        if given.gpu_use is not None:
            given = with_gpu(host, given, tmp_path, monkeypatch)
        if host in LOCAL:
            return Local(given, shared)
        if host.startswith("ray"):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
            return OnRay(given, shared, request.getfixturevalue("cluster"))
        if host.startswith("kubernetes"):
            return OnKubernetes(given, shared, request.getfixturevalue("podlift_kubernetes"))
        cloud: Cloud = request.getfixturevalue("cloud")
        if host.startswith("folder"):
            cloud.root = f"file://{tmp_path}/runs"
        return Containers(given, shared, cloud)

    return start


def with_gpu(host: str, given: Given, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    """Give every agent a GPU with the use that a row says."""
    variables, _ = one_gpu(folder / "nvml", given.gpu_use or 0)
    resources = {**given.resources, "accelerator": "t4"}
    if host in LOCAL:
        # The supervisor has this process's variables, and the loader reads them at the start of a process: no fork has them.
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(spawn, "spawn", warm.REAL)
    else:
        variables = {**variables, "CUDA_VISIBLE_DEVICES": "0"}
    probe = LocalBackend.probe
    monkeypatch.setattr(LocalBackend, "probe", lambda *given, **named: replace(probe(*given, **named), gpus=3))
    return replace(given, resources=resources, env={**given.env, **variables})
