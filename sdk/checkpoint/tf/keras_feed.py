"""Where the training data of one `fit` of Keras 3 comes from, and where in it the training is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from . import object_state
from .keras_order import ShuffleOrder
from .pipelines import Traits, traits_of
from .position import IteratorState, Position, position_of, python_state, reach, set_python


@contextmanager
def making() -> Iterator[ShuffleOrder]:
    """Make the data of a `fit` in here."""
    order = ShuffleOrder()
    with order.in_force():
        yield order


class FitInput:
    """The training data of one `fit`.

    Attributes:
        taken: how many batches of the epoch were handed on.
        resume: where the next epoch is to begin, for whoever hands on the steps.
        over: called when the data of an epoch was gone through.
    """

    def __init__(self, epochs: Any, order: ShuffleOrder) -> None:
        self._epochs = epochs
        self._order = order
        self._traits = self._look_at(epochs)
        self._iterators = 0
        self._entered = 0  # which of them this epoch takes its batches from: Keras may make another one at its end
        self._number = 0  # of the order of a resumed iterator
        self._seen = 0  # batches taken from the iterator before this epoch
        self._current: Any = None
        self._between = True
        self._start = ""
        self._object: dict[str, Any] = {}
        self.taken = 0
        self.resume: Any = None
        self.over: Callable[[], None] = lambda: None

    def _look_at(self, epochs: Any) -> Traits:
        traits = traits_of(epochs._distributed_dataset)
        adapter, sentences = epochs.data_adapter, list(traits.downgrades)
        distributed = isinstance(epochs._distributed_dataset, tf.distribute.DistributedDataset)
        if distributed and epochs.steps_per_epoch is None and epochs.num_batches is None:
            sentences.append(
                "under a strategy, the step that finds no more data may be counted by the optimizer or not. "
                "Next: give the dataset its size, with dataset.apply(tf.data.experimental.assert_cardinality(n))"
            )
        if distributed and hasattr(adapter, "generator"):
            sentences.append(
                "a generator given to fit under a strategy loses as many of its batches as TensorFlow happens to have "
                "taken ahead. Next: give a tf.data.Dataset, or a keras.utils.PyDataset"
            )
        workers = getattr(getattr(adapter, "py_dataset", None), "workers", 1)
        if workers > 1:
            traits = replace(traits, python=True)
        return replace(traits, downgrades=tuple(sentences))

    def spec(self) -> Any:
        """Return the types of a batch."""
        return self._epochs._distributed_dataset.element_spec

    # --- Told by the hooks ---

    def begin_iterator(self) -> None:
        """Note that Keras makes the next iterator."""
        self._iterators += 1
        self._order.begin_iterator(self._number or self._iterators)

    def begin_epoch(self) -> None:
        """Note that an epoch begins, before Keras makes an iterator for it."""
        self.taken, self._between = 0, False
        if self._makes_an_iterator():
            self._start = python_state() if self._traits.python else ""
            self._object = self._attributes()

    def first_step(self, iterator: Any) -> None:
        """Note the iterator of an epoch, and how many batches earlier epochs have taken from it."""
        self._current, self._entered = iterator, self._iterators
        self._seen = self._epochs._steps_seen - self._epochs.steps_per_execution

    def end_epoch(self) -> None:
        """Note that the data of an epoch was gone through."""
        self._between = True
        self.over()

    def begin_again(self, place: IteratorState) -> None:
        """Begin an epoch that was begun before, with what Python's part of the data was made from."""
        self.taken, self._between = 0, False
        extra = place.extra or {}
        self._start, self._object = place.start, extra.get("object", {})
        self._epochs._num_batches = extra.get("num_batches", self._epochs._num_batches)
        self._order.seed = extra.get("seed", self._order.seed)
        if place.start:
            set_python(place.start)
        if self._object:
            object_state.write(self._epochs.data_adapter.py_dataset, self._object)

    def enter(self, iterator: Any, place: IteratorState, start: str) -> Any:
        """Return an iterator that is where the other one was.

        Args:
            iterator: which Keras has made for the epoch.
            place: where it was.
            start: Python's random generators when that was made.
        """
        extra = place.extra or {}
        self._number = place.iterators
        self._order.begin_iterator(self._number)
        place = replace(place, start=start if place.start else "")
        iterator = reach(place, self._iterators, self.another_iterator, iterator)
        self._number, self._iterators, self._entered = 0, place.iterators, place.iterators
        self._seen = extra.get("seen", 0)
        self._epochs._steps_seen += self._seen
        if self._epochs._current_iterator is not None:
            self._epochs._current_iterator = iterator
        self._current = iterator
        return iterator

    def another_iterator(self) -> Any:
        """Return a new iterator over the data."""
        return iter(self._epochs._get_iterator())

    # --- For who saves ---

    @property
    def goes_on(self) -> bool:
        """True where an epoch takes its batches from the iterator of the one before."""
        return not self._makes_an_iterator()

    def position(self, taken: int | None = None, *, by_count: bool = False) -> Position:
        """Return where the training is: behind the step that was handed on last, or between two epochs.

        Args:
            taken: behind so many batches of the epoch, also where it is over.
            by_count: do not ask tf.data for its state.
        """
        between = self._between and not taken
        if between and self._makes_an_iterator():
            place = self._place(batches=0, iterators=self._iterators + 1, seen=0, between=True)
            place = replace(place, start="")
            return Position(kind="skip", state=place.encode(), why="; ".join(self._traits.downgrades))
        seen = self._epochs._steps_seen if between else self._seen
        iterators = self._iterators if between else self._entered
        batches = 0 if between else self.taken if taken is None else taken
        place = self._place(batches=seen + batches, iterators=iterators, seen=seen, between=False)
        if by_count:
            return Position(kind="skip", state=place.encode(), why="; ".join(self._traits.downgrades))
        iterator = self._epochs._current_iterator if between else self._current
        return position_of(iterator, place, self._traits)

    def _place(self, *, batches: int, iterators: int, seen: int, between: bool) -> IteratorState:
        extra = {"seen": seen, "num_batches": self._epochs._num_batches, "seed": self._order.seed}
        attributes = self._attributes() if between else self._object
        if attributes:
            extra["object"] = attributes
        return IteratorState(batches=batches, iterators=iterators, start=self._start, extra=extra)

    def place_by_count(self, epoch: int, batch: int) -> IteratorState:
        """Return the place behind a batch, for a state that does not say more."""
        steps, size = self._epochs.steps_per_epoch, self._epochs._num_batches
        if steps is None:
            each = 1 if size is None else 2  # Keras makes one more behind each epoch of known size
            return IteratorState(batches=batch, iterators=self._iterators + 1 + each * epoch)
        taken = epoch * steps + batch
        seen = epoch * steps
        if size:
            full, taken = divmod(taken, size)
            return IteratorState(batches=taken, iterators=self._iterators + 1 + full, extra={"seen": taken - batch})
        return IteratorState(batches=taken, iterators=self._iterators + 1, extra={"seen": seen})

    def _makes_an_iterator(self) -> bool:
        return self._epochs.steps_per_epoch is None or self._epochs._current_iterator is None

    def _attributes(self) -> dict[str, Any]:
        dataset = getattr(self._epochs.data_adapter, "py_dataset", None)
        return {} if dataset is None else object_state.read(dataset)[0]
