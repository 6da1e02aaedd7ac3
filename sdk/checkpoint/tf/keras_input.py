"""The training data of one `fit` of Keras 3: its order, and the current position in it.

Keras shuffles arrays with `tf.random.shuffle` inside a pipeline. The position in its random sequence cannot be read, and every
task of a gang draws a different order, so that some examples occur twice in an epoch and others never. Here each order is
derived from a seed of the `fit` and the number of the iterator.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from . import object_state, randomness
from .position import (
    InputState,
    IteratorState,
    Position,
    Traits,
    by_counting,
    position_of,
    python_state,
    reach,
    set_python,
    traits_of,
)

_INPUT_LIB = "tensorflow.python.distribute.input_lib"
_AHEAD = 2  # batches that the buffer would have prefetched
_default: list[str] = []


def set_default_seed(seed: str) -> None:
    """Set the seed of orders for programs that set no seed: a value shared by all tasks of a run."""
    _default[:] = [seed]


class FitInput:
    """The training data of one `fit`."""

    def __init__(self, epochs: Any, order: ShuffleOrder) -> None:
        self._epochs = epochs
        self._order = order
        self._traits = self._traits_of(epochs)
        self._iterators = 0
        self._entered = 0  # the iterator of this epoch: Keras may create another at its end
        self._number = 0  # of a resumed iterator
        self._earlier_batches = 0  # batches that earlier epochs took from the iterator
        self._current: Any = None
        self._between = True
        self._start = ""
        self._object: dict[str, object] = {}
        self.batch = 0  # batches of the epoch that were passed on
        self.resume: Any = None  # where the next epoch starts
        self.over: Callable[[], None] = lambda: None  # called when the data of an epoch is exhausted

    def _traits_of(self, epochs: Any) -> Traits:
        traits = traits_of(epochs._distributed_dataset)
        adapter, sentences = epochs.data_adapter, list(traits.downgrades)
        distributed = isinstance(epochs._distributed_dataset, tf.distribute.DistributedDataset)
        if distributed and epochs.steps_per_epoch is None and epochs.num_batches is None:
            sentences.append(
                "under a strategy, the optimizer may or may not count the step that finds no more data. "
                "Next: set the size of the dataset with dataset.apply(tf.data.experimental.assert_cardinality(n))"
            )
        if distributed and hasattr(adapter, "generator"):
            sentences.append(
                "a generator passed to fit under a strategy loses the batches that TensorFlow has prefetched. "
                "Next: pass a tf.data.Dataset or a keras.utils.PyDataset"
            )
        workers = getattr(getattr(adapter, "py_dataset", None), "workers", 1)
        if workers > 1:
            traits = replace(traits, python=True)
        return replace(traits, downgrades=tuple(sentences))

    def spec(self) -> Any:
        return self._epochs._distributed_dataset.element_spec

    # --- Called by the hooks ---

    def begin_iterator(self) -> None:
        """Keras is about to create the next iterator."""
        self._iterators += 1
        self._order.begin(self._number or self._iterators)

    def begin_epoch(self) -> None:
        """An epoch begins; Keras has not created its iterator yet."""
        self.batch, self._between = 0, False
        if self._makes_an_iterator():
            self._start = python_state() if self._traits.python else ""
            self._object = self._attributes()

    def first_step(self, iterator: Any) -> None:
        """Note the epoch's iterator, and how many batches earlier epochs took from it."""
        self._current, self._entered = iterator, self._iterators
        self._earlier_batches = self._epochs._steps_seen - self._epochs.steps_per_execution

    def end_epoch(self) -> None:
        """The epoch's data is exhausted."""
        self._between = True
        self.over()

    def begin_again(self, at: IteratorState) -> None:
        """Begin an interrupted epoch with the inputs from which Python created its data."""
        self.batch, self._between = 0, False
        extra: InputState = at.extra or {}
        self._start, self._object = at.start, extra.get("object", {})
        self._epochs._num_batches = extra.get("num_batches", self._epochs._num_batches)
        self._order.seed = extra.get("seed", self._order.seed)
        if at.start:
            set_python(at.start)
        if self._object:
            object_state.write(self._epochs.data_adapter.py_dataset, self._object)

    def enter(self, iterator: Any, at: IteratorState, start: str) -> Any:
        """Return an iterator at the saved position; `start` is the state of the Python generators when Keras made its own."""
        extra: InputState = at.extra or {}
        self._number = at.iterators
        self._order.begin(self._number)
        at = replace(at, start=start if at.start else "")
        iterator = reach(at, self._iterators, self.another_iterator, iterator)
        self._number, self._iterators, self._entered = 0, at.iterators, at.iterators
        self._earlier_batches = extra.get("seen", 0)
        self._epochs._steps_seen += self._earlier_batches
        if self._epochs._current_iterator is not None:
            self._epochs._current_iterator = iterator
        self._current = iterator
        return iterator

    def another_iterator(self) -> Any:
        return iter(self._epochs._get_iterator())

    # --- Called when saving ---

    @property
    def keeps_iterator(self) -> bool:
        """True if an epoch continues the iterator of the previous one."""
        return not self._makes_an_iterator()

    def position(self, batch: int | None = None, *, by_count: bool = False) -> Position:
        """Return the position after `batch` batches of the epoch, or after the last step or epoch."""
        between = self._between and not batch
        if between and self._makes_an_iterator():
            at = self._iterator_state(batches=0, iterators=self._iterators + 1, earlier=0, between=True)
            return by_counting(replace(at, start=""), self._traits)
        if between:
            earlier, batches, iterators = self._epochs._steps_seen, 0, self._iterators
            iterator = self._epochs._current_iterator
        else:
            earlier, batches, iterators = self._earlier_batches, self.batch if batch is None else batch, self._entered
            iterator = self._current
        at = self._iterator_state(batches=earlier + batches, iterators=iterators, earlier=earlier, between=False)
        return by_counting(at, self._traits) if by_count else position_of(iterator, at, self._traits)

    def _iterator_state(self, *, batches: int, iterators: int, earlier: int, between: bool) -> IteratorState:
        extra: InputState = {"seen": earlier, "num_batches": self._epochs._num_batches, "seed": self._order.seed}
        attributes = self._attributes() if between else self._object
        if attributes:
            extra["object"] = attributes
        return IteratorState(batches=batches, iterators=iterators, start=self._start, extra=extra)

    def state_by_count(self, epoch: int, batch: int) -> IteratorState:
        """Return the state after a batch when nothing else is known."""
        steps, size = self._epochs.steps_per_epoch, self._epochs._num_batches
        if steps is None:
            per_epoch = 1 if size is None else 2  # Keras creates one more after each epoch of known size
            return IteratorState(batches=batch, iterators=self._iterators + 1 + per_epoch * epoch)
        full, batches = divmod(epoch * steps + batch, size) if size else (0, epoch * steps + batch)
        return IteratorState(batches=batches, iterators=self._iterators + 1 + full, extra={"seen": batches - batch})

    def _makes_an_iterator(self) -> bool:
        return self._epochs.steps_per_epoch is None or self._epochs._current_iterator is None

    def _attributes(self) -> dict[str, object]:
        dataset = getattr(self._epochs.data_adapter, "py_dataset", None)
        return {} if dataset is None else object_state.read(dataset)[0]


class _Orders:
    """Shuffle orders that a seed and a number determine, in all tasks alike."""

    def __init__(self) -> None:
        self.seed = new_seed()
        with tf.device("CPU:0"), tf.init_scope():
            # Not a tf.Variable, which a strategy would distribute.
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[2], shared_name=f"podlift_order_{id(self)}_{self.seed}"
            )
        self.begin(0)

    def begin(self, number: int) -> None:
        """Select the order of the iterator, or of the epoch, that is read next."""
        tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.constant([self.seed, number], tf.int64))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Pipelines created inside this context shuffle in this order."""
        original, thread = tf.random.shuffle, threading.get_ident()

        def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
            if seed is not None or threading.get_ident() != thread:
                return original(value, seed, name)
            return tf.random.experimental.stateless_shuffle(value, seed=self._pair(value))

        tf.random.shuffle = shuffle
        try:
            yield
        finally:
            tf.random.shuffle = original

    def _pair(self, value: Any) -> Any:
        """Return the seed for this value."""
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)


class ShuffleOrder(_Orders):
    """The shuffle orders of one `fit` of Keras 3, one for each iterator."""

    def _pair(self, value: Any) -> Any:
        # The first element of a range is 0; with shuffle="batch" it distinguishes the batches.
        return tf.random.experimental.stateless_fold_in(super()._pair(value), value[0])


class ArrayOrder(_Orders):
    """The shuffle orders of one `fit` of tf_keras on arrays, one for each epoch, and again in a repeated epoch."""

    def _pair(self, value: Any) -> Any:
        pair = super()._pair(value)
        # The next epoch needs no call of `begin`.
        tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=tf.constant([0, 1], tf.int64))
        return pair


def new_seed() -> int:
    base = randomness.global_seed()
    words = [str(base)] if base is not None else _default or [os.urandom(8).hex()]
    digest = hashlib.sha256("/".join([*words, str(randomness.next_ordinal())]).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


# --- Distributed datasets ----------------------------------------------------------------------------------------------
# TensorFlow feeds each device through a buffer that cannot be saved. A single CPU does not need one, as its batches are already
# in its memory: they come from a plain iterator, with the same elements in the same order.


def install_plain_iterators() -> str:
    """Make distributed datasets use plain iterators; return "", or why this version of TensorFlow does not allow it."""
    try:
        module = importlib.import_module(_INPUT_LIB)
        worker = module._SingleWorkerOwnedDatasetIterator
        datasets = (module.DistributedDataset, module.DistributedDatasetsFromFunction)
        make = worker._make_iterator
        plain = tf.distribute.InputOptions(
            experimental_fetch_to_device=False,
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        )
        if module._should_use_multi_device_iterator(plain):
            return "this version of TensorFlow has no plain iterators over distributed datasets"
    except (ImportError, AttributeError) as error:
        return f"this version of TensorFlow implements distributed datasets differently ({error})"
    if hasattr(worker, "podlift"):
        return ""

    def make_iterator(self: Any) -> None:
        if self._options is not None or not _is_one_cpu(self._devices) or not tf.executing_eagerly():
            make(self)
            return
        self._options = plain
        with tf.device(self._worker):
            self._iterator = iter(self._dataset.prefetch(_AHEAD))

    def iterating(iterate: Any) -> Any:
        def iterate_dataset(self: Any) -> Any:
            iterator = iterate(self)
            if all(getattr(inner, "_options", None) is plain for inner in getattr(iterator, "_iterators", [None])):
                iterator._options = plain  # otherwise its type spec would announce the other kind to a tf.function
            return iterator

        return iterate_dataset

    worker.podlift, worker._make_iterator = True, make_iterator
    for dataset in datasets:
        dataset.__iter__ = iterating(dataset.__iter__)
    return ""


def _is_one_cpu(devices: Any) -> bool:
    return len(devices) == 1 and tf.DeviceSpec.from_string(devices[0]).device_type == "CPU"
