"""The request to the process that inspects a program."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class PreflightRequest:
    payload: str  # path of the payload
    accelerator: str  # name of a TPU
    report: str  # path of the report to write
    progress: str  # path of a file that gets a line for each stage that is reached
    dumps: str  # folder in which the compiler writes its tables
    strict: bool  # refuse dynamic shapes
    home: str  # the folder that holds this package

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> PreflightRequest:
        return PreflightRequest(**json.loads(text))
