"""`predict`, `predict_on_batch` and `evaluate` under a synchronous strategy: one device's rows, without superfluous work.

On several workers Keras takes each batch of `predict` outside of a function, makes an iterator after the last batch that is
never read, and another one in each `evaluate` to learn types that it knows. docs/explanation/decisions/keras-multi-worker.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from ...records.events import VALIDATION
from . import Function, around

# The innermost of these methods that is running.
_METHODS = ("fit", "evaluate", "predict", "predict_on_batch")
_method: ContextVar[str] = ContextVar("_method", default="")
# The model that it is a method of.
_model: ContextVar[Any] = ContextVar("_model", default=None)
_CALL = "_podlift_call"  # attribute of an error


def call_of(error: BaseException) -> str:
    """Return the innermost of these methods that an error has left, or VALIDATION; "" for none."""
    with suppress(Exception):  # a program's class may break any access to its attributes
        return str(vars(error).get(_CALL, ""))
    return ""


def is_for_one_batch() -> bool:
    """Return whether each task predicts for the batch that it was given, and for no other."""
    return _method.get() == "predict_on_batch"


def needs_no_types(model: Any) -> bool:
    """Return whether this evaluation has nothing to build, so that no batch has to show its types."""
    parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss]
    return _method.get() == "evaluate" and all(part is None or part.built for part in parts)


def install(trainer: ModuleType, weighs: Callable[[Any], bool], is_multi_worker: Callable[[Any], bool]) -> None:
    for name in _METHODS:

        @around(trainer.TensorFlowTrainer, name)
        def call(original: Function, self: Any, *args: Any, _name: str = name, **options: Any) -> Any:
            method, model = _method.set(_name), _model.set(self)
            try:
                return original(self, *args, **options)
            except Exception as error:
                with suppress(Exception):
                    # Keras's `fit` alone passes this option.
                    vars(error).setdefault(_CALL, VALIDATION if options.get("_use_cached_eval_dataset") else _name)
                raise
            finally:
                _model.reset(model)
                _method.reset(method)

    @around(trainer.TensorFlowTrainer, "make_predict_function")
    def make(original: Function, self: Any, force: bool = False) -> None:
        if not weighs(self.distribute_strategy):
            original(self, force)
        elif self.predict_function is None or force:
            self.predict_function = _predict_function(trainer, self, original)

    @around(trainer.TFEpochIterator, "_get_iterator")
    def data(original: Function, epochs: Any) -> Any:
        strategy = epochs._distribute_strategy
        if _method.get() not in ("evaluate", "predict") or not weighs(strategy):
            return original(epochs)
        if epochs.steps_per_epoch is None and epochs._num_batches and epochs._steps_seen >= epochs._num_batches:
            return ()
        in_graph = _method.get() == "predict" and isinstance(_model.get().predict_function, _Predicts)
        in_graph = in_graph and is_multi_worker(strategy) and epochs.steps_per_execution == 1
        return _TakenLater(original(epochs)) if in_graph else original(epochs)


class _TakenLater:
    """A placeholder for data: the function that predicts takes the batches itself, and each batch is this object."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self.iterator: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(self._data)
        return self

    def __next__(self) -> Any:
        return self


def _predict_function(trainer: ModuleType, model: Any, make: Function) -> Function:
    tf = trainer.tf

    def predict_function() -> Any:
        stand_in = _PredictsNothing(trainer, model)
        make(stand_in, True)
        return stand_in.predict_function

    # Two, since a traced function cannot decide later whether to gather.
    together, alone = predict_function(), predict_function()

    # The name tells `hooks.input_wait` that a step takes its input here.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def one_step_on_iterator(iterator: Any) -> Any:
        return together([iterator.get_next()])

    if not model.run_eagerly:
        one_step_on_iterator = tf.function(one_step_on_iterator, reduce_retracing=True)
    return _Predicts(together, alone, one_step_on_iterator)


class _Predicts:
    """A function that takes the batches of `predict` itself. Its type distinguishes it from a program's replacement."""

    def __init__(self, together: Function, alone: Function, on_iterator: Function) -> None:
        self._together, self._alone, self._on_iterator = together, alone, on_iterator

    def __call__(self, data: Any) -> Any:
        if is_for_one_batch():
            return self._alone(data)
        return self._on_iterator(data[0].iterator) if isinstance(data[0], _TakenLater) else self._together(data)


class _PredictsNothing:
    """A model with a `predict_step` that returns no rows for an empty batch. Used to make `predict_function`."""

    def __init__(self, trainer: ModuleType, model: Any) -> None:
        self._trainer, self._model = trainer, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict_step(self, data: Any) -> Any:
        size, data = never_empty(self._trainer, data)
        outputs = self._model.predict_step(data)
        if isinstance(size, int):
            return outputs
        return self._trainer.tree.map_structure(lambda value: self._rows(value, size), outputs)

    def _rows(self, value: Any, size: Any) -> Any:
        """Return all rows, or none if the batch was empty."""
        tf = self._trainer.tf
        if value.shape.rank == 0:
            return value
        if isinstance(value, tf.SparseTensor):
            rows = value.dense_shape[:1] * tf.cast(tf.minimum(size, 1), tf.int64)
            return tf.sparse.slice(value, tf.zeros_like(value.dense_shape), tf.concat([rows, value.dense_shape[1:]], 0))
        rows = value.nrows() if isinstance(value, tf.RaggedTensor) else tf.shape(value)[0]
        return value[: rows * tf.cast(tf.minimum(size, 1), rows.dtype)]


def never_empty(trainer: ModuleType, data: Any) -> tuple[Any, Any]:
    """Return the number of examples and the data; for an empty batch, one made-up example that must not count.

    TensorFlow's kernels do not support empty batches: the gradient of max pooling ends the process.
    """
    tf = trainer.tf
    leaves = [leaf for leaf in trainer.tree.flatten(data) if leaf is not None]
    shape = tf.TensorShape(leaves[0].shape)
    if shape.rank and shape[0]:
        return shape[0], data
    size = tf.cast(tf.shape(leaves[0])[0], tf.int32)
    if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in leaves):
        return size, data
    leaves = [tf.convert_to_tensor(leaf) for leaf in leaves]

    def with_one_more(leaf: Any) -> Any:
        # Ones: zeros may count as padding, and cuDNN refuses batches of nothing but padding.
        value = "" if leaf.dtype == tf.string else tf.cast(1, leaf.dtype)
        return tf.concat([leaf, tf.fill(tf.concat([[1], tf.shape(leaf)[1:]], 0), value)], 0)

    # Not tf.cond: a TPU's compiler needs the same shape in both branches.
    safe = iter(with_one_more(leaf)[: tf.maximum(size, 1)] for leaf in leaves)
    return size, trainer.tree.map_structure(lambda leaf: None if leaf is None else next(safe), data)
