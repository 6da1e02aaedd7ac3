"""The plugin's own cluster, if its requirements are installed."""

from __future__ import annotations

import pytest
from support import needs

needs("lightkube", "starlette", "uvicorn")
from sdk.testing.kubernetes import KubernetesCluster  # noqa: E402


@pytest.fixture
def cluster(podlift_kubernetes: KubernetesCluster) -> KubernetesCluster:
    return podlift_kubernetes
