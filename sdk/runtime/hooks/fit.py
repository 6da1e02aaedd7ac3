"""`fit` is saved and continued without user code: hooks around the CallbackList of Keras 3 and of tf_keras.

They run in the training thread behind all callbacks, so that what those keep is what it is after the step or the epoch.
Only the outermost `fit` is protected: one inside a callback or a train step belongs to the step that it is part of.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from ...errors import CheckpointMismatchError
from ...status import EXIT_CHECKPOINTED
from ..patches import Patch, plumbing
from ..patches.keras_parts import Function, around
from .auto_checkpoint import Protected, Protection
from .limits import Limit
from .rescue import State, bounded

# A state that is kept in memory: to the next step, and beyond, where the step then makes a copy of what it changes.
_KEPT_BYTES, _KEPT_LONG_BYTES = 256_000_000, 32_000_000
# What that may take of a `fit`, in seconds and as a share of its time: epochs may be short.
_KEEPING_S, _KEEPING_SHARE = 0.25, 0.01
# tf.data may have to finish an element before it can say where it is.
_LOOK_S = 2.0
_OF_EPOCHS = ("on_epoch_begin", "on_epoch_end")
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
            importlib.import_module("...checkpoint.tf.legacy_epochs", __package__).install(module)
        else:
            # A program that sets no seed shuffles its arrays alike in all tasks, and again after a restart.
            importlib.import_module("...checkpoint.tf.keras_order", __package__).set_default_seed(
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
            except BaseException as error:
                if self._fit is not None and self._fit.model is model and not _is_wanted(error):
                    self._protection.leave_behind(self._fit.left(self._protection.log))
                raise
            finally:
                # One that has failed does not stand in the way of the next.
                if self._fit is not None and self._fit.model is model:
                    self._fit = None
                    self._protection.forget()

        if not _is_legacy(module.__name__):
            # Around that one: where its data is, is known as long as it goes on.
            importlib.import_module("...checkpoint.tf.keras_epochs", __package__).install()

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
            if (fit := self._of(callbacks)) is None:
                original(callbacks, batch, logs)
            else:
                fit.calling = "on_train_batch_begin"
                original(callbacks, batch, logs)
                fit.begin_step(batch)

        @around(kind, "on_train_batch_end")
        def end_step(original: Function, callbacks: Any, batch: int, logs: Any = None) -> None:
            if (fit := self._of(callbacks)) is not None:
                # The variables are those after the step, whatever a callback does now.
                done = fit.count(batch, logs)
                original(callbacks, batch, logs)
                fit.end_step(done)
                return
            original(callbacks, batch, logs)
            if self._fit is None and self._protection.agreement.step() in ("stop", "preempt"):
                # Nothing is saved of this one: it ends as soon as that is wanted.
                callbacks.model.stop_training = True

        self._protect_ends(kind)

    def _protect_ends(self, kind: Any) -> None:
        @around(kind, "on_test_begin")
        def begin_validation(original: Function, callbacks: Any, logs: Any = None) -> None:
            original(callbacks, logs)
            if self._of(callbacks) is not None:
                self._protection.kills.at("validation")

        @around(kind, "on_epoch_end")
        def end_epoch(original: Function, callbacks: Any, epoch: int, logs: Any = None) -> None:
            if (fit := self._of(callbacks)) is None:
                original(callbacks, epoch, logs)
            else:
                fit.calling = "on_epoch_end"
                original(callbacks, epoch, logs)
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
                "against a kill at any instant (docs/how-to/checkpoints.md)"
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
            f"...checkpoint.tf.{'legacy' if self._legacy else 'keras'}_epochs", __package__
        )
        self._callback_state = importlib.import_module("...checkpoint.tf.callback_state", __package__)
        self._callback_state.watch(callbacks.callbacks)
        self.callbacks = callbacks
        self.model = callbacks.model
        self.begun = 0
        self._epoch, self._batch = 0, 0
        self._resumed = False
        # Of the last step: what an epoch that was interrupted behind its last batch ends with.
        self.logs: Any = None
        self._metrics: dict[str, float] = {}
        # The hook whose callbacks are being called, and the last state that no callback has half seen.
        self.calling = ""
        self._kept: State | None = None
        self._since, self._spent_s = time.monotonic(), 0.0
        self._epochs.build(self.model)
        self._stage: Protected = protection.begin("fit", self._variables)
        self._session = protection.session
        self._epochs.when_over(self.model, self._data_over)

    def _variables(self) -> Any:
        snapshot = importlib.import_module("...checkpoint.tf.snapshot", __package__)
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

    def begin_step(self, first: int) -> None:
        """Note that an execution begins: until it is over, the state is that of no step."""
        self.begun, self.calling = first, ""
        if self._session.size > _KEPT_LONG_BYTES:
            # The step would make a second copy of what it changes.
            self._kept = None
        self._stage.in_step = True

    def count(self, last: int, logs: Any) -> int:
        """Note that an execution is over, whose last step has this number; return how many steps it was."""
        self.logs, self.calling = logs, "on_train_batch_end"
        # Before Keras 3.11 the end of an execution bears the number of its first step.
        each = getattr(self.model, "steps_per_execution", 1)
        behind = max(last + 1, self.begun + (each if isinstance(each, int) else 1))
        behind = behind if self._steps is None else min(behind, self._steps)
        done, self._batch = max(behind - self._batch, 1), behind
        self._stage.count(done)
        return done

    def end_step(self, done: int) -> None:
        """Save what is due behind so many steps."""
        self.calling = ""
        # Behind the last batch the epoch's end comes, and behind that of `fit` its own: there is no batch to go on with.
        hold = self._legacy or self._batch == self._steps or self.model.stop_training
        if self._stage.settle(done, hold=hold) == "stop":
            self.model.stop_training = True

    @property
    def _steps(self) -> int | None:
        """Of an epoch; None while that is not known."""
        steps: int | None = (getattr(self.callbacks, "params", None) or {}).get("steps")
        return steps

    def _data_over(self) -> None:
        """Note that the batches of an epoch are done: what comes before its end are validation and callbacks."""
        # Where their number is not known, a step was begun that has found no batch, and may have changed something.
        if self._batch == self._steps:
            self._stage.in_step = False
            self._keep(self._batch)

    def _keep(self, taken: int | None = None) -> None:
        """Keep the state in memory, for an exception that comes before the next one is complete."""
        if self._session.size > _KEPT_BYTES or self._stage.interrupted or self._epochs.goes_on(self.model):
            self._kept = None
            return
        may_spend_s = _KEEPING_S + _KEEPING_SHARE * (time.monotonic() - self._since)
        if len(self._session.tasks) > 1 or self._spent_s < may_spend_s:  # one that is alone has to agree with nobody
            begun = time.thread_time()
            self._kept = self._stage.state(lambda: self._capture(taken, by_count=True))
            self._spent_s += time.thread_time() - begun

    def left(self, log: Callable[[str], None]) -> State | None:
        """Return what an exception has left: the state between two steps, or the one before."""
        stage, found = self._stage, [self._kept]
        clean = self._kept is not None and self._kept.steps == stage.steps

        def look() -> None:
            try:
                if name := self._half_called():
                    stage.downgrade(
                        f"an exception in {name}: the callbacks after the one that raised it were not called"
                    )
                found[:] = [stage.state(lambda: self._capture(self._batch))]
            except Exception as error:
                log(f"what is left of the training cannot be saved: {type(error).__name__}: {error}")

        if stage.has_moved and not (stage.in_step or self._legacy or clean):
            bounded(look, _LOOK_S)
        state = found[0]
        if state is None or not stage.has_moved:
            return None
        sums = {id(variable) for metric in self.model.metrics for variable in metric.variables}
        return replace(state, metrics=frozenset(path for path, v in stage.variables.items() if id(v) in sums))

    def _half_called(self) -> str:
        """Return the hook that an exception has ended, where more than one callback of the program takes part in it."""
        own = [type(callback) for callback in self.callbacks.callbacks]
        own = [kind for kind in own if not kind.__module__.startswith(("keras.", "tf_keras.", f"{__package__}."))]
        several = self.calling in _OF_EPOCHS or sum(_overrides(kind, self.calling) for kind in own) > 1
        return self.calling if self.calling and several else ""

    def end_epoch(self, epoch: int, logs: Any) -> None:
        """Save what waits for the end of the epoch."""
        self._metrics = _numbers(logs)
        self._epoch, self._batch = epoch + 1, 0
        epochs = (getattr(self.callbacks, "params", None) or {}).get("epochs")
        if not self._stage.interrupted:
            # The end is saved anyway, and in another way.
            self._stage.epoch_over(metrics=self._metrics, save=not self.model.stop_training and epoch + 1 != epochs)
            if self._kept is None or self._kept.steps != self._stage.steps:
                self._keep()
        self.calling = ""

    def end(self) -> None:
        """Save the end, so that this `fit` is not done again."""
        self._epochs.leave(self.model)
        stage, history = self._stage, getattr(self.model, "history", None)
        if history is not None and not stage.finished:
            # What it holds may be NumPy's numbers.
            stage.history = {name: [_plain(value) for value in values] for name, values in history.history.items()}
            stage.epochs = [int(epoch) for epoch in history.epoch]
        stage.finish(metrics=self._metrics)

    def _capture(self, taken: int | None = None, *, by_count: bool = False) -> tuple[dict[str, bytes], dict[str, Any]]:
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
        data = self._epochs.position(self.model, taken, by_count=by_count)
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


def _is_wanted(error: BaseException) -> bool:
    """True for an end that the program has chosen, or that has saved already."""
    return isinstance(error, SystemExit) and error.code in (None, 0, EXIT_CHECKPOINTED)


def _overrides(kind: type, name: str) -> bool:
    return any(name in vars(cls) for cls in kind.__mro__ if not cls.__module__.startswith(("keras.", "tf_keras.")))


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
