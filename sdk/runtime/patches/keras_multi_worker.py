"""Keras 3 `fit`, `evaluate` and `predict` under a synchronous strategy give one device's numbers.

Keras fails under MultiWorkerMirroredStrategy at the first batch (keras#20585). Under every synchronous strategy it
gives all replicas the same weight, which is wrong if the global batch does not divide evenly: see `keras_shares`. Other
strategies use Keras's own code. The reasoning, the costs and the remaining inexactness:
docs/explanation/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

from . import (
    Function,
    Patch,
    around,
    counted_batches,
    gathered,
    is_supported_tensorflow,
    keras_version,
    predictions,
)
from .keras_shares import (
    ReplicaShare,
    ReplicaStep,
    average_moving_statistics,
    cure_batch_normalization,
    cure_losses,
    cure_optimizers,
    during,
    is_replicated,
    is_shared,
    is_tpu,
)
from .predictions import never_empty

_KERAS = ((3, 8), (3, 15))  # before 3.8 a loss was not scaled by the number of replicas, so there is nothing to correct
_TWO_STEP_NUMBERS = (3, 11)  # since then an epoch yields the first and the last step of an execution


def _cure_trainer(trainer: ModuleType) -> None:
    in_multi_worker_mode = trainer._collective_all_reduce_multi_worker

    def weighs(strategy: Any) -> bool:
        return in_multi_worker_mode(strategy) or is_tpu(strategy) or is_replicated(strategy)

    @around(trainer, "reduce_per_replica")
    def reduce(original: Function, values: Any, strategy: Any, reduction: str) -> Any:
        if reduction == "auto" and weighs(strategy):
            reduction = "first"  # `_mean_over_replicas` has made them equal
        elif reduction == "concat" and weighs(strategy) and predictions.is_for_one_batch():
            reduction = "first"  # all replicas were given the same examples
        elif reduction == "concat" and in_multi_worker_mode(strategy) and gathered.can_join(trainer, strategy, values):
            return gathered.joined(trainer, strategy, values)
        return original(values, strategy, reduction)

    predictions.install(trainer, weighs, in_multi_worker_mode)
    _cure_steps(trainer, weighs)

    @around(trainer.TensorFlowTrainer, "_get_metrics_result_or_logs")
    def end_epoch(original: Function, self: Any, logs: Any) -> Any:
        if weighs(self.distribute_strategy):
            average_moving_statistics(trainer, self)  # before validation and the callbacks, that may save
        return original(self, logs)


def _cure_steps(trainer: ModuleType, weighs: Callable[[Any], bool]) -> None:
    @around(trainer.TensorFlowTrainer, "_maybe_symbolic_build")
    def build(original: Function, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and weighs(self.distribute_strategy):
            # A batch cannot be averaged where its pieces differ in size; any piece shows the types.
            pieces = None if predictions.needs_no_types(self) else _first_pieces
            iterator = pieces and pieces(trainer, iterator, self.distribute_strategy)
        original(self, iterator=iterator, data_batch=data_batch)

    @around(trainer.TensorFlowTrainer, "_make_function")
    def make(original: Function, self: Any, step_function: Function) -> Any:
        if not weighs(self.distribute_strategy):
            return original(self, step_function)
        cure_batch_normalization()
        # Several functions, since a traced step cannot decide later whether to measure.
        measuring = original(self, _measuring_step(trainer, self, step_function))
        equal = original(self, _equal_step(trainer, step_function))
        counted = original(self, _counted_step(trainer, self, step_function))

        def run(iterator: Any) -> Any:
            if _has_equal_pieces(trainer.tf, iterator):
                return equal(iterator)
            if self.steps_per_execution > 1 or not counted_batches.can_count(trainer.tf, iterator):
                return measuring(iterator)
            with counted_batches.counting():
                return counted(iterator)

        return run


def _first_pieces(trainer: ModuleType, epoch: Iterable[Any], strategy: Any) -> Iterator[tuple[Any, ...]]:
    def first(value: Any) -> Any:
        return strategy.experimental_local_results(value)[0]

    for *steps, batches in epoch:  # one number or two: see _TWO_STEP_NUMBERS
        yield *steps, (trainer.tree.map_structure(first, batch) for batch in batches)


def _has_equal_pieces(tf: ModuleType, iterator: Any) -> bool:
    """Return whether every replica gets the same number of examples in every step. All tasks agree on the answer."""
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return False  # `train_on_batch`: each task may pass a different size
    specs = tf.nest.flatten(iterator.element_spec, expand_composites=True)
    return all(spec.shape.rank and spec.shape[0] is not None for spec in specs)


def _equal_step(trainer: ModuleType, step_function: Function) -> Function:
    def step(data: Any) -> Any:
        with during(ReplicaStep.equal(trainer.tf)) as current:
            return _mean_over_replicas(trainer, current.present, step_function(data))

    return step


def _counted_step(trainer: ModuleType, model: Any, step_function: Function) -> Function:
    step = _measuring_step(trainer, model, step_function)
    return lambda counted: step(*counted)


def _measuring_step(trainer: ModuleType, model: Any, step_function: Function) -> Function:
    tf = trainer.tf

    def step(data: Any, sums: Any = None) -> Any:
        size, data = never_empty(trainer, data)
        # If a trace does not know the sizes, the metrics of the outputs' losses count steps, empty ones included.
        per_step = [] if tf.executing_eagerly() or not model._compile_loss else model._compile_loss.variables
        counted = [v for v in model.metrics_variables if all(v is not other for other in per_step)]
        own = [variable for variable in counted if not is_shared(variable)]
        metrics = [(variable, tf.identity(variable.value)) for variable in own]
        with during(replace(ReplicaStep.measure(tf, size, sums), counted=tuple(counted))) as current:
            outputs = _mean_over_replicas(trainer, current.present, step_function(data))
        for variable, before in metrics:
            variable.assign(tf.where(tf.equal(size, 0), before, variable.value))
        return outputs

    return step


def _mean_over_replicas(trainer: ModuleType, present: ReplicaShare, outputs: Any) -> Any:
    """Average the results of the step, in one collective per type instead of one per metric."""
    tf = trainer.tf
    leaves = [tf.convert_to_tensor(leaf) if isinstance(leaf, float) else leaf for leaf in trainer.tree.flatten(outputs)]
    indices: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating:
            indices.setdefault(leaf.dtype, []).append(index)
    for same in indices.values():
        terms = [present.scale(leaves[index]) for index in same]
        for index, mean in zip(same, tf.distribute.get_replica_context().all_reduce("SUM", terms), strict=True):
            leaves[index] = mean
    return trainer.tree.pack_sequence_as(outputs, leaves)


# --- Does it apply, is it needed ----------------------------------------------------------------------------------


def _applies(trainer: ModuleType) -> bool:
    return _KERAS[0] <= keras_version() <= _KERAS[1] and is_supported_tensorflow(trainer.tf)


def _needed(trainer: ModuleType) -> bool:
    """Call Keras's two functions with a strategy that only records the requested reductions."""
    calls: list[Any] = []

    class RecordingExtended:
        def _in_multi_worker_mode(self) -> bool:
            return True

    class RecordingStrategy(trainer.tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc,name-defined]
        extended = RecordingExtended()
        scope = nullcontext

        def __init__(self) -> None:
            pass

        def reduce(self, reduce_op: str, value: Any, axis: int | None) -> Any:
            calls.append((value, axis))
            return value

        def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
            return (value,)

    class Model:
        distribute_strategy = _distribute_strategy = RecordingStrategy()

        def _symbolic_build(self, data_batch: Any) -> None:
            pass

    trainer.reduce_per_replica(1.0, RecordingStrategy(), "auto")
    averages_along_an_axis = any(axis is not None for _, axis in calls)
    calls.clear()
    batch = (trainer.tf.distribute.DistributedValues(),) * 2
    steps = (0, 0) if keras_version() >= _TWO_STEP_NUMBERS else (0,)
    trainer.TensorFlowTrainer._maybe_symbolic_build(Model(), iterator=[(*steps, iter([batch]))])
    return averages_along_an_axis or any(isinstance(value, tuple) for value, _ in calls)


def _apply(trainer: ModuleType) -> None:
    cure_losses(trainer)
    cure_optimizers(trainer)
    counted_batches.install(trainer)
    _cure_trainer(trainer)


PATCH = Patch(
    name="keras-multi-worker",
    why="Keras 3 `fit` fails under MultiWorkerMirroredStrategy (keras#20585, tensorflow#72388, ray#47464, keras#21069)",
    module="keras.src.backend.tensorflow.trainer",
    applies=_applies,
    needed=_needed,
    apply=_apply,
)
REPLICAS = Patch(
    name="keras-replicas",
    why="Keras gives all replicas the same weight, and clips each replica's gradient separately",
    module=PATCH.module,
    applies=_applies,
    apply=_apply,
    quiet=True,
)


def _cure_legacy(trainer: Any) -> None:
    names = SimpleNamespace(tf=trainer.tf, tree=trainer.tf.nest, concat=trainer.concat)

    @around(trainer, "reduce_per_replica")
    def reduce(original: Function, values: Any, strategy: Any, reduction: str) -> Any:
        several = reduction == "concat" and trainer._collective_all_reduce_multi_worker(strategy)
        if several and gathered.can_join(names, strategy, values):
            return gathered.joined(names, strategy, values)
        return original(values, strategy, reduction)


LEGACY = Patch(
    name="tf-keras-outputs",
    why="tf_keras `predict` gathers five types only on several workers (tensorflow: CollectiveGatherV2)",
    module="tf_keras.src.engine.training",
    apply=_cure_legacy,
)
