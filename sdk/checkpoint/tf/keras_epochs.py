"""Keras 3's `fit`, entered in the middle of an epoch, with its data in the same order as before.

Usage, from a hook behind all callbacks::

    keras_epochs.install()                                # once, before the first fit
    keras_epochs.build(model)                             # on_train_begin: from here on every variable is there
    keras_epochs.resume_into(model, epoch, batch, state)  # then, with variables and generators restored
    keras_epochs.position(model).state                    # on_train_batch_end or on_epoch_end
    keras_epochs.leave(model)                             # on_train_end

Keras counts steps in a generator of its epoch iterator. That is wrapped: steps that were done before are taken from it and
not handed on, so that all of Keras's own counting goes on as ever. What `fit` does on its way there (it resets the metrics,
and callbacks begin an epoch that they had begun before) is undone before the first step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import distributed_input, keras_feed, randomness
from .keras_feed import FitInput
from .loading import assign
from .position import IteratorState, Position, python_state
from .snapshot import components, variables_of

_TRAINER = "keras.src.backend.tensorflow.trainer"
_NEVER = 1 << 60  # an epoch that no fit reaches


@dataclass
class _ActiveFit:
    """A `fit` that is going on; its training data is what it makes first, and later perhaps some for validation."""

    model: Any
    feed: FitInput | None = None


@dataclass(frozen=True, kw_only=True)
class _Resume:
    """Where a `fit` begins, and what variables and generators hold there."""

    batch: int
    place: IteratorState
    values: tuple[tuple[Any, Any], ...]
    random: bytes


_fits: list[_ActiveFit] = []


def install() -> None:
    """Put the hooks into Keras 3; call it again at will.

    Raises:
        AttributeError: this version of Keras has another trainer.
    """
    trainer = importlib.import_module(_TRAINER)
    if hasattr(trainer.TFEpochIterator, "podlift_feed"):
        return
    distributed_input.install()
    trainer.TFEpochIterator.podlift_feed = None
    _around(trainer.TensorFlowTrainer, "fit", _run_fit)
    _around(trainer.TFEpochIterator, "__init__", _make_data)
    _around(trainer.TFEpochIterator, "_get_iterator", _next_iterator)
    _around(trainer.TFEpochIterator, "_enumerate_iterator", _steps)
    _around(trainer.TFEpochIterator, "catch_stop_iteration", _epoch)


def build(model: Any) -> None:
    """Make the variables that the first step of a `fit` would make; call it in `on_train_begin`, with or without a state.

    A train step of the program's own may make still others: they are made by `resume_into`.
    """
    feed = _feed_of(model)
    if feed is None or _is_built(model):
        return
    # Whatever it does with symbols, a program's own model need not be able to; its first step builds it then.
    with model.distribute_strategy.scope():
        with contextlib.suppress(Exception):
            model._symbolic_build(data_batch=feed.spec())
        if model.built and model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def run_a_step(model: Any) -> None:
    """Run one training step, for the variables that it makes; all values have to be restored behind it."""
    feed = _feed_of(model)
    if feed is not None:
        model.train_function(feed.another_iterator())


def resume_into(model: Any, epoch: int, batch: int, state: bytes | None = None) -> None:
    """Have the `fit` that is going on begin behind this batch of this epoch; call it in `on_train_begin`.

    All variables and random generators must have been restored.

    Args:
        model: which is trained.
        epoch: counts from 0.
        batch: how many batches of it are done.
        state: what `position(model).state` was; without it the data goes on behind as many batches.

    Raises:
        ValueError: no `fit` of this model is going on, or `state` is none.
    """
    feed = _feed_of(model)
    if feed is None:
        raise ValueError(f"No fit of {getattr(model, 'name', model)!r} is going on.")
    model._initial_epoch = epoch
    variables = variables_of(model=model).values()
    values = tuple((c, c.read_value()) for variable in variables for c in components(variable))
    place = IteratorState.decode(state) if state else feed.place_by_count(epoch, batch)
    feed.resume = _Resume(batch=batch, place=place, values=values, random=randomness.capture())


def position(model: Any, taken: int | None = None, *, by_count: bool = False) -> Position:
    """Return where the data of the `fit` that is going on is; call it behind a step or an epoch.

    Args:
        model: which is trained.
        taken: behind so many batches of the epoch; None for behind the last step, or between two epochs.
        by_count: do not ask tf.data for its state.
    """
    feed = _feed_of(model)
    if feed is None:
        return Position(kind="skip", state=b"", why="the data of this fit is not known")
    return feed.position(taken, by_count=by_count)


def goes_on(model: Any) -> bool:
    """True where the next epoch takes its batches from the iterator of this one."""
    feed = _feed_of(model)
    return feed is not None and feed.goes_on


def when_over(model: Any, call: Callable[[], None]) -> None:
    """Have `call` called whenever the data of an epoch was gone through, before validation."""
    feed = _feed_of(model)
    if feed is not None:
        feed.over = call


def skip(model: Any) -> None:
    """Have the `fit` that is going on return at once; call it in `on_train_begin`."""
    model._initial_epoch = _NEVER


def leave(model: Any) -> None:
    """Forget what was told about this model; a later `fit` of it begins with its own first epoch."""
    model._initial_epoch = None


def _feed_of(model: Any) -> FitInput | None:
    return next((fit.feed for fit in reversed(_fits) if fit.model is model), None)


def _is_built(model: Any) -> bool:
    parts = [*model._flatten_layers(), model.optimizer, model._compile_metrics, model._compile_loss]
    return all(part is None or part.built for part in parts)


# --- The hooks ----------------------------------------------------------------------------------------------------


def _around(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return replacement(original, self, *args, **options)

    setattr(owner, name, call)


def _run_fit(original: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    _fits.append(_ActiveFit(model))
    try:
        return original(model, *args, **options)
    finally:
        _fits.pop()


def _make_data(original: Callable[..., Any], epochs: Any, *args: Any, **options: Any) -> None:
    if not _fits or _fits[-1].feed is not None:
        original(epochs, *args, **options)
        return
    with keras_feed.making() as order:
        original(epochs, *args, **options)
    _fits[-1].feed = epochs.podlift_feed = FitInput(epochs, order)


def _next_iterator(original: Callable[..., Any], epochs: Any) -> Any:
    if epochs.podlift_feed is not None:
        epochs.podlift_feed.begin_iterator()
    return original(epochs)


@contextlib.contextmanager
def _epoch(original: Callable[..., Any], epochs: Any) -> Iterator[None]:
    with original(epochs):
        yield
    if epochs.podlift_feed is not None:
        epochs.podlift_feed.end_epoch()


def _steps(original: Callable[..., Any], epochs: Any) -> Iterator[tuple[int, int, Any]]:
    feed: FitInput | None = epochs.podlift_feed
    if feed is None:
        yield from original(epochs)
        return
    resume, feed.resume = feed.resume, None
    random, entered = b"", None
    if resume is None:
        feed.begin_epoch()
    else:
        random = randomness.capture()
        feed.begin_again(resume.place)
    for begin, end, iterator in original(epochs):
        if begin == 0 and resume is not None:
            start = python_state()
            _undo(resume, random)
            entered = feed.enter(iterator, resume.place, start)
        elif begin == 0:
            feed.first_step(iterator)
        feed.taken = end + 1
        if resume is None or begin >= resume.batch:
            yield begin, end, iterator if entered is None else entered


def _undo(resume: _Resume, random: bytes) -> None:
    """Undo what the beginning of an epoch has done to one that had begun before."""
    if resume.batch:
        for component, value in resume.values:
            assign(component, value)
    randomness.restore(resume.random if resume.batch else random)
