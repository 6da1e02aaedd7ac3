"""Makes a drill repeatable: everything random gets a seed, and TensorFlow uses only deterministic operations."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType

from .patches import Patch, plumbing


def patches(seed: int) -> list[Patch]:
    """Return what puts it in force, as soon as the program imports each library."""
    random.seed(seed)

    def tensorflow(module: ModuleType) -> None:
        module.config.experimental.enable_op_determinism()
        module.random.set_seed(seed)

    def keras(module: ModuleType) -> None:
        module.utils.set_random_seed(seed)

    changes: dict[str, Callable[[ModuleType], None]] = {
        "numpy": lambda module: module.random.seed(seed),
        "tensorflow": tensorflow,
        "keras": keras,
        "tf_keras": keras,
    }
    return plumbing("repeatable", "the drill compares trainings bit by bit", changes)
