"""Machine types available for training, the disks they boot from, and the few known prices.

Source: documentation of Vertex AI, training/configure-compute (read 2026-11-28), which lists each machine type. Boot disks:
errors of Compute Engine in public issues ("pd-standard disk type cannot be used by n4-standard-2 machine type"), and its
documentation, disks/hyperdisks, for N1; a family that is not listed has no known rule. Memory and local SSDs: documentation of
Compute Engine, general-purpose-machines, memory-optimized-machines and accelerator-optimized-machines (read 2026-11-28).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from . import VERTEX, Rate, rates

DEFAULT = "n1-standard-4"
_SIZES = (4, 8, 16, 32, 64, 96)
_SIZES_2 = (4, 8, 16, 32, 48, 64, 80)
N1 = (
    *(f"n1-standard-{size}" for size in _SIZES),
    *(f"n1-highmem-{size}" for size in (2, *_SIZES)),
    *(f"n1-highcpu-{size}" for size in _SIZES[2:]),
)
LISTED = (
    *N1,
    *(f"e2-standard-{size}" for size in (4, 8, 16, 32)),
    *(f"e2-highmem-{size}" for size in (2, 4, 8, 16)),
    *(f"e2-highcpu-{size}" for size in (16, 32)),
    *(f"n2-standard-{size}" for size in _SIZES_2),
    *(f"n2-highmem-{size}" for size in (2, *_SIZES_2)),
    *(f"n2-highcpu-{size}" for size in _SIZES_2[2:]),
    *(f"n4-{shape}-{size}" for shape in ("standard", "highmem", "highcpu") for size in (2, *_SIZES_2)),
    *(f"c2-standard-{size}" for size in (4, 8, 16, 30, 60)),
    *("m1-ultramem-40", "m1-ultramem-80", "m1-ultramem-160", "m1-megamem-96"),
)
# GiB of memory for each CPU, by the beginning of a machine type that ends with its number of CPUs.
_RAM_GIB = {
    **dict.fromkeys(("e2-standard", "n2-standard", "n4-standard", "c2-standard", "g2-standard"), 4.0),
    **dict.fromkeys(("e2-highmem", "n2-highmem", "n4-highmem"), 8.0),
    **{
        "n1-standard": 3.75,
        "n1-highmem": 6.5,
        "n1-highcpu": 0.9,
        "e2-highcpu": 1.0,
        "n2-highcpu": 1.0,
        "n4-highcpu": 2.0,
    },
    **{"g4-standard": 3.75, "m1-ultramem": 24.025, "m1-megamem": 1433.6 / 96},
}
# For each GPU: CPUs, GiB of memory, GiB of local SSDs that belong to the machine.
_OF_GPU = {
    "a2-highgpu": (12, 85.0, 0), "a2-megagpu": (6, 85.0, 0), "a2-ultragpu": (12, 170.0, 375),
    "a3-highgpu": (26, 234.0, 750), "a3-megagpu": (26, 234.0, 750), "a3-ultragpu": (28, 369.0, 1500),
}  # fmt: skip
_VCPUS = re.compile(r"(?:n[124]|e2|c2|g2|g4)-[a-z]+-(\d{1,3})")

# US dollars of a CPU with its memory in us-central1, on demand and on spot, from Compute Engine's SKUs as public catalogs had
# them in 2026-09 to 2026-11. Spot prices are published for the machine types of the first three lines only.
_CPU_HOUR: dict[str, tuple[float, float | None]] = {
    "n1-standard": (0.0474998, 0.0130575), "g2-standard": (0.0366984, 0.0146842), "c2-standard": (0.0522019, 0.0169919),
    "e2-standard": (0.0335057, 0.0146981), "n4-highmem": (0.0595100, 0.0220359), "n4-standard": (0.0453500, None),
    "n1-highmem": (0.0591515, None), "n1-highcpu": (0.0354243, None), "e2-highmem": (0.0451998, None),
    "e2-highcpu": (0.0247351, None), "n2-standard": (0.0485590, None), "n2-highmem": (0.0655070, None),
    "n2-highcpu": (0.0358480, None),
}  # fmt: skip
# Of a GPU's share of its machine, without the GPU. On spot, Vertex AI bills the local SSDs, here at their price on demand.
SSD_GIB_HOUR = 0.08 / 730
_GPU_HOST_HOUR = {"a3-highgpu": (1.18251, 0.36117 + 750 * SSD_GIB_HOUR)}


def _listed_rates() -> dict[str, tuple[Rate, ...]]:
    machine_rates = {}
    for name in (*LISTED, *(f"g2-standard-{size}" for size in (4, 8, 12, 16, 24, 32, 48, 96))):
        kind, _, size = name.rpartition("-")
        if kind in _CPU_HOUR:
            machine_rates[name] = rates(*_CPU_HOUR[kind], times=int(size))
    for kind, prices in _GPU_HOST_HOUR.items():
        machine_rates |= {f"{kind}-{count}g": rates(*prices, times=count) for count in (1, 2, 4, 8)}
    spot = tuple(rate for rate in machine_rates[DEFAULT] if rate.kind == "spot")
    return {**machine_rates, DEFAULT: (*rates(0.21849885, source=VERTEX), *spot)}


RATES = _listed_rates()
# System agents starve beside a GPU there (documentation of Vertex AI, configure-compute).
TIGHT = ("n1-highmem-2",)
HYPERDISK = "hyperdisk-balanced"
DISKS = ("pd-ssd", "pd-standard", HYPERDISK)
# By the beginning of a machine type.
_BOOT_DISKS = {
    **dict.fromkeys(("n4-", "g4-", "a3-ultragpu-", "a4-", "a4x-"), (HYPERDISK,)),
    **dict.fromkeys(("n1-", "n2-", "e2-"), ("pd-ssd", "pd-standard")),
}


def boot_disks(machine: str) -> tuple[str, ...]:
    """Return the types of disks that a machine type can boot from: every type of disk if no rule is known."""
    return next((disks for prefix, disks in _BOOT_DISKS.items() if machine.startswith(prefix)), DISKS)


def default_disk(machine: str) -> str:
    """Return the type of boot disk that training takes for a machine if a request names none (DiskSpec), fitting or not."""
    return HYPERDISK if machine.startswith("a3-ultragpu-") else DISKS[0]


def vcpus(machine: str) -> int | None:
    """Return the number of CPUs in a machine type's name, if there is one."""
    match = _VCPUS.fullmatch(machine)
    return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The parts of a machine type, without its GPUs."""

    vcpus: int
    ram_gib: float
    ssd_gib: int = 0


def shape(machine: str) -> Shape | None:
    """Return the parts of a machine type; None if no source has them."""
    kind, _, size = machine.rpartition("-")
    if kind in _RAM_GIB and size.isdecimal():
        return Shape(vcpus=int(size), ram_gib=int(size) * _RAM_GIB[kind])
    gpus = size.removesuffix("g")
    if kind in _OF_GPU and gpus.isdecimal():
        vcpus, ram_gib, ssd_gib = (int(gpus) * per_gpu for per_gpu in _OF_GPU[kind])
        return Shape(vcpus=int(vcpus), ram_gib=ram_gib, ssd_gib=int(ssd_gib))
    return None


def nearest(machine: str, names: Sequence[str] = LISTED) -> str:
    """Return the nearest machine type of `known`: the next larger of the same shape, else a similar name, else the first."""
    prefix, _, size = machine.rpartition("-")
    alike = sorted(
        (int(name.rpartition("-")[2]), name) for name in names if name.rpartition("-")[::2] == (prefix, _size(name))
    )
    if alike and size.isdecimal():
        return next((name for number, name in alike if number >= int(size[:9])), alike[-1][1])
    close = get_close_matches(machine, names, n=1)
    return close[0] if close else names[0]


def _size(name: str) -> str:
    """Return the number at the end of a machine type, "" if there is none."""
    size = name.rpartition("-")[2]
    return size if size.isdecimal() else ""
