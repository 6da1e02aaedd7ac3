"""What every backend owes, on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from sdk.testing.backend import BackendContract
from sdk.testing.kubernetes import KubernetesCluster

pytestmark = pytest.mark.process


class TestKubernetes(BackendContract):
    name = "kubernetes"

    @pytest.fixture
    def where(self, cluster: KubernetesCluster) -> dict[str, Any]:
        return {"backend": cluster.backend(), "root": cluster.root}
