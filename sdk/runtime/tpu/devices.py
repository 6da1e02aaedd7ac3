"""The hardware of the stand-in: its topology, its devices, and the names under which programs find it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.tpu import topology, tpu_system_metadata

from ...errors import nearest
from ...hardware import Accelerator

# TensorFlow's name of the TPU of the machine that a program runs on.
_THIS_HOST = "local"
_HOST = "/job:localhost/replica:0/task:0"


@dataclass(frozen=True, kw_only=True)
class System:
    """One TPU host made of logical CPU devices."""

    mesh: tuple[int, int, int, int]  # x, y, z of the chips, and cores per chip
    cores: int  # number of replicas; fewer than in the mesh if the job sets fewer
    names: tuple[str, ...]  # under which a program finds it, besides "local"

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices on which the replicas really run."""
        return tuple(f"{_HOST}/device:CPU:{core}" for core in range(self.cores))

    def topology(self) -> Any:
        """Return the topology as `initialize_tpu_system` does."""
        x, y, z, c = self.mesh if math.prod(self.mesh) == self.cores else (self.cores, 1, 1, 1)
        at = [[i, j, k, m] for k in range(z) for j in range(y) for i in range(x) for m in range(c)]
        return topology.Topology(mesh_shape=[x, y, z, c], device_coordinates=[at])

    def metadata(self) -> Any:
        """Return what `resolver.get_tpu_system_metadata()` returns."""
        kinds = [("CPU", 0), *(("TPU", core) for core in range(self.cores)), ("TPU_SYSTEM", 0)]
        devices = [
            context.LogicalDevice(name=f"{_HOST}/device:{kind}:{index}", device_type=kind) for kind, index in kinds
        ]
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=self.cores, num_hosts=1, num_of_cores_per_host=self.cores, topology=None, devices=devices
        )

    def check_name(self, name: Any) -> None:
        """Raise if a program requests a different TPU."""
        if name in (None, "", _THIS_HOST) or name in self.names:
            return
        raise ValueError(
            f"There is no TPU of that name. Received: tpu={name!r}. {nearest(str(name), [_THIS_HOST, *self.names])} "
            "Next: TPUClusterResolver(tpu='local'), which is right on Vertex AI too."
        )


def system_of(row: Accelerator, *, replicas: int, names: Sequence[str]) -> System:
    # For generations with two cores per chip, a row counts cores.
    cores = row.count or row.chips
    x, y = (int(side) for side in row.topology.split("x")) if row.topology else (2, row.chips // 2)
    return System(mesh=(x, y, 1, cores // row.chips), cores=replicas, names=tuple(names))
