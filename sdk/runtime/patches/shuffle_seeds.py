"""One order of shuffled data for all tasks, and again after a restart, in programs that set no seed.

Without a seed, each process shuffles its copy of the data differently. Workers that keep every n-th example of their own order
see some examples twice in an epoch and others never. The seed is derived from the run and from the line that shuffles.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from types import FrameType, ModuleType
from typing import Any

from . import Function, Patch, around, plumbing

_DATA_SEEDS = "tensorflow.python.data.util.random_seed"
_LEGACY_ARRAYS = "tf_keras.src.engine.data_adapter"
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "tensorflow_datasets", __package__.partition(".")[0])


class ShuffleSeeds:
    """The seeds of one run for `tf.data.Dataset.shuffle`, and for the arrays of tf_keras's `fit`."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._calls_by_line: Counter[str] = Counter()
        self._derived: set[int] = set()

    def derived(self, step: Any) -> bool:
        """Return whether a step of a pipeline has a seed of this run, which all tasks have in common."""
        from tensorflow import get_static_value

        seed = getattr(step, "_seed2", None)
        return seed is not None and get_static_value(seed) in self._derived

    def patches(self) -> list[Patch]:
        changes = {_DATA_SEEDS: self._hook_data, _LEGACY_ARRAYS: self._hook_legacy_arrays}
        return plumbing("shuffle-seeds", "all tasks shuffle data alike", changes)

    def _hook_data(self, module: ModuleType) -> None:
        @around(module, "get_seed")
        def get_seed(original: Function, seed: Any) -> Any:
            pair = original(seed)
            from tensorflow import get_static_value

            if seed is None and all(get_static_value(part) == 0 for part in pair):
                derived = original(self._next())
                self._derived.add(get_static_value(derived[1]))
                return derived
            return pair

    def _hook_legacy_arrays(self, module: ModuleType) -> None:
        @around(module.TensorLikeDataAdapter, "__init__")
        def init(original: Function, adapter: Any, *args: Any, **options: Any) -> None:
            if not options.get("shuffle"):
                original(adapter, *args, **options)
                return
            from ...checkpoint.tf import keras_input

            order = keras_input.ArrayOrder()
            with order.in_force():
                original(adapter, *args, **options)
            adapter.podlift_order = order

    def _next(self) -> int:
        """Return the next seed of the program's line that is running."""
        # By line, since the first task alone may make data that the others do not.
        line = _line()
        self._calls_by_line[line] += 1
        words = f"{self._run_id}/{line}/{self._calls_by_line[line]}"
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "little") >> 1


def _line() -> str:
    """Return the line of the program that called a library; each task has its own copy of the file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
