"""Enters tf_keras's `fit` at the beginning of an epoch: the counterpart of `keras_epochs` for tf_keras.

Its data handler cannot be entered in the middle of an epoch, so states are saved after epochs. Arrays come in the same order
again; of other data, `fit` takes the first order again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import building
from .keras_epochs import around
from .position import Position

_NEVER = 1 << 60
_WHY = (
    "tf_keras starts its data over after a restart: data that each epoch shuffles comes in the order of the first epochs. "
    "Next: pass arrays to fit, or use Keras 3"
)
_WHY_PER_WORKER = "with parameter servers, each worker starts its data over after a restart, in another order"

_begin: dict[int, int] = {}
# The data handler of a model's `fit`, while it runs; None until it exists.
_handlers: dict[int, Any] = {}


def install(module: Any) -> None:
    """Install the hooks into `tf_keras.src.engine.training`."""
    around(module.Model, "_maybe_load_initial_counters_from_ckpt", _initial_counters)
    around(module.data_adapter, "get_data_handler", _make_handler)
    around(module.Model, "fit", _run_fit)


def _initial_counters(
    original: Callable[..., Any], model: Any, steps_per_epoch: Any, initial_epoch: int
) -> tuple[int, int]:
    counters: tuple[int, int] = original(model, steps_per_epoch, initial_epoch)
    return (_begin[id(model)], 0) if id(model) in _begin else counters


def _make_handler(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
    handler = original(*args, **options)
    # The first one belongs to the `fit`: its validation has one too, as `evaluate` and `predict` have.
    if _handlers.get(id(options.get("model")), handler) is None:
        _handlers[id(options["model"])] = handler
    return handler


def _run_fit(original: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    outer = _handlers.get(id(model))  # of a `fit` with a callback that calls this one
    _handlers[id(model)] = None
    try:
        return original(model, *args, **options)
    finally:
        # Also of one that failed or that nothing saves: it would keep all of its data in memory.
        release(model)
        if outer is not None:
            _handlers[id(model)] = outer


def build(model: Any) -> None:
    """Create the variables of the model and the optimizer."""
    build_weights(model)
    optimizer = model.optimizer
    if model.built and hasattr(optimizer, "build"):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def build_weights(model: Any) -> None:
    """Create the weights of the model, also weights that are made at its first call, in `on_train_begin`."""
    building.call(model, lambda: _handlers[id(model)]._dataset.element_spec)


def resume_into(model: Any, epoch: int, batch: int, state: bytes | None = None) -> None:
    _begin[id(model)] = epoch
    order = _order_of(model)
    if order is not None:
        order.begin(epoch)


def position(model: Any, batch: int | None = None, *, by_count: bool = False) -> Position:
    # Once the `fit` is over, there is nothing to begin again.
    if id(model) not in _handlers:
        why = ""
    elif getattr(model, "_cluster_coordinator", None) is not None:
        why = _WHY_PER_WORKER
    else:
        why = "" if _order_of(model) is not None else _WHY
    return Position(kind="epoch", state=b"", why=why)


def _order_of(model: Any) -> Any:
    """Return the order of the arrays that a `fit` takes; None for other data, and for shuffled batches of arrays."""
    adapter = getattr(_handlers.get(id(model)), "_adapter", None)
    return None if getattr(adapter, "_shuffle", None) == "batch" else getattr(adapter, "podlift_order", None)


def keeps_iterator(model: Any) -> bool:
    return False


def on_data_end(model: Any, call: Callable[[], None]) -> None:
    """Does nothing: the data is unknown."""


def skip(model: Any) -> None:
    _begin[id(model)] = _NEVER


def release(model: Any) -> None:
    _begin.pop(id(model), None)
    _handlers.pop(id(model), None)
