"""Container images: one for all hardware, or one for each family of it, for CPUs, for GPUs, for TPUs, and one for keepers."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import nearest
from ..hardware import accelerators

FAMILIES = ("cpu", "gpu", "tpu")
# Names the image of keepers in the table.
KEEPER = "keeper"
# The tag of an image that an emulator has named: no registry has it.
EMULATED = ":emulated@"


def one_or_by_family(value: object) -> object:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be the name of an image, or a table with the names by family of hardware")
    names = (*FAMILIES, KEEPER)
    problems = [
        f"{name!r} is no family of hardware. {nearest(str(name), names)}" for name in value if name not in names
    ]
    problems += [f"{name} has no image" for name, image in value.items() if not (isinstance(image, str) and image)]
    if problems:
        raise ValueError("; ".join(problems))
    return dict(value)


def family_of(accelerator: str) -> str:
    return accelerators.lookup(accelerator).family
