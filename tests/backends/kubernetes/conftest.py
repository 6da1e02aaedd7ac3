"""A cluster for all tests of a file: an API server whose pods are processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs

needs("lightkube", "starlette", "uvicorn")
from sdk.testing.kubernetes import KubernetesCluster  # noqa: E402


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    with KubernetesCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesCluster]:
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield running
    running.faults.clear()
    running.unschedulable = running.bad_image = running.quota = ""
    running.jobset_installed = True
