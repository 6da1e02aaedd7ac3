"""`max_steps`: every `fit` ends early and cleanly, with one validation, as smoke tests need it.

Keras checks `model.stop_training` after every step and `model.stop_evaluating` after every step of a validation. Both are set
inside CallbackList: Keras calls its methods in the training thread, in step with the loop. Separate callbacks could run later,
in another thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ...logs import logger
from ..patches import CALLBACK_LISTS, Function, Patch, around, plumbing, steps_done

_log = logger("runtime")

_MODELS = {"keras.src.trainers.trainer": "Trainer", "tf_keras.src.engine.training": "Model"}


@dataclass
class _LimitedFit:
    """A `fit` in progress."""

    owner: int  # id of its CallbackList: only a validation inside `fit` shares it
    epochs: int | None  # after which `fit` ends by itself; None if unknown
    steps: int | None  # of an epoch; None while unknown
    done: int = 0  # completed steps
    first_step: int = 0  # number of the first step of the current execution
    ending: bool = False  # True once the limit is reached
    owed: bool = False  # the program expects a validation of this epoch, which was skipped


class Limit:
    """Ends every `fit` of Keras 3 and of tf_keras after `max_steps` training steps.

    An execution of several steps (`steps_per_execution`) is not cut, so the steps may exceed the limit by its remainder.
    The validation inside `fit` runs once, when `fit` ends, regardless of `validation_freq`, on at most `max_steps` batches.
    Until then callbacks and the history find NaN under the names of its metrics, for programs that read them by name.
    If a callback ends `fit` before the validation, the validation follows one training step later.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps
        self._fits: WeakKeyDictionary[Any, _LimitedFit] = WeakKeyDictionary()

    def resume(self, model: Any, steps: int) -> None:
        """Count the steps that an earlier attempt did."""
        if model in self._fits:
            self._fits[model].done = steps

    def patches(self) -> list[Patch]:
        changes: dict[str, Callable[[ModuleType], None]] = {
            **dict.fromkeys(CALLBACK_LISTS, self._limit_fit),
            **dict.fromkeys(_MODELS, self._limit_validation),
        }
        return plumbing("max-steps", "the job's limit", changes)

    def _limit_fit(self, module: ModuleType) -> None:
        kind = module.CallbackList

        @around(kind, "on_train_begin")
        def begin(original: Function, callbacks: Any, logs: Any = None) -> None:
            if callbacks.model is not None:
                params = getattr(callbacks, "params", None) or {}
                self._fits[callbacks.model] = _LimitedFit(id(callbacks), params.get("epochs"), params.get("steps"))
            original(callbacks, logs)

        @around(kind, "on_epoch_end")
        def end_epoch(original: Function, callbacks: Any, epoch: int, logs: Any = None) -> None:
            fit = self._of(callbacks)
            owed = fit is not None and fit.owed
            if owed:
                logs = {**{f"val_{name}": float("nan") for name in logs or {}}, **(logs or {})}
            original(callbacks, epoch, logs)
            if fit is not None and owed and callbacks.model.stop_training:
                callbacks.model.stop_training, fit.ending = False, True

        self._after(kind, "on_train_batch_begin", self._begin_step)
        self._after(kind, "on_train_batch_end", self._count)
        self._after(kind, "on_test_begin", self._shorten)
        self._after(kind, "on_test_batch_end", self._end_validation)
        self._after(kind, "on_train_end", lambda fit, model, logs=None: self._fits.pop(model))

    def _after(self, kind: Any, name: str, call: Function) -> None:
        """Call a function with the fit and its model after a hook of the fit's callbacks."""

        @around(kind, name)
        def hook(original: Function, callbacks: Any, *args: Any, **options: Any) -> None:
            original(callbacks, *args, **options)
            fit = self._of(callbacks)
            if fit is not None:
                call(fit, callbacks.model, *args, **options)

    def _limit_validation(self, module: ModuleType) -> None:
        @around(getattr(module, _MODELS[module.__name__]), "_should_eval")
        def is_due(original: Function, model: Any, epoch: int, validation_freq: Any) -> bool:
            due: bool = original(model, epoch, validation_freq)
            fit = self._fits.get(model)
            if fit is None:
                return due
            last = model.stop_training or (fit.epochs is not None and epoch + 1 >= fit.epochs)
            fit.owed = due and not last and fit.epochs is not None
            return (due or last) and not fit.owed

    def _of(self, callbacks: Any) -> _LimitedFit | None:
        fit = None if callbacks.model is None else self._fits.get(callbacks.model)
        return fit if fit is not None and fit.owner == id(callbacks) else None

    def _begin_step(self, fit: _LimitedFit, model: Any, batch: int, logs: Any = None) -> None:
        fit.first_step = batch

    def _count(self, fit: _LimitedFit, model: Any, batch: int, logs: Any = None) -> None:
        fit.done += steps_done(model, fit.first_step, batch, fit.steps) - fit.first_step
        if fit.done >= self._max_steps and not fit.ending:
            fit.ending = True
            _log.info(f"fit ends after {fit.done} steps: max_steps={self._max_steps}")
        if fit.ending:
            model.stop_training = True

    def _shorten(self, fit: _LimitedFit, model: Any, logs: Any = None) -> None:
        """Reduce the number of batches in tf_keras, which cannot end a validation from outside."""
        handler = getattr(model, "_eval_data_handler", None)
        if handler is not None and handler.inferred_steps is not None:
            handler._steps_per_epoch = handler._inferred_steps = min(handler.inferred_steps, self._max_steps)

    def _end_validation(self, fit: _LimitedFit, model: Any, batch: int, logs: Any = None) -> None:
        if batch + 1 < self._max_steps:
            return
        if hasattr(model, "stop_evaluating"):
            model.stop_evaluating = True
        elif getattr(model, "_eval_data_handler", None) is not None and model._eval_data_handler.inferred_steps is None:
            raise StopIteration  # reports to tf_keras that data of unknown size is exhausted
