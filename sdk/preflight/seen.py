"""What was seen of a program, as plain data: TensorFlow may be imported later, or Keras before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..runtime.patches.keras_parts import Function, around


@dataclass
class Step:
    """A step as the program asks for it.

    Args:
        path: file of the program that asks for it, "" where that is nobody's.
        line: in that file.
        build: traces the step anew, for the given specs, and returns its graph.
        specs: what goes in, as far as the program knows its shapes.
        graph: the one that was traced, or the one that it is a part of.
        on_tpu: False where it would run on the host.
        trains: True where it changes variables.
    """

    path: str
    line: int
    build: Callable[[list[Any]], Any]
    specs: list[Any]
    graph: Any
    on_tpu: bool
    trains: bool = True


@dataclass
class Seen:
    """All that was seen of a program.

    Attributes:
        steps: in the order in which they were traced.
        datasets: data sets that it iterates over, the newest last.
        arrays: of data in memory that Keras cuts into batches: the size of a batch, and of the last one.
        traced_s: when the first step was traced, by the monotonic clock.
        calls: how often a step was left out.
    """

    steps: list[Step] = field(default_factory=list)
    datasets: list[Any] = field(default_factory=list)
    arrays: list[tuple[int, int]] = field(default_factory=list)
    traced_s: float | None = None
    calls: int = 0


def watch_arrays(seen: Seen, adapters: Any) -> None:
    """Note what Keras makes of arrays.

    Args:
        seen: takes it.
        adapters: the module of Keras that does it.
    """

    @around(adapters.ArrayDataAdapter, "__init__")
    def init(original: Function, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self.batch_size and self.partial_batch_size and self.num_batches > 1:
            seen.arrays.append((int(self.batch_size), int(self.partial_batch_size)))
