"""Container images by family of hardware: one for CPUs, one for GPUs, one for TPUs."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import nearest
from ..hardware import accelerators

FAMILIES = ("cpu", "gpu", "tpu")
# The tag of an image that an emulator has named: no registry has it.
EMULATED = ":emulated@"


def by_family(value: Mapping[str, str]) -> Mapping[str, str]:
    problems = [
        f"{name!r} is no family of hardware. {nearest(name, FAMILIES)}" for name in sorted({*value} - {*FAMILIES})
    ]
    problems += [f"{name} has no image" for name, image in value.items() if not image]
    if problems:
        raise ValueError("; ".join(problems))
    return value


def family_of(accelerator: str) -> str:
    return accelerators.lookup(accelerator).family
