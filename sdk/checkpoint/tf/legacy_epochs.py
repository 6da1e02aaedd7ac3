"""tf_keras's `fit`, entered at the beginning of an epoch: what `keras_epochs` is for Keras 3, as far as it goes.

Its data handler cannot be put into the middle of an epoch, so states are saved behind epochs, and the order of shuffled data
is not the one that it would have been.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .position import Position

_NEVER = 1 << 60
_WHY = "tf_keras begins an epoch again from its beginning, and shuffled data in another order"

_begin: dict[int, int] = {}


def install(module: Any) -> None:
    """Put the hook into `tf_keras.src.engine.training`."""
    original = module.Model._maybe_load_initial_counters_from_ckpt

    @functools.wraps(original)
    def initial(model: Any, steps_per_epoch: Any, initial_epoch: int) -> tuple[int, int]:
        found: tuple[int, int] = original(model, steps_per_epoch, initial_epoch)
        return (_begin[id(model)], 0) if id(model) in _begin else found

    module.Model._maybe_load_initial_counters_from_ckpt = initial


def build(model: Any) -> None:
    """Make the optimizer's variables; those of the model are there when it was called or has an input's shape."""
    optimizer = model.optimizer
    if model.built and hasattr(optimizer, "build"):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def resume_into(model: Any, epoch: int, batch: int, state: bytes | None = None) -> None:
    """Have the `fit` that is going on begin with this epoch."""
    _begin[id(model)] = epoch


def position(model: Any, taken: int | None = None, *, by_count: bool = False) -> Position:
    """Return that nothing is known of the data."""
    return Position(kind="epoch", state=b"", why=_WHY)


def goes_on(model: Any) -> bool:
    """Every epoch begins its data anew."""
    return False


def when_over(model: Any, call: Callable[[], None]) -> None:
    """Nothing is known of the data."""


def skip(model: Any) -> None:
    """Have the `fit` that is going on return at once."""
    _begin[id(model)] = _NEVER


def leave(model: Any) -> None:
    """Forget what was told about this model."""
    _begin.pop(id(model), None)
