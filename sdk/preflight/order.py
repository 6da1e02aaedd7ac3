"""What the process that looks at a program is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to look at.

    Args:
        payload: path of the payload.
        accelerator: name of a TPU row.
        report: path of the report to write.
        progress: path of the file that takes a line for each stage that is reached.
        dumps: the folder where the compiler leaves its tables.
        strict: refuse dynamic shapes.
        home: the folder that holds this package.
    """

    payload: str
    accelerator: str
    report: str
    progress: str
    dumps: str
    strict: bool
    home: str

    def to_json(self) -> str:
        """Return the order as JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Order:
        """Read what `to_json` wrote."""
        return Order(**json.loads(text))
