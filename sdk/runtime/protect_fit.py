"""`fit` is saved and continued without user code: hooks around the CallbackList of Keras 3 and of tf_keras.

They run in the training thread behind all callbacks, so that what those keep is what it is after the step or the epoch.
Only the outermost `fit` is protected: one inside a callback or a train step belongs to the step that it is part of.
"""

from __future__ import annotations

import importlib
import json
import os
from types import ModuleType
from typing import Any

from ..errors import CheckpointMismatchError
from .limits import Limit
from .patches import Patch, plumbing
from .patches.keras_parts import Function, around
from .protection import Protected, Protection

_CALLBACKS = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
_TRAINERS = {"keras.src.backend.tensorflow.trainer": "TensorFlowTrainer", "tf_keras.src.engine.training": "Model"}


class FitProtection:
    """Protects every `fit` of a program.

    Args:
        protection: what saves.
        auto: False where only a `fit` with the callback of `ctx.callbacks()` is protected.
        limit: of the steps of every `fit`.
    """

    def __init__(self, protection: Protection, *, auto: bool, limit: Limit | None = None) -> None:
        self._protection = protection
        self._auto = auto
        self._limit = limit
        self._fit: _Fit | None = None
        self._told = False

    def patches(self) -> list[Patch]:
        """Return what puts the protection in force."""
        return plumbing(
            "checkpoints",
            "fit is saved and continued",
            {**dict.fromkeys(_CALLBACKS, self._protect), **dict.fromkeys(_TRAINERS, self._watch)},
        )

    def _watch(self, module: ModuleType) -> None:
        if _is_legacy(module.__name__):
            importlib.import_module("..checkpoint.legacy_epochs", __package__).install(module)
        else:
            importlib.import_module("..checkpoint.keras_epochs", __package__).install()
            # A program that sets no seed shuffles its arrays alike in all tasks, and again after a restart.
            importlib.import_module("..checkpoint.keras_order", __package__).set_default_seed(
                self._protection.session.run_id
            )

            @around(module.TensorFlowTrainer, "_get_metrics_result_or_logs")
            def epoch_logs(original: Function, model: Any, logs: Any) -> Any:
                known = self._fit.logs if not logs and self._fit is not None and self._fit.model is model else None
                return original(model, known or logs)

        @around(getattr(module, _TRAINERS[module.__name__]), "fit")
        def fit(original: Function, model: Any, *args: Any, **options: Any) -> Any:
            try:
                return original(model, *args, **options)
            finally:
                # One that has failed does not stand in the way of the next.
                if self._fit is not None and self._fit.model is model:
                    self._fit = None
                    self._protection.forget()

    def _protect(self, module: ModuleType) -> None:
        kind = module.CallbackList

        @around(kind, "on_train_begin")
        def begin(original: Function, callbacks: Any, logs: Any = None) -> None:
            original(callbacks, logs)
            if self._fit is None and callbacks.model is not None and self._wanted(callbacks):
                self._begin(callbacks)

        @around(kind, "on_epoch_begin")
        def begin_epoch(original: Function, callbacks: Any, epoch: int, logs: Any = None) -> None:
            original(callbacks, epoch, logs)
            if (fit := self._of(callbacks)) is not None:
                fit.begin_epoch(epoch)

        @around(kind, "on_train_batch_begin")
        def begin_step(original: Function, callbacks: Any, batch: int, logs: Any = None) -> None:
            original(callbacks, batch, logs)
            if (fit := self._of(callbacks)) is not None:
                fit.begun = batch

        @around(kind, "on_train_batch_end")
        def end_step(original: Function, callbacks: Any, batch: int, logs: Any = None) -> None:
            original(callbacks, batch, logs)
            if (fit := self._of(callbacks)) is not None:
                fit.end_step(batch, logs)
            elif self._fit is None and self._protection.agreement.step() in ("stop", "preempt"):
                # Nothing is saved of this one: it ends as soon as that is wanted.
                callbacks.model.stop_training = True

        @around(kind, "on_test_begin")
        def begin_validation(original: Function, callbacks: Any, logs: Any = None) -> None:
            original(callbacks, logs)
            if self._of(callbacks) is not None:
                self._protection.kills.at("validation")

        @around(kind, "on_epoch_end")
        def end_epoch(original: Function, callbacks: Any, epoch: int, logs: Any = None) -> None:
            original(callbacks, epoch, logs)
            if (fit := self._of(callbacks)) is not None:
                fit.end_epoch(epoch, logs)

        @around(kind, "on_train_end")
        def end(original: Function, callbacks: Any, logs: Any = None) -> None:
            original(callbacks, logs)
            if (fit := self._of(callbacks)) is not None:
                self._fit = None
                fit.end()

    def _wanted(self, callbacks: Any) -> bool:
        if any(getattr(callback, "protects_fit", False) for callback in callbacks.callbacks):
            return True
        # Two that restore would undo each other's work, and the program has chosen.
        if self._auto and any(type(callback).__name__ == "BackupAndRestore" for callback in callbacks.callbacks):
            self._protection.log(
                "this fit has a BackupAndRestore, so podlift saves nothing of it. Without that callback fit is protected "
                "against a kill at any instant (docs/checkpoints.md)"
            )
            return False
        return self._auto

    def _begin(self, callbacks: Any) -> None:
        if not self._told:
            self._told = True
            self._protection.log("fit is protected: its state is saved, and restored when the run starts again")
        self._fit = _Fit(self._protection, callbacks)
        steps = self._fit.start()
        if self._limit is not None:
            self._limit.resume(callbacks.model, steps)

    def _of(self, callbacks: Any) -> _Fit | None:
        return self._fit if self._fit is not None and self._fit.callbacks is callbacks else None


class _Fit:
    """One `fit` that is going on."""

    def __init__(self, protection: Protection, callbacks: Any) -> None:
        self._legacy = _is_legacy(type(callbacks).__module__)
        self._epochs = importlib.import_module(
            f"..checkpoint.{'legacy' if self._legacy else 'keras'}_epochs", __package__
        )
        self._callback_state = importlib.import_module("..checkpoint.callback_state", __package__)
        self._callback_state.watch(callbacks.callbacks)
        self.callbacks = callbacks
        self.model = callbacks.model
        self.begun = 0
        self._epoch, self._batch = 0, 0
        self._resumed = False
        # Of the last step: what an epoch that was interrupted behind its last batch ends with.
        self.logs: Any = None
        self._metrics: dict[str, float] = {}
        self._epochs.build(self.model)
        self._stage: Protected = protection.begin("fit", self._variables)

    def _variables(self) -> Any:
        snapshot = importlib.import_module("..checkpoint.snapshot", __package__)
        found = snapshot.variables_of(**_state_of(self.model))
        if not self._legacy:
            return found
        # tf_keras makes those of metrics in the first step, and begins every epoch with all of them at zero.
        metrics = {id(variable) for metric in self.model.metrics for variable in metric.variables}
        kept = {path: variable for path, variable in found.items() if id(variable) not in metrics}
        return snapshot.Variables(kept.items(), found.own & kept.keys())

    def start(self) -> int:
        """Put what an earlier attempt has left in force, and return how many steps it has done."""
        self._start()
        return self._stage.steps

    def _start(self) -> None:
        stage = self._stage
        stage.capture = self._capture
        if not self._restore() or not stage.at:
            if stage.finished:
                self._leave_out()
            return
        if "callbacks" in stage.blobs:
            self._restore_callbacks(stage.blobs["callbacks"])
        if stage.finished or stage.at.get("over"):
            self._leave_out()
            return
        self._epoch, self._batch, self.logs = stage.at["epoch"], stage.at["batch"], stage.at.get("logs")
        self._resumed = True
        self._epochs.resume_into(self.model, self._epoch, self._batch, stage.blobs.get("data"))

    def _restore(self) -> bool:
        try:
            return self._stage.restore()
        except CheckpointMismatchError:
            if self._legacy:
                raise
        # A train step of the program's own may make variables, which are there after the first one only.
        self._epochs.run_a_step(self.model)
        self._stage.collect()
        return self._stage.restore()

    def _leave_out(self) -> None:
        """Have `fit` return at once, with the history that it has returned before."""
        stage = self._stage
        self._epochs.skip(self.model)
        history = getattr(self.model, "history", None)
        if history is not None and stage.history is not None:
            history.history, history.epoch = dict(stage.history), list(stage.epochs)

    def begin_epoch(self, epoch: int) -> None:
        """Note where the training is."""
        if not self._resumed:
            self._batch = 0
        self._epoch, self.begun, self._resumed = epoch, self._batch, False

    def end_step(self, last: int, logs: Any) -> None:
        """Note that an execution is over, whose last step has this number, and save what is due."""
        self.logs = logs
        # Before Keras 3.11 the end of an execution bears the number of its first step.
        each = getattr(self.model, "steps_per_execution", 1)
        behind = max(last + 1, self.begun + (each if isinstance(each, int) else 1))
        steps = (getattr(self.callbacks, "params", None) or {}).get("steps")
        behind = behind if steps is None else min(behind, steps)
        done, self._batch = max(behind - self._batch, 1), behind
        # Behind the last batch the epoch's end comes, and behind that of `fit` its own: there is no batch to go on with.
        if self._stage.stepped(done, hold=self._legacy or self._batch == steps or self.model.stop_training) == "stop":
            self.model.stop_training = True

    def end_epoch(self, epoch: int, logs: Any) -> None:
        """Save what waits for the end of the epoch."""
        self._metrics = _numbers(logs)
        self._epoch, self._batch = epoch + 1, 0
        epochs = (getattr(self.callbacks, "params", None) or {}).get("epochs")
        if not self._stage.interrupted:
            # The end is saved anyway, and in another way.
            self._stage.epoch_over(metrics=self._metrics, save=not self.model.stop_training and epoch + 1 != epochs)

    def end(self) -> None:
        """Save the end, so that this `fit` is not done again."""
        self._epochs.leave(self.model)
        stage, history = self._stage, getattr(self.model, "history", None)
        if history is not None and not stage.finished:
            # What it holds may be NumPy's numbers.
            stage.history = {name: [_plain(value) for value in values] for name, values in history.history.items()}
            stage.epochs = [int(epoch) for epoch in history.epoch]
        stage.finish(metrics=self._metrics)

    def _capture(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        kept, sentences = self._callback_state.capture(self.callbacks.callbacks)
        for sentence in sentences:
            self._stage.downgrade(sentence)
        blobs = {"callbacks": kept}
        at = {
            "epoch": self._epoch,
            "batch": self._batch,
            "over": bool(self.model.stop_training and not self._stage.interrupted),
            "logs": _numbers(self.logs),
        }
        data = self._epochs.position(self.model)
        blobs["data"] = data.state
        if data.why:
            self._stage.downgrade(data.why)
        return blobs, {**at, "data": data.kind}

    def _restore_callbacks(self, kept: bytes) -> None:
        for sentence in self._callback_state.restore(self.callbacks.callbacks, kept):
            self._stage.downgrade(sentence)


def _state_of(model: Any) -> dict[str, Any]:
    """Return the model, and what else with a state it has as attributes: optimizers of its own, generators, variables.

    Keras counts layers, metrics and variables of its own kind as the model's, and no others.
    """
    tf = importlib.import_module("tensorflow")
    kinds = (tf.Variable, tf.random.Generator)
    found = {}
    for name, value in vars(model).items():
        parts = (
            list(value.values())
            if isinstance(value, dict)
            else list(value)
            if isinstance(value, (list, tuple))
            else [value]
        )
        fitting = [part for part in parts if isinstance(part, kinds) or hasattr(part, "apply_gradients")]
        if fitting and not name.startswith("__") and not (len(fitting) == 1 and fitting[0] is model.optimizer):
            found[name.lstrip("_")] = fitting
    return {"model": model, **found}


def _is_legacy(module: str) -> bool:
    return module.startswith("tf_keras.")


def _numbers(logs: Any) -> dict[str, float]:
    return {str(name): number for name, value in (logs or {}).items() if isinstance(number := _plain(value), float)}


def _plain(value: Any) -> Any:
    """Return a number of whatever library as Python's, and what is none as JSON has it."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return json.loads(json.dumps(value, default=str))


def marker() -> Any:
    """Return a callback by which a `fit` says that it wants to be protected."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true")
    base: Any = importlib.import_module("tf_keras" if legacy else "keras").callbacks.Callback

    class Protect(base):  # type: ignore[misc]
        """Marks the `fit`; the hooks above do the work, behind all callbacks."""

        protects_fit = True
        async_safe = True

    return Protect()
