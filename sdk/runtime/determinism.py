"""Makes a drill repeatable: seeds every random generator and restricts TensorFlow to deterministic operations."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType

from .patches import Patch, plumbing


def patches(seed: int) -> list[Patch]:
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
