"""Machine types: those that are available for training, and the few known prices.

Source: documentation of Vertex AI, training/configure-compute (read 2026-11-20).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from . import ENGINE, VERTEX, Rate, rates

DEFAULT = "n1-standard-4"
_SIZES = (4, 8, 16, 32, 64, 96)
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
    *(f"c2-standard-{size}" for size in (4, 8, 16, 30, 60)),
)
# The documentation lists these families without their sizes.
_OPEN = re.compile(r"n[24]-(standard|highmem|highcpu)-[1-9][0-9]{0,2}|m1-[a-z]+-[1-9][0-9]{0,2}")
_VCPUS = re.compile(r"(?:n[124]|e2|c2|g2|g4)-[a-z]+-(\d{1,3})")

# a3-highgpu-1g: without its GPU. The sources lack the larger ones.
RATES: dict[str, tuple[Rate, ...]] = {
    "n1-standard-4": rates(0.21849885, source=VERTEX),
    "a3-highgpu-1g": rates(1.183, 0.361, source=ENGINE),
}
# System agents starve beside a GPU there (documentation of Vertex AI, configure-compute).
TIGHT = ("n1-highmem-2",)
# Machine types to suggest, with common sizes of the families above.
_OFFERED = (*LISTED, *(f"{family}-standard-{size}" for family in ("n2", "n4") for size in (4, 8, 16, 32)))


def allowed(machine: str) -> bool:
    """True if the machine type is available for tasks without accelerators."""
    return machine in LISTED or _OPEN.fullmatch(machine) is not None


def vcpus(machine: str) -> int | None:
    """Return the number of CPUs in a machine type's name, if there is one."""
    found = _VCPUS.fullmatch(machine)
    return int(found[1]) if found else None


def nearest(machine: str, known: Sequence[str] = _OFFERED) -> str:
    """Return the nearest machine type of `known`: the next larger of the same shape, else a similar name, else the first."""
    prefix, _, size = machine.rpartition("-")
    alike = sorted(
        (int(name.rpartition("-")[2]), name) for name in known if name.rpartition("-")[::2] == (prefix, _size(name))
    )
    if alike and size.isdecimal():
        return next((name for number, name in alike if number >= int(size[:9])), alike[-1][1])
    close = get_close_matches(machine, known, n=1)
    return close[0] if close else known[0]


def _size(name: str) -> str:
    """Return the number at the end of a machine type, "" if there is none."""
    size = name.rpartition("-")[2]
    return size if size.isdecimal() else ""
