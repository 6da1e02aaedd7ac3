"""GPUs of Vertex AI's training machines.

Sources, read 2026-11-20 and 2026-11-28: documentation of Vertex AI, training/configure-compute (machines, counts),
training/schedule-jobs-dws (flex-start), quotas; memory of a chip from the vendor's data sheets. Names of quotas that Google
does not write out (P4, H100 Mega, H200) come from public errors and lists of projects. Prices: see each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import ENGINE_G4, Accelerator, Rate, rates
from .machines import N1, SSD_GIB_HOUR, vcpus
from .regions import ACCELERATORS

# CPUs for the input pipeline of one GPU: the default is the smallest machine that has them.
_VCPUS_PER_GPU = 4
# Machines with RDMA between GPUs have a plugin for NCCL; this script sets its variables (training/configure-compute).
_NCCL = "/usr/local/gib/scripts/set_nccl_env.sh"


def _name(base: str, count: int) -> str:
    return base if count == 1 else f"{base}:{count}"


def _rows(
    base: str, hosts: Mapping[int, Sequence[str]], one: Sequence[Rate] = (), **facts: object
) -> list[Accelerator]:
    """Return a row for each number of GPUs.

    Args:
        base: the name of a row with one GPU.
        hosts: the machine types, the default one first, by the number of GPUs.
        one: the rates of one GPU.
        **facts: fields of all rows.
    """
    rows = []
    for count, machines in hosts.items():
        own: dict[str, object] = {
            "regions": ACCELERATORS.get(base, ()),
            "rates": tuple(rate.times(count) for rate in one),
            **facts,
        }
        if "instead" in facts:
            own["instead"] = _name(str(facts["instead"]), count)
        rows.append(
            Accelerator(
                name=_name(base, count),
                family="gpu",
                # Logical CPU devices stand in for them in local mode.
                backends=("local", "vertex", "ray", "kubernetes"),
                aliases=(f"{base}:1",) if count == 1 else (),
                machine=machines[0] if machines else None,
                machines=tuple(machines),
                vcpus=vcpus(machines[0]) if machines else None,
                chips=count,
                count=count,
                **own,  # type: ignore[arg-type]
            )
        )
    return rows


def _hosts(kind: str, count: int) -> list[str]:
    """Return the n1 machines for a number of GPUs of one kind, the smallest sufficient one first."""
    sizes = {machine: int(machine.rpartition("-")[2]) for machine in N1}
    allowed = [machine for machine, size in sizes.items() if count in _counts(kind, size)]
    enough = [machine for machine in allowed if sizes[machine] >= _VCPUS_PER_GPU * count]
    first = min(enough or allowed, key=lambda machine: (sizes[machine], "standard" not in machine))
    return [first, *(machine for machine in allowed if machine != first)]


def _counts(kind: str, size: int) -> tuple[int, ...]:
    """Return the possible numbers of GPUs of a kind ("v100" or another) in an n1 machine."""
    if kind == "v100":
        return (1, 2, 4, 8) if size <= 8 else {16: (2, 4, 8), 32: (4, 8)}.get(size, (8,))
    if size <= 16:
        return (1, 2, 4)
    return (2, 4) if size == 32 else (4,)


def _attached(base: str, counts: Sequence[int], one: Sequence[Rate], **facts: object) -> list[Accelerator]:
    """Return GPUs that are attached to an n1 machine, which is priced separately."""
    hosts = {count: _hosts(base, count) for count in counts}
    return _rows(base, hosts, one, title=f"NVIDIA {base.upper()}", **facts)


_L4 = {size: [f"g2-standard-{12 * size}"] for size in (2, 4, 8)}
_A100: dict[str, Any] = {
    "type": "NVIDIA_TESLA_A100",
    "title": "NVIDIA A100",
    "memory_gib": 40,
    "flex": True,
    "quota": "nvidia_a100_gpus",
}
# The page of Vertex AI has 9.79655057 as well, without its fee: a bill of 2025-08 has 11.2660332, which is 1.15 times as much.
_H100_RATES = rates(9.79655057, 2.99)
# The list price of an a2-ultragpu-1g is 5.06879789 with its local SSD, which Vertex AI bills on spot only. The SKU of the GPU
# cannot be used: in us-central1, its price on demand and the one of flex-start have the same description.
_A100_80GB_RATES = rates(5.06879789 - 375 * SSD_GIB_HOUR, 2.51378 + 375 * SSD_GIB_HOUR)
_UP_TO_8 = (1, 2, 4, 8)
# Reports are of the RTX PRO 6000 (compute capability 12.0: tensorflow/tensorflow#111958, #97387, #89272); that B200 and GB200
# (10.0) fail too is inferred. The needs of GB200 hosts: documentation of Vertex AI, training-clusters/compute-resources.
_BLACKWELL = "TensorFlow up to 2.21 has no kernels for Blackwell GPUs"
_GRACE = f"{_BLACKWELL}, and GB200 is in ARM machines, for which there is no TensorFlow with CUDA"

ROWS = (
    *_rows(
        "l4", {1: [f"g2-standard-{size}" for size in (4, 8, 12, 16, 32)], **_L4}, rates(0.56004, 0.2231), type="NVIDIA_L4",
        title="NVIDIA L4", memory_gib=24, flex=True, quota="nvidia_l4_gpus",
    ),
    *_attached("t4", (1, 2, 4), rates(0.35, 0.175), type="NVIDIA_TESLA_T4", memory_gib=16, quota="nvidia_t4_gpus"),
    *_attached(
        "v100", _UP_TO_8, rates(2.48, 1.0885), type="NVIDIA_TESLA_V100", memory_gib=16, quota="nvidia_v100_gpus",
    ),
    *_attached("p4", (1, 2, 4), rates(0.60, 0.224), type="NVIDIA_TESLA_P4", memory_gib=8, quota="nvidia_p4_gpus"),
    *_rows(
        "p100", {1: [], 2: [], 4: []}, type="NVIDIA_TESLA_P100", title="NVIDIA P100", memory_gib=16, instead="t4",
        refused="support for P100 ended on 2026-09-15",
    ),
    *_rows(
        "a100", {count: [f"a2-highgpu-{count}g"] for count in _UP_TO_8}, rates(3.673385, 1.80385),
        includes_machine=True, **_A100,
    ),
    *_rows("a100", {16: ["a2-megagpu-16g"]}, rates=rates(55.73951, 27.34384), includes_machine=True, **_A100),
    *_rows(
        "a100-80gb", {count: [f"a2-ultragpu-{count}g"] for count in _UP_TO_8}, _A100_80GB_RATES, type="NVIDIA_A100_80GB",
        title="NVIDIA A100", memory_gib=80, flex=None, quota="nvidia_a100_80gb_gpus", includes_machine=True,
    ),
    *_rows(
        "h100", {count: [f"a3-highgpu-{count}g"] for count in _UP_TO_8}, _H100_RATES, type="NVIDIA_H100_80GB",
        title="NVIDIA H100", memory_gib=80, flex=True, quota="nvidia_h100_gpus",
    ),
    *_rows(
        "h100-mega", {8: ["a3-megagpu-8g"]}, type="NVIDIA_H100_MEGA_80GB", title="NVIDIA H100 Mega", memory_gib=80, flex=None,
        rates=rates(92.21427, 28.17013 + 6000 * SSD_GIB_HOUR), includes_machine=True, quota="nvidia_h100_mega_gpus",
        peering=False,
    ),
    *_rows(
        "h200", {8: ["a3-ultragpu-8g"]}, type="NVIDIA_H200_141GB", title="NVIDIA H200", memory_gib=141, flex=True, script=_NCCL,
        rates=rates(86.75992, 40.99433 + 12000 * SSD_GIB_HOUR), includes_machine=True, quota="nvidia_h200_gpus", peering=False,
        notes="the price of its parts; Google's price page has 84.81 for the machine",
    ),
    *_rows(
        "rtx-pro-6000", {count: [f"g4-standard-{48 * count}"] for count in _UP_TO_8}, rates(4.5001, source=ENGINE_G4),
        type="NVIDIA_RTX_PRO_6000", title="NVIDIA RTX PRO 6000", memory_gib=96, includes_machine=True,
        own_tensorflow=_BLACKWELL, instead="h100",
    ),
    *_rows(
        "b200", {8: ["a4-highgpu-8g"]}, type="NVIDIA_B200", title="NVIDIA B200", memory_gib=180, flex=True, script=_NCCL,
        rates=rates(None, 32.6064), own_tensorflow=_BLACKWELL, instead="h200", peering=False,
        notes="no price on demand is published: 90.22 is the one of reserved calendar slots",
    ),
    *_rows(
        "gb200", {4: ["a4x-highgpu-4g"]}, type="NVIDIA_GB200", title="NVIDIA GB200", memory_gib=186, script=_NCCL,
        reservation=True, own_tensorflow=_GRACE, instead="h100", notes="needs a reservation, set by Vertex(raw=...)",
    ),
    *_rows(
        "k80", {1: []}, type="NVIDIA_TESLA_K80", title="NVIDIA K80", instead="t4",
        refused="K80 is no longer offered",
    ),
)  # fmt: skip
# In Compute Engine, but not offered for training.
ABSENT = {"gb300": "h200:8", "b300": "h200:8"}
