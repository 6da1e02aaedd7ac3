"""The request to the inspecting process, and its observations, as plain data.

No TensorFlow here: the program may import it later, and Keras before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..runtime.patches import Function, around


@dataclass(frozen=True, kw_only=True)
class PreflightRequest:
    payload: str  # path of the payload
    accelerator: str  # name of a TPU
    report: str  # path of the report to write
    progress: str  # path of a file that gets a line for each stage that is reached
    dumps: str  # folder in which the compiler writes its tables
    strict: bool  # refuse dynamic shapes

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> PreflightRequest:
        return PreflightRequest(**json.loads(text))


@dataclass
class TracedStep:
    path: str  # the program's file that runs it, "" if that is outside of the program
    line: int  # in that file
    build: Callable[[list[Any]], Any]  # traces the step again for the given specs, and returns the graph
    specs: list[Any]  # its inputs, with the shapes that the program knows
    graph: Any  # of the step, or of the function that contains it
    on_tpu: bool  # False if it would run on the host
    trains: bool = True  # True if it changes variables


@dataclass
class Observations:
    steps: list[TracedStep] = field(default_factory=list)  # in the order of tracing
    datasets: list[Any] = field(default_factory=list)  # iterated by the program, the newest last
    # For arrays that Keras splits into batches: the size of a batch, and of the last one.
    arrays: list[tuple[int, int]] = field(default_factory=list)
    traced_s: float | None = None  # when the first step was traced, by the monotonic clock
    calls: int = 0  # how often a step was skipped


def watch_arrays(observations: Observations, adapters: Any) -> None:
    """Record how Keras splits arrays into batches."""

    @around(adapters.ArrayDataAdapter, "__init__")
    def init(original: Function, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self.batch_size and self.partial_batch_size and self.num_batches > 1:
            observations.arrays.append((int(self.batch_size), int(self.partial_batch_size)))
