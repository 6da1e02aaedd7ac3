"""The evaluator task: it evaluates each checkpoint that the others commit, and ends when the training has ended.

In it, `fit` trains nothing. It loads the weights of one checkpoint after the other and evaluates them on its validation data.
"""

from __future__ import annotations

import importlib
import inspect
import posixpath
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from ...checkpoint.feed import CheckpointFeed
from ...checkpoint.restore import Checkpoint
from ...errors import InputError
from ...logs import logger
from ..patches import TRAINERS, Function, Patch, around, install, plumbing, trainer_of
from ..reporting import Reporter

_log = logger("runtime")

_MULTI_WORKER = "tensorflow.python.distribute.collective_all_reduce_strategy"
# Of the run's TensorBoard folder.
_BOARD = "evaluator"


class Evaluator:
    """The work of the evaluator, in place of training.

    Args:
        feed: the checkpoints of the run.
        reporter: of the evaluator's metrics.
        tensorboard: the run's TensorBoard folder.
        file_patches: returns the patches that keep its Keras files out of the chief's paths.
    """

    def __init__(
        self, feed: CheckpointFeed, reporter: Reporter, tensorboard: str, file_patches: Callable[[], list[Patch]]
    ) -> None:
        self._checkpoints = iter(feed)
        self._next: Checkpoint | None = None
        self._reporter, self._tensorboard, self._file_patches = reporter, tensorboard, file_patches
        self._fits = self._evaluated = 0
        self._board: Any = None

    def patches(self) -> list[Patch]:
        changes: dict[str, Callable[[ModuleType], None]] = {
            **dict.fromkeys(TRAINERS, self._hook_trainer),
            _MULTI_WORKER: _alone,
        }
        return plumbing("evaluator", "fit evaluates checkpoints in the evaluator", changes)

    def _hook_trainer(self, module: ModuleType) -> None:
        trainer = trainer_of(module)
        signature = inspect.signature(trainer.fit)

        @around(trainer, "fit")
        def fit(original: Function, model: Any, *args: Any, **options: Any) -> Any:
            try:
                bound = signature.bind(model, *args, **options)
            except TypeError:  # a misspelt argument: fit reports it
                return original(model, *args, **options)
            bound.apply_defaults()
            return self._fit(module, model, SimpleNamespace(**bound.arguments))

    # --- fit ----------------------------------------------------------------------------------------------------------

    def _fit(self, module: ModuleType, model: Any, arguments: Any) -> Any:
        data = _validation_data(module, arguments)
        if data is None:
            raise InputError(
                "The evaluator has nothing to evaluate. Received: a fit without validation_data. Next: pass it (`val if "
                "ctx.is_evaluator else None` spares the training tasks), or submit without --evaluator."
            )
        if not self._fits:
            install(self._file_patches())
            _log.info("evaluator: fit waits for checkpoints and evaluates each on its validation data")
        number, self._fits = self._fits, self._fits + 1
        how = {
            "batch_size": arguments.validation_batch_size or arguments.batch_size,
            "steps": arguments.validation_steps,
            "verbose": 0,
            "return_dict": True,
        }
        if not model.built:
            # Its weights have to exist before they can be loaded.
            model.evaluate(**data, **{**how, "steps": 1})
        return self._follow(module.__name__.partition(".")[0], model, number, lambda: model.evaluate(**data, **how))

    def _follow(self, package: str, model: Any, number: int, evaluate: Callable[[], Mapping[str, float]]) -> Any:
        """Evaluate the checkpoints of one `fit`; return its history once the next one has begun."""
        from ...checkpoint.manager import position_of

        while (checkpoint := self._take()) is not None:
            phases, at = position_of(checkpoint.manifest)
            if len(phases) - 1 > number:
                self._next = checkpoint
                return _history(package, model, phases[number].history or {}, phases[number].epochs)
            if len(phases) - 1 < number:
                continue
            load_weights(model, checkpoint)
            metrics = {f"val_{name}": value for name, value in evaluate().items()}
            epoch = int(at.get("epoch", 0)) + bool(at.get("batch"))
            self.report(metrics, step=checkpoint.manifest.step, epoch=max(epoch, 1))
        self._end()
        raise SystemExit(0)

    # --- Loops ----------------------------------------------------------------------------------------------------------

    def each(self, objects: Mapping[str, object]) -> Iterator[int]:
        """Yield the step of each checkpoint, with its values in the objects."""
        while (checkpoint := self._take()) is not None:
            load(objects, checkpoint)
            self._evaluated += 1
            yield checkpoint.manifest.step
        self._end()

    # --- Both -----------------------------------------------------------------------------------------------------------

    def _take(self) -> Checkpoint | None:
        checkpoint, self._next = self._next, None
        return checkpoint or next(self._checkpoints, None)

    def _end(self) -> None:
        _log.info(f"evaluator: the training has ended; {self._evaluated} of its checkpoints were evaluated here")

    def report(self, metrics: Mapping[str, object], *, step: int | None, epoch: int | None = None) -> None:
        """Add numbers to the run's metrics and to its TensorBoard folder."""
        numbers = self._reporter.report(metrics, step=step, epoch=epoch, strict=epoch is None)
        if epoch is not None:
            self._evaluated += 1
            listed = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
            _log.info(f"evaluator: step {step}: {listed}")
        import tensorflow as tf

        if self._board is None:
            self._board = tf.summary.create_file_writer(posixpath.join(self._tensorboard, _BOARD))
        kind = tf.compat.v1.Summary
        values = [kind.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        with self._board.as_default():
            # Not `tf.summary.scalar`, which needs TensorBoard itself.
            tf.summary.experimental.write_raw_pb(kind(value=values).SerializeToString(), step=step or 0)
        self._board.flush()


def load_weights(model: Any, checkpoint: Checkpoint) -> None:
    """Assign the weights of a checkpoint of `fit` to a model."""
    from ...checkpoint.tf.snapshot import value_of
    from .fit import state_of

    weights = {id(value_of(weight)) for weight in model.weights}
    load(state_of(model), checkpoint, lambda variable: id(value_of(variable)) in weights)


def load(
    objects: Mapping[str, object], checkpoint: Checkpoint, is_wanted: Callable[[Any], bool] = lambda variable: True
) -> None:
    """Assign a checkpoint's values to the selected variables of the objects."""
    from ...checkpoint.tf import loading, snapshot

    candidates = snapshot.variables_of(**objects)
    targets = {path: variable for path, variable in candidates.items() if is_wanted(variable)}
    variables = snapshot.Variables(targets.items(), candidates.per_replica & targets.keys())
    arrays = {path: array for path, array in checkpoint.arrays.items() if path in targets}
    own = {rank: blobs["own"] for rank, blobs in checkpoint.blobs.items() if "own" in blobs}
    # As if the training continued with one replica: values that differ between replicas are merged.
    loading.load(variables, arrays, per_replica=own, rank=0, tasks=1)


def _validation_data(module: ModuleType, arguments: Any) -> Mapping[str, object] | None:
    """Return the arguments of `evaluate`; None if the fit validates nothing."""
    data, split = arguments.validation_data, arguments.validation_split
    if data is None and split:
        parts = (arguments.x, arguments.y, arguments.sample_weight)
        cut = getattr(module, "array_slicing", None) or module.data_adapter
        _, data = cut.train_validation_split(parts, validation_split=split)
    if data is None:
        return None
    return dict(zip(("x", "y", "sample_weight"), data if isinstance(data, (tuple, list)) else (data,), strict=False))


def _history(package: str, model: Any, values: Mapping[str, object], epochs: Any) -> Any:
    from .fit import restored

    history = importlib.import_module(package).callbacks.History()
    history.history, history.epoch = restored(values), list(epochs)
    model.history = history
    return history


def _alone(module: ModuleType) -> None:
    """Let MultiWorkerMirroredStrategy work without the cluster, of which `TF_CONFIG` does not list the evaluator."""

    @around(module.CollectiveAllReduceExtended, "_initialize_strategy")
    def initialize(original: Function, self: Any, cluster_resolver: Any, devices: Any) -> None:
        self._initialize_local(cluster_resolver, devices=devices)
