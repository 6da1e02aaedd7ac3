"""GPUs of Vertex AI's training machines.

Sources, read 2026-11-20: documentation of Vertex AI, training/configure-compute (machines, counts), general/locations
(regions: the complete list is known for V100 alone; us-central1 has every type), training/schedule-jobs-dws (flex-start),
quotas; memory of a chip from the vendor's data sheets. Prices: see each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import ENGINE_A2, VERTEX, Accelerator, Rate, rates
from .machines import N1, vcpus

_SEEN = ("us-central1",)
_V100_REGIONS = ("us-central1", "us-east1", "us-west1", "europe-west4", "asia-east1")
# CPUs for the input pipeline of one GPU: the default is the smallest machine that has them.
_VCPUS_PER_GPU = 4
# Machines with RDMA between GPUs have a plugin for NCCL; this script sets its variables (training/configure-compute).
_NCCL = "/usr/local/gib/scripts/set_nccl_env.sh"


def _name(base: str, count: int) -> str:
    return base if count == 1 else f"{base}:{count}"


def _row(base: str, count: int, machines: Sequence[str], **more: object) -> Accelerator:
    facts: dict[str, object] = {
        "seen_in": _SEEN, "machine": machines[0] if machines else None, "chips": count, "count": count,
        **more,
    }  # fmt: skip
    host = facts["machine"]
    return Accelerator(
        name=_name(base, count),
        family="gpu",
        backends=("vertex",),
        aliases=(f"{base}:1",) if count == 1 else (),
        machines=tuple(machines),
        vcpus=vcpus(host) if isinstance(host, str) else None,
        **facts,  # type: ignore[arg-type]
    )


def _l4() -> list[Accelerator]:
    machines = {1: (4, 8, 12, 16, 32), 2: (24,), 4: (48,), 8: (96,)}
    return [
        _row(
            "l4", count, [f"g2-standard-{size}" for size in sizes], type="NVIDIA_L4", title="NVIDIA L4", memory_gib=24,
            rates=rates(0.560, 0.223, times=count), flex=True, quota="nvidia_l4_gpus",
        )
        for count, sizes in machines.items()
    ]  # fmt: skip


def _a100() -> list[Accelerator]:
    about = {"type": "NVIDIA_TESLA_A100", "title": "NVIDIA A100", "memory_gib": 40, "flex": True}
    small = [
        _row(
            "a100", count, [f"a2-highgpu-{count}g"], **about, quota="nvidia_a100_gpus", includes_machine=True,
            rates=rates(3.673385, 1.293355, times=count, source=ENGINE_A2),
        )
        for count in (1, 2, 4, 8)
    ]  # fmt: skip
    large = [
        _row(
            "a100-80gb", count, [f"a2-ultragpu-{count}g"], type="NVIDIA_A100_80GB", title="NVIDIA A100", flex=None,
            memory_gib=80, quota="nvidia_a100_80gb_gpus", includes_machine=True,
        )
        for count in (1, 2, 4, 8)
    ]  # fmt: skip
    whole = _row("a100", 16, ["a2-megagpu-16g"], **about, quota="nvidia_a100_gpus", includes_machine=True)
    return [*small, whole, *large]


def _h100(count: int) -> tuple[Rate, ...]:
    # On demand from the page of Vertex AI; spot from Compute Engine's list.
    return rates(9.79655057, times=count, source=VERTEX) + rates(None, 2.99, times=count)


def _hopper() -> list[Accelerator]:
    h100 = [
        _row(
            "h100", count, [f"a3-highgpu-{count}g"], type="NVIDIA_H100_80GB", title="NVIDIA H100", memory_gib=80,
            rates=_h100(count), flex=True, quota="nvidia_h100_gpus",
        )
        for count in (1, 2, 4, 8)
    ]  # fmt: skip
    mega = _row(
        "h100-mega", 8, ["a3-megagpu-8g"], type="NVIDIA_H100_MEGA_80GB", title="NVIDIA H100 Mega",
        memory_gib=80, rates=rates(82.754, 25.28), flex=None,
    )  # fmt: skip
    h200 = _row(
        "h200", 8, ["a3-ultragpu-8g"], type="NVIDIA_H200_141GB", title="NVIDIA H200", memory_gib=141, flex=True, script=_NCCL,
    )  # fmt: skip
    return [*h100, mega, h200]


def _blackwell() -> list[Accelerator]:
    pro = [
        _row(
            "rtx-pro-6000", count, [f"g4-standard-{48 * count}"], type="NVIDIA_RTX_PRO_6000", title="NVIDIA RTX PRO 6000",
            memory_gib=96,
        )
        for count in (1, 2, 4, 8)
    ]  # fmt: skip
    b200 = _row(
        "b200", 8, ["a4-highgpu-8g"], type="NVIDIA_B200", title="NVIDIA B200", memory_gib=180, flex=True, script=_NCCL,
        rates=rates(90.2, 32.6), notes="the price mixes several entries of the list: 64.4 elsewhere",
    )  # fmt: skip
    gb200 = _row(
        "gb200", 4, ["a4x-highgpu-4g"], type="NVIDIA_GB200", title="NVIDIA GB200", memory_gib=186, script=_NCCL,
        reservation=True, notes="needs a reservation, set by Vertex(raw=...)",
    )  # fmt: skip
    return [*pro, b200, gb200]


def _hosts(kind: str, count: int) -> list[str]:
    """Return the n1 machines for a number of GPUs of one kind, the smallest sufficient one first."""
    allowed = [machine for machine in N1 if count in _counts(kind, *_parts(machine))]
    enough = [machine for machine in allowed if _parts(machine)[1] >= _VCPUS_PER_GPU * count]
    first = min(enough or allowed, key=lambda machine: (_parts(machine)[1], "standard" not in machine))
    return [first, *(machine for machine in allowed if machine != first)]


def _parts(machine: str) -> tuple[str, int]:
    _, shape, size = machine.split("-")
    return shape, int(size)


def _counts(kind: str, shape: str, size: int) -> tuple[int, ...]:
    """Return the possible numbers of GPUs of a kind ("v100", "p100", or another) in an n1 machine."""
    if kind == "v100":
        return (1, 2, 4, 8) if size <= 8 else {16: (2, 4, 8), 32: (4, 8)}.get(size, (8,))
    if size <= 16:
        return (1, 2, 4)
    if size == 32:
        return (2, 4)
    if kind == "p100":
        return (4,) if (shape, size) == ("highcpu", 64) else ()
    return (4,)


def _attached() -> list[Accelerator]:
    """GPUs attached to an n1 machine, which is priced separately."""
    return [
        *_kind("t4", (1, 2, 4), rates(0.35, 0.175), type="NVIDIA_TESLA_T4", memory_gib=16, quota="nvidia_t4_gpus"),
        *_kind(
            "v100", (1, 2, 4, 8), rates(2.48, 1.0885), type="NVIDIA_TESLA_V100", memory_gib=16, quota="nvidia_v100_gpus",
            regions=_V100_REGIONS,
        ),
        *_kind("p4", (1, 2, 4), rates(0.60, 0.224), type="NVIDIA_TESLA_P4", memory_gib=8),
        *_kind(
            "p100", (1, 2, 4), rates(1.46, 0.703), type="NVIDIA_TESLA_P100", memory_gib=16, quota="nvidia_p100_gpus",
            refused="support for P100 ended on 2026-09-15",
        ),
    ]  # fmt: skip


def _kind(base: str, counts: Sequence[int], one: Sequence[Rate], **more: object) -> list[Accelerator]:
    return [
        _row(
            base, count, _hosts(base, count), title=f"NVIDIA {base.upper()}",
            instead=_name("t4", count) if "refused" in more else "",
            rates=tuple(replace(rate, usd=rate.usd * count) for rate in one), **more,
        )
        for count in counts
    ]  # fmt: skip


def _gone() -> Accelerator:
    return _row(
        "k80", 1, [], type="NVIDIA_TESLA_K80", title="NVIDIA K80", seen_in=(), instead="t4", refused="K80 is no longer offered"
    )  # fmt: skip


ROWS = (*_l4(), *_attached(), *_a100(), *_hopper(), *_blackwell(), _gone())
