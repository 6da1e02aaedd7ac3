"""Enters Keras 3's `fit` in the middle of an epoch, with its data in the same order as before.

Usage, from a hook after all callbacks::

    keras_epochs.install()                                # once, before the first fit
    keras_epochs.build(model)                             # on_train_begin: from here on every variable exists
    keras_epochs.resume_into(model, epoch, batch, state)  # then, with variables and generators restored
    keras_epochs.position(model).state                    # on_train_batch_end or on_epoch_end
    keras_epochs.release(model)                           # on_train_end

Keras counts steps in a generator of its epoch iterator. That generator is wrapped: completed steps are consumed but not passed
on, so that Keras's own counting stays correct. Its side effects (`fit` resets metrics, and callbacks begin an epoch that they
had already begun) are undone before the first step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import building, keras_input, randomness
from .keras_input import FitInput
from .loading import assign
from .position import IteratorState, Position, python_state
from .snapshot import components, variables_of

_TRAINER = "keras.src.backend.tensorflow.trainer"
_NEVER = 1 << 60  # an epoch that no fit reaches


@dataclass
class _ActiveFit:
    """A running `fit`. The first data that it creates is its training data; later data may be for validation."""

    model: Any
    data: FitInput | None = None


@dataclass(frozen=True, kw_only=True)
class _Resume:
    """Where a `fit` starts, and the values of variables and generators there."""

    batch: int
    at: IteratorState
    values: tuple[tuple[Any, Any], ...]
    random: bytes


_active_fits: list[_ActiveFit] = []


def install() -> None:
    """Install the hooks into Keras 3; idempotent. AttributeError: this version of Keras has a different trainer."""
    trainer = importlib.import_module(_TRAINER)
    if hasattr(trainer.TFEpochIterator, "podlift_input"):
        return
    keras_input.install_plain_iterators()
    trainer.TFEpochIterator.podlift_input = None
    around(trainer.TensorFlowTrainer, "fit", _run_fit)
    around(trainer.TFEpochIterator, "__init__", _make_data)
    around(trainer.TFEpochIterator, "_get_iterator", _next_iterator)
    around(trainer.TFEpochIterator, "_enumerate_iterator", _steps)
    around(trainer.TFEpochIterator, "catch_stop_iteration", _epoch)


def build(model: Any) -> None:
    """Create the variables that the first step of a `fit` would create, in `on_train_begin`; see also `run_a_step`."""
    data = _input_of(model)
    if data is None or _is_built(model):
        return
    # A custom model may not support symbolic inputs; then its first step builds it.
    with model.distribute_strategy.scope():
        with contextlib.suppress(Exception):
            model._symbolic_build(data_batch=data.spec())
        if model.built and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def build_weights(model: Any) -> None:
    """Create the weights of the model, also weights that are made at its first call, in `on_train_begin`."""
    build(model)
    data = _input_of(model)
    if data is not None:
        building.call(model, data.spec)


def run_a_step(model: Any) -> None:
    """Run one training step to create its variables; all values must be restored afterwards."""
    data = _input_of(model)
    if data is not None:
        model.train_function(data.another_iterator())


def resume_into(model: Any, epoch: int, batch: int, state: bytes | None = None) -> None:
    """Start the running `fit` after this batch of this epoch; call it in `on_train_begin`, after restoring everything.

    `state` is the saved `position(model).state`; without it, as many batches of data are skipped.
    """
    data = _input_of(model)
    if data is None:
        raise ValueError(f"The model {getattr(model, 'name', model)!r} has no running fit.")
    model._initial_epoch = epoch
    variables = variables_of(model=model).values()
    values = tuple((c, c.read_value()) for variable in variables for c in components(variable))
    at = IteratorState.decode(state) if state else data.state_by_count(epoch, batch)
    data.resume = _Resume(batch=batch, at=at, values=values, random=randomness.capture())


def position(model: Any, batch: int | None = None, *, by_count: bool = False) -> Position:
    """Return the data position after `batch` batches of the epoch, or after the last step or epoch."""
    data = _input_of(model)
    if data is None:
        return Position(kind="skip", state=b"", why="the data of this fit is unknown")
    return data.position(batch, by_count=by_count)


def keeps_iterator(model: Any) -> bool:
    """True if the next epoch continues this one's iterator."""
    data = _input_of(model)
    return data is not None and data.keeps_iterator


def on_data_end(model: Any, call: Callable[[], None]) -> None:
    """Call `call` each time an epoch's data is exhausted, before validation."""
    data = _input_of(model)
    if data is not None:
        data.over = call


def skip(model: Any) -> None:
    """Make the running `fit` return at once; call it in `on_train_begin`."""
    model._initial_epoch = _NEVER


def release(model: Any) -> None:
    """Reset the model: a later `fit` starts with its own first epoch."""
    model._initial_epoch = None


def _input_of(model: Any) -> FitInput | None:
    return next((fit.data for fit in reversed(_active_fits) if fit.model is model), None)


def _is_built(model: Any) -> bool:
    parts = [*model._flatten_layers(), model.optimizer, model._compile_metrics, model._compile_loss]
    return all(part is None or part.built for part in parts)


# --- The hooks ----------------------------------------------------------------------------------------------------


def around(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace `owner.name` by a function with the original as its first argument."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        return replacement(original, *args, **options)

    setattr(owner, name, call)


def _run_fit(original: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    _active_fits.append(_ActiveFit(model))
    try:
        return original(model, *args, **options)
    finally:
        _active_fits.pop()


def _make_data(original: Callable[..., Any], epochs: Any, *args: Any, **options: Any) -> None:
    if not _active_fits or _active_fits[-1].data is not None:
        original(epochs, *args, **options)
        return
    order = keras_input.ShuffleOrder()
    with order.in_force():
        original(epochs, *args, **options)
    _active_fits[-1].data = epochs.podlift_input = FitInput(epochs, order)


def _next_iterator(original: Callable[..., Any], epochs: Any) -> Any:
    if epochs.podlift_input is not None:
        epochs.podlift_input.begin_iterator()
    return original(epochs)


@contextlib.contextmanager
def _epoch(original: Callable[..., Any], epochs: Any) -> Iterator[None]:
    with original(epochs):
        yield
    if epochs.podlift_input is not None:
        epochs.podlift_input.end_epoch()


def _steps(original: Callable[..., Any], epochs: Any) -> Iterator[tuple[int, int, Any]]:
    data: FitInput | None = epochs.podlift_input
    if data is None:
        yield from original(epochs)
        return
    resume, data.resume = data.resume, None
    random, entered = b"", None
    if resume is None:
        data.begin_epoch()
    else:
        random = randomness.capture()
        data.begin_again(resume.at)
    for begin, end, iterator in original(epochs):
        if begin == 0 and resume is not None:
            start = python_state()
            _undo(resume, random)
            entered = data.enter(iterator, resume.at, start)
        elif begin == 0:
            data.first_step(iterator)
        data.batch = end + 1
        if resume is None or begin >= resume.batch:
            yield begin, end, iterator if entered is None else entered


def _undo(resume: _Resume, random: bytes) -> None:
    """Undo the work of Keras at the beginning of an epoch that had already begun."""
    if resume.batch:
        for component, value in resume.values:
            assign(component, value)
    randomness.restore(resume.random if resume.batch else random)
