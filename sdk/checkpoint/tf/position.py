"""Where in its data a training is: tf.data's own state where it can be had, else how many batches were taken.

Both are exact for a pipeline that gives the same elements each time. Going through `n` batches again costs their making;
what makes it inexact is told (`Position.why`).
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import InputError
from . import randomness
from .pipelines import Traits, traits_of

LARGE_BYTES = 100_000_000
_LENGTH_BYTES = 8
_CHEAP = 2000  # batches that are gone through again rather than risk the order of the next epoch
_FAIL = 2  # ExternalStatePolicy: say so if the pipeline has a state that tf.data does not know


@dataclass(frozen=True, kw_only=True)
class IteratorState:
    """Where an iterator is.

    Args:
        batches: how many were taken from it.
        iterators: which one of the dataset it is, the first being 1: a dataset that is shuffled anew each time gives
            every iterator another order.
        extra: what the one who made the iterator has to remember.
        start: the random generators before its first batch, where Python makes the data.
        state: tf.data's own, or b"".
    """

    batches: int
    iterators: int = 1
    extra: dict[str, Any] | None = None
    start: str = ""
    state: bytes = b""

    def encode(self) -> bytes:
        """Return it as the bytes of a blob."""
        header = json.dumps({**asdict(self), "state": len(self.state)}).encode()
        return len(header).to_bytes(_LENGTH_BYTES, "little") + header + self.state

    @classmethod
    def decode(cls, blob: bytes) -> IteratorState:
        """Read what `encode` has made; ValueError if it is something else."""
        start = _LENGTH_BYTES + int.from_bytes(blob[:_LENGTH_BYTES], "little")
        fields = json.loads(bytes(blob[_LENGTH_BYTES:start]))
        state = bytes(blob[start:])
        if len(state) != fields["state"]:
            raise ValueError(f"a position of {fields['state']} bytes that has {len(state)}")
        return cls(**{**fields, "state": state})


@dataclass(frozen=True, kw_only=True)
class Position:
    """A place, ready to be saved.

    Args:
        kind: "exact" with tf.data's state, "skip" with a number of batches to go through again.
        state: for a blob of this task.
        how: for "skip", why tf.data's state could not be had; a sentence.
        why: what may make the resumed training differ from an undisturbed one, or "".
    """

    kind: str
    state: bytes
    how: str = ""
    why: str = ""


def position_of(iterator: Any, place: IteratorState, traits: Traits) -> Position:
    """Return where the iterator is.

    Args:
        iterator: what the batches were taken from.
        place: all but `state`.
        traits: of its dataset.
    """
    inner = inner_iterator(iterator)
    if inner is None:
        how = "it feeds several devices" if _is_distributed(iterator) else "it is no iterator of tf.data"
    elif traits.downgrades:
        how = traits.downgrades[0]  # tf.data would save some of these without a word
    else:
        try:
            state = _state(inner)
        except tf.errors.OpError as error:
            how = _sentence(error)
        else:
            large = f"the data's position has {len(state) / 1e6:.0f} MB, most of it shuffled elements"
            why = large if len(state) > LARGE_BYTES else ""
            return Position(kind="exact", state=replace(place, state=state).encode(), why=why)
    why = "; ".join(traits.downgrades)
    return Position(kind="skip", state=place.encode(), how=f"tf.data cannot save this position: {how}", why=why)


def reach(place: IteratorState, made: int, make: Callable[[], Any], iterator: Any = None) -> Any:
    """Return an iterator that is at a place.

    Every iterator over a dataset draws the seeds of its shuffles, so as many are made as there were. Restoring a state
    makes one more inside of TensorFlow, which counts only where a shuffle was at its end: then nothing of it is saved.

    Args:
        place: where it is to be.
        made: how many iterators over the dataset there were in this process.
        make: makes one.
        iterator: the last of them, if nothing was taken from it.
    """
    too_many = max(made, 1) >= place.iterators  # for the one more
    if place.state and too_many and place.batches <= _CHEAP and randomness.global_seed() is not None:
        place = replace(place, state=b"")
    wanted = place.iterators - 1 if place.state else place.iterators
    while iterator is None or made < wanted:
        iterator, made = make(), made + 1
    inner = inner_iterator(iterator)
    if place.state and inner is not None:
        serialized = tf.io.parse_tensor(place.state, tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=inner._iterator_resource, serialized=serialized)
    else:
        _go_on(iterator, place.batches, place.start)
    return iterator


def inner_iterator(iterator: Any) -> Any:
    """Return the iterator whose state says everything about this one, or None."""
    if isinstance(iterator, tf.data.Iterator):
        return iterator if hasattr(iterator, "_iterator_resource") else None
    if not _is_distributed(iterator):
        return None
    workers: Any = getattr(iterator, "_iterators", ())
    inner = getattr(workers[0], "_iterator", None) if len(workers) == 1 else None
    return inner if isinstance(inner, tf.data.Iterator) and hasattr(inner, "_iterator_resource") else None


def _is_distributed(iterator: Any) -> bool:
    return isinstance(iterator, tf.distribute.DistributedIterator)


def _state(iterator: Any) -> bytes:
    state = tf.raw_ops.SerializeIterator(resource_handle=iterator._iterator_resource, external_state_policy=_FAIL)
    return bytes(tf.io.serialize_tensor(state).numpy())


def _sentence(error: Any) -> str:
    text: str = error.message.splitlines()[0].replace("{{function_node __wrapped__SerializeIterator_device_", "")
    return text.split("}} ")[-1].split(" [Op:")[0][:200]


def _go_on(iterator: Any, batches: int, start: str) -> None:
    """Go through batches, with Python's random generators as they were at the beginning of them.

    A pipeline that draws from those goes on from where it has brought them; to one that does not they are given back.
    """
    if not start:
        _take(iterator, batches)
        return
    before = randomness.capture()
    set_python(start)
    drawn = python_state()
    _take(iterator, batches)
    if python_state() == drawn:
        randomness.restore(before)


def _take(iterator: Any, batches: int) -> None:
    for done in range(batches):
        try:
            next(iterator)
        except StopIteration:
            raise InputError(
                f"The data has become shorter: it ended behind {done} batches, and {batches} were taken before. "
                "Next: give the run its data back, or submit a new run."
            ) from None


def python_state() -> str:
    """Return the state of the generators that Python functions draw from."""
    saved = json.loads(randomness.capture())
    return json.dumps({"python": saved["python"], "numpy": saved["numpy"]})


def set_python(state: str) -> None:
    """Put back what `python_state` has returned."""
    saved = json.loads(state)
    random.setstate((saved["python"][0], tuple(saved["python"][1]), *saved["python"][2:]))
    if saved["numpy"]:
        inner = saved["numpy"]["state"]
        key = np.array(inner["key"], dtype=np.uint32)
        np.random.set_state({**saved["numpy"], "state": {**inner, "key": key}})


class ResumableIterator:
    """The batches of one pass over a dataset, from any place of it.

    Args:
        data: a `tf.data.Dataset`, a distributed dataset, or any iterable.
        skip: how many batches of it were taken before, where there is no `state`.
        state: what `position().state` was there.
    """

    def __init__(self, data: Any, *, skip: int = 0, state: bytes | None = None) -> None:
        made = _made(data)
        place = IteratorState.decode(state) if state else IteratorState(batches=skip, iterators=made + 1)
        self._traits = traits_of(data)
        self._iterators = max(place.iterators, made + 1)
        self._batches, self._failed = place.batches, False
        self._start = place.start or (python_state() if self._traits.python or not _is_tf_data(data) else "")
        self._iterator = reach(replace(place, start=self._start), made, lambda: iter(data))
        with contextlib.suppress(AttributeError):
            data.podlift_iterators = self._iterators

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise
        except BaseException:
            # It may be past the batch that it could not make.
            self._failed = True
            raise
        self._batches += 1
        return batch

    def position(self) -> Position:
        """Return where it is: behind the batch that was given last."""
        place = IteratorState(batches=self._batches, iterators=self._iterators, start=self._start)
        if self._failed:
            return Position(kind="skip", state=place.encode(), why="; ".join(self._traits.downgrades))
        return position_of(self._iterator, place, self._traits)


def next_pass(data: Any) -> Position:
    """Return the beginning of the next pass over a dataset, for a state between two of them."""
    why = "; ".join(traits_of(data).downgrades)
    return Position(kind="skip", state=IteratorState(batches=0, iterators=_made(data) + 1).encode(), why=why)


def _made(data: Any) -> int:
    """Return how many feeds there were of this object."""
    return int(getattr(data, "podlift_iterators", 0))


def _is_tf_data(data: Any) -> bool:
    return isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset))
