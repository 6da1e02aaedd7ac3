"""The position of a training in its data: tf.data's own state where possible, otherwise the number of batches taken.

Both are exact for a pipeline that yields the same elements every time. Skipping `n` batches costs producing them.
`Position.why` reports the cause of an inexact position.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

import tensorflow as tf

from ...errors import InputError
from ...logs import logger
from . import randomness
from .object_state import blob_of, split

_log = logger("checkpoint")

LARGE_BYTES = 100_000_000
_CHEAP = 2000  # this many batches are skipped rather than risking the order of the next epoch
_FAIL = 2  # ExternalStatePolicy: fail if the pipeline has external state
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_STATEFUL = frozenset({"PyFunc", "EagerPyFunc", "ReadVariableOp"})  # the last one also in podlift's order of arrays
_GENERATORS = ("RngReadAndSkip", "StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Whether Python produces the elements of a pipeline, and a sentence for each reason why another pass may differ."""

    python: bool
    downgrades: tuple[str, ...]
    unsaved: str = ""  # an operation with which tf.data saves no position


class InputState(TypedDict, total=False):
    """The state from which `keras_input` continues an epoch."""

    seen: int  # batches that earlier epochs took from the iterator
    num_batches: int | None
    seed: int  # of the orders
    object: dict[str, object]  # attributes of the program's data set


@dataclass(frozen=True, kw_only=True)
class IteratorState:
    """The state of an iterator over a dataset."""

    batches: int  # how many were taken from it
    iterators: int = 1  # its number: a reshuffled dataset gives each iterator another order
    extra: InputState | None = None  # for its creator
    start: str = ""  # the random generators before its first batch, if Python produces the data
    state: bytes = b""  # tf.data's own

    def encode(self) -> bytes:
        return blob_of({**asdict(self), "state": len(self.state)}, [self.state])

    @classmethod
    def decode(cls, blob: bytes) -> IteratorState:
        """Reverse `encode`; ValueError for other bytes."""
        fields, rest = split(blob)
        state = bytes(rest)
        if len(state) != fields["state"]:
            raise ValueError(f"a position with {len(state)} bytes instead of {fields['state']}")
        return cls(**{**fields, "state": state})


@dataclass(frozen=True, kw_only=True)
class Position:
    """A position in the data, ready to be saved."""

    kind: str  # "exact" with tf.data's state, "skip" with a number of batches to skip
    state: bytes  # for a blob of this task
    how: str = ""  # for "skip", why tf.data's state is not available
    why: str = ""  # why the resumed training may differ from an uninterrupted one


def position_of(iterator: Any, at: IteratorState, traits: Traits) -> Position:
    """Return the position of an iterator; `at` has everything but tf.data's state."""
    inner = inner_iterator(iterator)
    if inner is None:
        how = "it feeds several devices" if _is_distributed(iterator) else "it is not an iterator of tf.data"
    elif traits.downgrades:
        how = traits.downgrades[0]  # tf.data would silently save some of these
    elif traits.unsaved:
        how = f"{traits.unsaved} is stateful"  # each attempt would write "failed" to the log
    else:
        try:
            state = _state(inner)
        except tf.errors.OpError as error:
            how = _sentence(error)
        else:
            large = f"the data's position has {len(state) / 1e6:.0f} MB, most of it shuffled elements"
            why = large if len(state) > LARGE_BYTES else ""
            return Position(kind="exact", state=replace(at, state=state).encode(), why=why)
    return by_counting(at, traits, how=f"tf.data cannot save this position: {how}")


def by_counting(at: IteratorState, traits: Traits, how: str = "") -> Position:
    return Position(kind="skip", state=at.encode(), how=how, why="; ".join(traits.downgrades))


def reach(at: IteratorState, iterators: int, make: Callable[[], Any], iterator: Any = None) -> Any:
    """Return an iterator at a saved state; `iterators` of them exist, and `iterator` is the unused last one.

    Every iterator over a dataset draws the seeds of its shuffles, so as many are created as there were. Restoring a state
    creates one more inside TensorFlow, which matters only if a shuffle was at its end; then its state is not saved.
    """
    too_many = max(iterators, 1) >= at.iterators  # the extra one
    if at.state and too_many and at.batches <= _CHEAP and randomness.global_seed() is not None:
        at = replace(at, state=b"")
    needed = at.iterators - 1 if at.state else at.iterators
    while iterator is None or iterators < needed:
        iterator, iterators = make(), iterators + 1
    inner = inner_iterator(iterator)
    if at.state and inner is not None:
        serialized = tf.io.parse_tensor(at.state, tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=inner._iterator_resource, serialized=serialized)
    else:
        _take_again(iterator, at.batches, at.start)
    return iterator


def inner_iterator(iterator: Any) -> Any:
    """Return the iterator that holds all the state of this one, or None."""
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


def _take_again(iterator: Any, batches: int, start: str) -> None:
    """Skip batches with the Python generators as they were; restore those afterwards unless the pipeline draws from them."""
    if not start:
        _take(iterator, batches)
        return
    if batches:
        _log.info(
            f"Python makes the data: its first {batches} batches were made again and left out, which is exact if they are the "
            "same. The generators of Python's random and of NumPy were set back; give others a seed"
        )
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
                f"The data has become shorter: it ended after {done} batches, and {batches} had been used. "
                "Next: restore the data, or submit a new run."
            ) from None


def python_state() -> str:
    """Return the state of the generators that Python functions use."""
    return json.dumps(randomness.python_state())


def set_python(state: str) -> None:
    """Restore a `python_state`."""
    randomness.set_python_state(json.loads(state))


class ResumableIterator:
    """The batches of one pass over a dataset or iterable, from a saved position or after `skip` batches."""

    def __init__(self, data: Any, *, skip: int = 0, state: bytes | None = None) -> None:
        iterators = _iterators_over(data)
        at = IteratorState.decode(state) if state else IteratorState(batches=skip, iterators=iterators + 1)
        self._traits = traits_of(data)
        self._iterators = max(at.iterators, iterators + 1)
        self._batches, self._failed = at.batches, False
        of_python = self._traits.python or not isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset))
        self._start = at.start or (python_state() if of_python else "")
        self._iterator = reach(replace(at, start=self._start), iterators, lambda: iter(data))
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
            # The iterator may have skipped the batch that failed.
            self._failed = True
            raise
        self._batches += 1
        return batch

    def position(self) -> Position:
        """Return the position after the last batch."""
        at = IteratorState(batches=self._batches, iterators=self._iterators, start=self._start)
        return by_counting(at, self._traits) if self._failed else position_of(self._iterator, at, self._traits)


def next_pass(data: Any) -> Position:
    """Return the position at the beginning of the next pass over a dataset."""
    return by_counting(IteratorState(batches=0, iterators=_iterators_over(data) + 1), traits_of(data))


def _iterators_over(data: Any) -> int:
    """Return how many iterators were created over this object."""
    return int(getattr(data, "podlift_iterators", 0))


# --- Causes that make a pipeline unrepeatable ----------------------------------------------------------------------


def traits_of(dataset: Any) -> Traits:
    """Inspect every step of a pipeline; a step without access (a distributed dataset) is assumed to be deterministic."""
    python, unsaved, sentences = False, "", []
    for step in steps_of(dataset):
        for node in nodes_of(step):
            python = python or node.op in _PYTHON
            unsaved = unsaved or (node.op if node.op in _STATEFUL or _draws(node) else "")
            sentences.append(_random_op(node, step))
        sentences.append(_order_of(step))
    return Traits(python=python, downgrades=tuple(dict.fromkeys(filter(None, sentences))), unsaved=unsaved)


def steps_of(dataset: Any) -> Iterator[Any]:
    """Yield each step of a pipeline, the last one first."""
    return _steps(dataset, set())


def _steps(dataset: Any, visited: set[int]) -> Iterator[Any]:
    if id(dataset) in visited:
        return
    visited.add(id(dataset))
    yield dataset
    try:
        inputs = list(dataset._inputs())
    except (AttributeError, NotImplementedError):
        original = getattr(dataset, "_original_dataset", None)  # of a distributed dataset
        inputs = [] if original is None else [original]
    for inner in inputs:
        yield from _steps(inner, visited)


def nodes_of(step: Any) -> Iterator[Any]:
    """Yield the operations of a step's functions."""
    try:
        functions = [wrapper.function for wrapper in step._functions()]
    except (AttributeError, NotImplementedError):
        return
    for function in functions:
        graph = function.graph.as_graph_def()
        yield from graph.node
        for nested in graph.library.function:
            yield from nested.node_def


def _draws(node: Any) -> bool:
    """Return whether an operation has a random state of its own, with or without a seed."""
    return "seed2" in node.attr and not node.op.startswith("Stateless")


def _random_op(node: Any, step: Any) -> str:
    if node.op.startswith(_GENERATORS):
        return (
            f"the data pipeline draws from a tf.random.Generator ({node.op}), and its state is ahead of the training. "
            "Next: use tf.random.stateless_* with a seed derived from the element's index"
        )
    if not _draws(node):
        return ""
    if node.attr["seed"].i == 0 and node.attr["seed2"].i == 0:
        return f"the data pipeline draws random numbers without a seed ({node.op}). Next: call tf.random.set_seed"
    if getattr(step, "_num_parallel_calls", None) is not None and not _is_deterministic():
        return (
            f"the data pipeline draws random numbers in parallel calls ({node.op}), in an undefined order. "
            "Next: call tf.config.experimental.enable_op_determinism"
        )
    return ""


def _order_of(step: Any) -> str:
    # Options apply to all steps before them; the last step has the options of all.
    loose = getattr(step, "_deterministic", None) in ("false", False) or _interleaves_loosely(step)
    try:
        loose = loose or step.options().deterministic is False
    except (AttributeError, NotImplementedError):
        pass
    if not loose or _is_deterministic():
        return ""
    return "the order of the data is not deterministic (deterministic=False)"


def _interleaves_loosely(step: Any) -> bool:
    """Inspect the graph, because this step does not keep its argument. Its sources are mostly file names."""
    if "ParallelInterleave" not in type(step).__name__:
        return False
    ignore = tf.data.experimental.ExternalStatePolicy.IGNORE.value
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=step._variant_tensor, external_state_policy=ignore).numpy()
    nodes = tf.compat.v1.GraphDef.FromString(text).node
    return any(node.attr["deterministic"].s == b"false" for node in nodes if "deterministic" in node.attr)


def _is_deterministic() -> bool:
    config = importlib.import_module("tensorflow.python.framework.config")
    return bool(getattr(config, "is_op_determinism_enabled", bool)())
