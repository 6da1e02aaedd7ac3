"""Saves and continues `fit` without user code: hooks around the CallbackList of Keras 3 and of tf_keras.

They run in the training thread after all callbacks, so that the callbacks' state is that after the step or the epoch.
Only the outermost `fit` has checkpoints: one inside a callback or a train step belongs to the step that it is part of.
"""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...errors import CheckpointMismatchError
from ...logs import logger
from ...status import EXIT_CHECKPOINTED
from .. import reporting
from ..patches import CALLBACK_LISTS, TRAINERS, Function, Patch, around, plumbing, steps_done, trainer_of
from .auto_checkpoint import AutoCheckpoint, PhaseCheckpoints
from .limits import Limit
from .rescue import state_within

if TYPE_CHECKING:
    from ...checkpoint.manager import UnsavedState

_log = logger("runtime")

# Limits of a state kept in memory: up to the next step, and beyond it, where the step copies everything it changes.
_KEPT_BYTES, _KEPT_LONG_BYTES = 256_000_000, 32_000_000
# The time that this may take of a `fit`, in seconds and as a share: epochs may be short.
_KEEPING_S, _KEEPING_SHARE = 0.25, 0.01
# tf.data may have to finish an element before it can tell its position.
_CAPTURE_S = 2.0
# While the callbacks of these hooks are being called, the state is incomplete.
_HALF_CALLED = ("on_train_batch_begin", "on_epoch_end")


class FitHooks:
    """Adds checkpoints to every `fit` of a program.

    Args:
        auto: False if only a `fit` with the callback of `ctx.callbacks()` has checkpoints.
        limit: of the steps of every `fit`.
    """

    def __init__(self, checkpoint: AutoCheckpoint, *, auto: bool, limit: Limit | None = None) -> None:
        self._checkpoint, self._auto, self._limit = checkpoint, auto, limit
        self._fit: _SavedFit | None = None
        self._logged = False

    def patches(self) -> list[Patch]:
        changes: dict[str, Callable[[ModuleType], None]] = {
            **dict.fromkeys(CALLBACK_LISTS, self._hook_callbacks),
            **dict.fromkeys(TRAINERS, self._hook_trainer),
        }
        return plumbing("checkpoints", "fit is saved and continued", changes)

    def _hook_trainer(self, module: ModuleType) -> None:
        legacy = _is_legacy(module.__name__)
        from ...checkpoint.tf import keras_input

        # A program that sets no seed shuffles its arrays alike in all tasks, and again after a restart.
        keras_input.set_default_seed(self._checkpoint.manager.info.run_id)
        if legacy:
            from ...checkpoint.tf import legacy_epochs

            legacy_epochs.install(module)
        else:

            @around(module.TensorFlowTrainer, "_get_metrics_result_or_logs")
            def epoch_logs(original: Function, model: Any, logs: Any) -> Any:
                last = self._fit.logs if not logs and self._fit is not None and self._fit.model is model else None
                return original(model, last or logs)

        @around(trainer_of(module), "fit")
        def fit(original: Function, model: Any, *args: Any, **options: Any) -> Any:
            try:
                return original(model, *args, **options)
            except BaseException as error:
                if self._fit is not None and self._fit.model is model and not _is_intended(error):
                    self._checkpoint.unsaved = self._fit.unsaved_state()
                raise
            finally:
                # A `fit` that failed must not prevent checkpoints of the next one.
                if self._fit is not None and self._fit.model is model:
                    self._fit = None
                    self._checkpoint.drop_phase()

        if not legacy:
            from ...checkpoint.tf import keras_epochs

            # Around the hook above, which needs the position in the data until it returns.
            keras_epochs.install()

    def _hook_callbacks(self, module: ModuleType) -> None:
        kind = module.CallbackList

        @around(kind, "on_train_begin")
        def begin(original: Function, callbacks: Any, logs: Any = None) -> None:
            if self._fit is not None or callbacks.model is None:
                original(callbacks, logs)
                return
            is_saved = self._is_wanted(callbacks)
            # Before the program's callbacks, one of which may restore its own save.
            self._warm_start(callbacks, is_saved)
            original(callbacks, logs)
            if is_saved:
                self._begin(callbacks)

        for name in ("on_epoch_begin", "on_train_batch_begin", "on_test_begin", "on_epoch_end", "on_train_end"):
            around(kind, name)(functools.partial(self._call, name))

        @around(kind, "on_train_batch_end")
        def end_step(original: Function, callbacks: Any, batch: int, logs: Any = None) -> None:
            if (fit := self._fit_of(callbacks)) is not None:
                # The variables have their values after the step now; a callback may change them.
                done = fit.count(batch, logs)
                original(callbacks, batch, logs)
                fit.end_step(done)
                return
            original(callbacks, batch, logs)
            if self._fit is None and self._checkpoint.coordinator.step() in ("stop", "preempt"):
                # A `fit` without checkpoints ends as soon as a stop is requested.
                callbacks.model.stop_training = True

    def _call(self, name: str, original: Function, callbacks: Any, *args: Any, **options: Any) -> None:
        """Call a hook of all callbacks, and then the same hook of the fit."""
        fit = self._fit_of(callbacks)
        if fit is not None and name in _HALF_CALLED:
            fit.calling = name
        original(callbacks, *args, **options)
        if fit is not None:
            if name == "on_train_end":
                self._fit = None
            getattr(fit, name)(*args, **options)

    def _warm_start(self, callbacks: Any, is_saved: bool) -> None:
        warm = self._checkpoint.warm_start
        if warm.is_pending and is_saved and not self._checkpoint.is_fresh:
            warm.end("the run already has a checkpoint, or has trained before")
        warm.before_fit(callbacks.model, _epochs_of(callbacks).build_weights)

    def _is_wanted(self, callbacks: Any) -> bool:
        if any(getattr(callback, "podlift_checkpoints", False) for callback in callbacks.callbacks):
            return True
        # If both restored, each would undo the other's work, and the program has chosen this one.
        if self._auto and any(type(callback).__name__ == "BackupAndRestore" for callback in callbacks.callbacks):
            _log.info(
                "this fit has a BackupAndRestore callback, so podlift makes no checkpoints of it. Without the callback podlift "
                "protects it against a kill at any instant (docs/how-to/checkpoints.md)"
            )
            return False
        return self._auto

    def _begin(self, callbacks: Any) -> None:
        if not self._logged:
            self._logged = True
            _log.info("fit has checkpoints: its state is saved, and restored when the run is restarted")
        self._fit = _SavedFit(self._checkpoint, callbacks)
        self._fit.start()
        if self._limit is not None:
            self._limit.resume(callbacks.model, self._fit.steps)

    def _fit_of(self, callbacks: Any) -> _SavedFit | None:
        return self._fit if self._fit is not None and self._fit.callbacks is callbacks else None


class _SavedFit:
    """One `fit` in progress that has checkpoints."""

    def __init__(self, checkpoint: AutoCheckpoint, callbacks: Any) -> None:
        from ...checkpoint.tf import callback_state

        self._legacy = _is_legacy(type(callbacks).__module__)
        self._epochs: Any = _epochs_of(callbacks)
        self._callback_state = callback_state
        callback_state.watch(callbacks.callbacks)
        self.callbacks = callbacks
        self.model = callbacks.model
        self.first_batch = 0
        self._epoch, self._batch = 0, 0
        self._resumed = False
        # The logs of the last step, for an epoch that was interrupted after its last batch.
        self.logs: Any = None
        self._metrics: dict[str, float] = {}
        # The hook that is running, and the last state that is complete for all callbacks.
        self.calling = ""
        self._latest_state: UnsavedState | None = None
        self._since, self._spent_s = time.monotonic(), 0.0
        self._epochs.build(self.model)
        self._phase: PhaseCheckpoints = checkpoint.begin("fit", self._variables)
        self._manager, self._kill_points = checkpoint.manager, checkpoint.kill_points
        self._epochs.on_data_end(self.model, self._data_over)

    def _variables(self) -> Any:
        from ...checkpoint.tf import snapshot

        variables = snapshot.variables_of(**state_of(self.model))
        if not self._legacy:
            return variables
        # tf_keras makes the variables of metrics in the first step, and resets them to zero in every epoch.
        metrics = {id(variable) for metric in self.model.metrics for variable in metric.variables}
        without_metrics = {path: variable for path, variable in variables.items() if id(variable) not in metrics}
        return snapshot.Variables(without_metrics.items(), variables.per_replica & without_metrics.keys())

    @property
    def steps(self) -> int:
        return self._phase.steps

    def start(self) -> None:
        """Restore the state that an earlier attempt saved."""
        phase = self._phase
        phase.capture = self._capture
        if not self._restore() or not phase.at:
            if phase.finished:
                self._skip()
            return
        if "callbacks" in phase.blobs:
            for sentence in self._callback_state.restore(self.callbacks.callbacks, phase.blobs["callbacks"]):
                phase.downgrade(sentence)
        if phase.finished or phase.at.get("over"):
            self._skip()
            return
        self._epoch, self._batch = phase.at["epoch"], phase.at["batch"]
        self.logs = restored(phase.at.get("logs") or {})
        self._resumed = True
        self._epochs.resume_into(self.model, self._epoch, self._batch, phase.blobs.get("data"))

    def _restore(self) -> bool:
        try:
            return self._phase.restore()
        except CheckpointMismatchError:
            if self._legacy:
                raise
        # A custom train step may make variables, which exist only after the first step.
        self._epochs.run_a_step(self.model)
        return self._phase.restore(again=True)

    def _skip(self) -> None:
        """Let `fit` return at once, with the history that it returned before."""
        phase = self._phase
        self._epochs.skip(self.model)
        history = getattr(self.model, "history", None)
        if history is not None and phase.history is not None:
            history.history, history.epoch = restored(phase.history), list(phase.epochs)

    def on_test_begin(self, logs: Any = None) -> None:
        self._kill_points.reached("validation")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._resumed:
            self._batch = 0
        self._epoch, self.first_batch, self._resumed = epoch, self._batch, False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin an execution of one or more steps: until it ends, the variables are between two steps."""
        self.first_batch, self.calling = batch, ""
        if self._manager.size > _KEPT_LONG_BYTES:
            # The step would copy everything it changes.
            self._latest_state = None
        self._phase.in_step = True

    def count(self, last: int, logs: Any) -> int:
        """End an execution with this last step, and return how many steps it had."""
        # With parameter servers a step is scheduled, and not yet done.
        self.logs, self.calling = logs if isinstance(logs, dict) else None, "on_train_batch_end"
        next_batch = steps_done(self.model, self.first_batch, last, self._steps)
        done, self._batch = max(next_batch - self._batch, 1), next_batch
        self._phase.count(done)
        return done

    def end_step(self, done: int) -> None:
        """Write the checkpoint that is due after these steps, if any."""
        self.calling = ""
        # After the last batch comes the end of the epoch, and maybe of `fit`: there is no batch to continue with.
        hold = self._legacy or self._batch == self._steps or self.model.stop_training
        if self._phase.settle(done, hold=hold) == "stop":
            self.model.stop_training = True

    @property
    def _steps(self) -> int | None:
        """Steps of an epoch; None while unknown."""
        steps: int | None = (getattr(self.callbacks, "params", None) or {}).get("steps")
        return steps

    def _data_over(self) -> None:
        """Called after the last batch of an epoch: validation and callbacks follow before the epoch ends."""
        # If their number is unknown, a step has begun that found no batch, and may have changed something.
        if self._batch == self._steps:
            self._phase.in_step = False
            self._keep(self._batch)

    def _keep(self, batch: int | None = None) -> None:
        """Keep the state in memory, in case an exception comes before the next one is complete."""
        if self._manager.size > _KEPT_BYTES or self._phase.interrupted or self._epochs.keeps_iterator(self.model):
            self._latest_state = None
            return
        may_spend_s = _KEEPING_S + _KEEPING_SHARE * (time.monotonic() - self._since)
        if len(self._manager.info.tasks) > 1 or self._spent_s < may_spend_s:  # a single task need not agree with others
            start = time.thread_time()
            self._latest_state = self._phase.state(lambda: self._capture(batch, by_count=True))
            self._spent_s += time.thread_time() - start

    def unsaved_state(self) -> UnsavedState | None:
        """Return the state that an exception left: the one between two steps, or the one before."""
        phase, state = self._phase, self._latest_state
        clean = state is not None and state.steps == phase.steps

        def take() -> UnsavedState:
            if name := self._half_called():
                phase.downgrade(f"an exception in {name}: the callbacks after the one that raised it were not called")
            return phase.state(lambda: self._capture(self._batch))

        if phase.has_moved and not (phase.in_step or self._legacy or clean):
            state = state_within(take, _CAPTURE_S) or state
        if state is None or not phase.has_moved:
            return None
        sums = {id(variable) for metric in self.model.metrics for variable in metric.variables}
        return replace(state, metrics=frozenset(path for path, v in phase.variables.items() if id(v) in sums))

    def _half_called(self) -> str:
        """Return the hook that an exception ended, if more than one of the program's callbacks takes part in it."""
        own = [type(callback) for callback in self.callbacks.callbacks]
        own = [kind for kind in own if not kind.__module__.startswith(("keras.", "tf_keras.", f"{__package__}."))]
        several = self.calling == "on_epoch_end" or sum(_overrides(kind, self.calling) for kind in own) > 1
        return self.calling if self.calling and several else ""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the checkpoint that was held for the end of the epoch."""
        self._check_sizes(logs or {})
        self._metrics, _ = reporting.numbers(logs or {})
        self._epoch, self._batch = epoch + 1, 0
        epochs = (getattr(self.callbacks, "params", None) or {}).get("epochs")
        if not self._phase.interrupted:
            # The end of `fit` is saved separately.
            self._phase.epoch_over(metrics=self._metrics, save=not self.model.stop_training and epoch + 1 != epochs)
            if self._latest_state is None or self._latest_state.steps != self._phase.steps:
                self._keep()
        self.calling = ""

    def _check_sizes(self, logs: Mapping[str, Any]) -> None:
        from ...checkpoint.tf.object_state import LOGGED_BYTES, has_large_arrays

        for name in (name for name, value in logs.items() if has_large_arrays(value)):
            self._phase.downgrade(
                f"the metric {name} has arrays of more than {LOGGED_BYTES // 1000} kB: after a restart, the history only has a "
                "short text for earlier epochs"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Save the end, so that this `fit` is not repeated."""
        self._epochs.release(self.model)
        phase, history = self._phase, getattr(self.model, "history", None)
        if history is not None and not phase.finished:
            phase.history = {name: [_json_value(value) for value in values] for name, values in history.history.items()}
            phase.epochs = [int(epoch) for epoch in history.epoch]
        phase.finish(metrics=self._metrics)

    def _capture(
        self, batch: int | None = None, *, by_count: bool = False
    ) -> tuple[dict[str, bytes], dict[str, object]]:
        callback_blob, sentences = self._callback_state.capture(self.callbacks.callbacks)
        data = self._epochs.position(self.model, batch, by_count=by_count)
        for sentence in filter(None, (*sentences, data.why)):
            self._phase.downgrade(sentence)
        at = {
            "epoch": self._epoch,
            "batch": self._batch,
            "over": bool(self.model.stop_training and not self._phase.interrupted),
            "logs": {str(name): _json_value(value) for name, value in (self.logs or {}).items()},
            "data": data.kind,
        }
        return {"callbacks": callback_blob, "data": data.state}, at


def state_of(model: Any) -> dict[str, object]:
    """Return the model and its attributes with state that Keras does not track: optimizers, generators, variables."""
    import tensorflow as tf

    kinds = (tf.Variable, tf.random.Generator)
    stateful = {}
    for name, value in vars(model).items():
        members = value.values() if isinstance(value, dict) else value
        parts = list(members) if isinstance(value, (dict, list, tuple)) else [value]
        fitting = [part for part in parts if isinstance(part, kinds) or hasattr(part, "apply_gradients")]
        if fitting and not name.startswith("__") and not (len(fitting) == 1 and fitting[0] is model.optimizer):
            stateful[name.lstrip("_")] = fitting
    return {"model": model, **stateful}


def _is_intended(error: BaseException) -> bool:
    """True if the program exits on purpose, or after its state was saved."""
    return isinstance(error, SystemExit) and error.code in (None, 0, EXIT_CHECKPOINTED)


def _overrides(kind: type, name: str) -> bool:
    return any(name in vars(cls) for cls in kind.__mro__ if not cls.__module__.startswith(("keras.", "tf_keras.")))


def _epochs_of(callbacks: Any) -> Any:
    """Return the module that enters the epochs of this kind of `fit`."""
    from ...checkpoint.tf import keras_epochs, legacy_epochs

    return legacy_epochs if _is_legacy(type(callbacks).__module__) else keras_epochs


def _is_legacy(module: str) -> bool:
    return module.startswith("tf_keras.")


def _json_value(value: Any) -> Any:
    """Return a value of the logs as JSON: a number of any library as a float, which `restored` leaves alone."""
    from ...checkpoint.tf import object_state

    value = reporting.plain(value)
    if getattr(value, "shape", None) == () and value.dtype.kind in "biuf":
        return float(value)
    return object_state.encode(value, lossy=True)


def restored(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs, or a history, from the JSON that `_kept` made."""
    from ...checkpoint.tf import object_state

    decode = object_state.decode
    return {
        name: [decode(one) for one in value] if isinstance(value, list) else decode(value)
        for name, value in logs.items()
    }


def fit_callback() -> Any:
    """Return a callback that requests checkpoints for one `fit`; the hooks above make them, after all callbacks."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true")
    base: Any = importlib.import_module("tf_keras" if legacy else "keras").callbacks.Callback

    class PodliftCheckpoints(base):  # type: ignore[misc]
        podlift_checkpoints = True
        async_safe = True

    return PodliftCheckpoints()
