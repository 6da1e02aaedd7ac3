"""The hardware that can be asked for, as one table.

Adding hardware is adding a row. Nothing else in the package may branch on an accelerator's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import InputError, nearest


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One thing that can be asked for.

    Args:
        name: what users write.
        family: which kind of device TensorFlow sees.
        backends: where it can be had.
    """

    name: str
    family: Literal["cpu", "gpu", "tpu"]
    backends: tuple[str, ...]


_TABLE = {row.name: row for row in (Accelerator(name="cpu", family="cpu", backends=("local",)),)}


def lookup(name: str) -> Accelerator:
    """Return the row called `name`.

    Raises:
        InputError: there is none; the sentence names the nearest.
    """
    try:
        return _TABLE[name]
    except KeyError:
        raise InputError(f"Unknown accelerator. Received: {name!r}. {nearest(name, list(_TABLE))}") from None
