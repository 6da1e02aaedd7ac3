"""One step on all replicas of the stand-in, traced once.

TensorFlow's TPUStrategy passes a step to `tpu.replicate`, which traces it once for all replicas and leaves the rest to the
TPU's compiler. The functions here replace that one and the TPU's collectives: the traced step becomes a function that is
called once per replica, each time on another logical CPU device and with that replica's own variables. Everything else,
from the variables to the data, is TensorFlow's own code for TPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import tpu_util
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph as func_graphs
from tensorflow.python.ops import collective_ops
from tensorflow.python.tpu import tpu_replication

# Far from TensorFlow's own numbers, which start at 1.
_GROUP = 1_100_000_000
_numbers = itertools.count(1)

Nest = Any


class Replicated(tpu_replication.TPUReplicateContext):  # type: ignore[misc]
    """Marks the graph of a step; TensorFlow's TPU variables get their handles from it."""

    def __init__(self, graph: Any, devices: Sequence[str], replica: Any) -> None:
        super().__init__(name="podlift_tpu", num_replicas=len(devices), pivot=None)
        self.graph, self.devices, self.replica = graph, devices, replica
        self.handles: dict[int, list[Any]] = {}
        self.adds_up = False

    def get_replicated_var_handle(
        self, name: str, handle_id: str, vars_: Sequence[Any], is_mirrored: bool = False, is_packed: bool = False
    ) -> Any:
        """Return the handle in the trace that represents each replica's own component."""
        handles = [getattr(variable, "handle", variable) for variable in vars_]
        self.handles[id(handles[0])] = handles
        with self.graph.as_default():
            return self.graph.capture(handles[0])

    def IsXLAContext(self) -> bool:
        """False: the code traced here runs on CPUs."""
        return False

    def AddOp(self, op: Any) -> None:
        """Leave the operation as it is."""

    def AddValue(self, val: Any) -> Any:
        """Return the value as it is."""
        return val

    def to_control_flow_context_def(self, context_def: Any, export_scope: Any = None) -> None:
        """Write nothing: the graph is never exported."""


def replicate(computation: Callable[..., Nest], inputs: Sequence[Nest], devices: Sequence[str]) -> list[Nest]:
    """Run the computation once per input, each on its replica's device; return the result of each.

    The first part of an input is the replica's number. All inputs have the same structure.
    """
    flat = [[_as_tensor(leaf) for leaf in tf.nest.flatten(own, expand_composites=True)] for own in inputs]
    tensor_indices = [index for index, leaf in enumerate(flat[0]) if isinstance(leaf, tf.Tensor)]
    specs = [_spec([own[index] for own in flat]) for index in tensor_indices]
    outputs: list[Any] = []

    def step(*tensors: Any) -> list[Any]:
        leaves = list(flat[0])
        for index, tensor in zip(tensor_indices, tensors, strict=True):
            leaves[index] = tensor
        graph = tf.compat.v1.get_default_graph()
        mark = Replicated(graph, devices, tensors[0])
        outer = graph._get_control_flow_context()
        graph._set_control_flow_context(mark)
        try:
            output = computation(*tf.nest.pack_sequence_as(inputs[0], leaves, expand_composites=True))
            output = tf.nest.map_structure(_as_tensor, output, expand_composites=True)
        finally:
            graph._set_control_flow_context(outer)
        outputs[:] = [output, mark]
        return [leaf for leaf in tf.nest.flatten(output, expand_composites=True) if isinstance(leaf, tf.Tensor)]

    graph = func_graphs.func_graph_from_py_func("tpu_step", step, specs, {}, signature=specs)
    structure, mark = outputs
    results = _call(graph, mark, [[own[index] for index in tensor_indices] for own in flat], devices)
    return [_packed(structure, result) for result in results]


def _call(graph: Any, mark: Replicated, tensors: list[list[Any]], devices: Sequence[str]) -> list[list[Any]]:
    captures = list(graph.external_captures)
    function = concrete_function.ConcreteFunction.from_func_graph(graph, None, {})
    _refuse_shared(graph, mark, captures)
    # Resources that all replicas share and that are not variables: summary writers, tables.
    common = {id(value) for value in captures if value.dtype == tf.resource and not _is_variable(value)}
    results = []
    for replica, (device, own) in enumerate(zip(devices, tensors, strict=True)):
        handles = [
            mark.handles[id(value)][replica] if id(value) in mark.handles else _own(value, common) for value in captures
        ]
        with tf.device(device):
            result = function._call_flat(own, handles)
        _unchain(result)
        results.append([] if result is None or isinstance(result, tf.Operation) else tf.nest.flatten(result))
    return results


def _is_variable(handle: Any) -> bool:
    about = getattr(handle, "_handle_data", None)
    return about is not None and bool(about.is_set)


def _own(value: Any, common: set[int]) -> Any:
    """Return a separate name per replica for a shared resource: calls with the same one would run one after the other.

    A replica that waits for the others in a sum would then wait for calls that start only after its own has ended.
    """
    # TensorFlow sees through tf.identity.
    return tf.identity_n([value])[0] if id(value) in common else value


def _unchain(result: Any) -> None:
    """Let the calls of the replicas run in parallel: they wait for each other in every sum.

    TensorFlow orders calls without a variable, since each might write a file.
    """
    values = tf.nest.flatten(result)
    if not values:
        return
    call = values[0] if isinstance(values[0], tf.Operation) else values[0].op
    manager = call.graph.experimental_acd_manager
    if manager is not None and not any(value.dtype == tf.resource for value in call.inputs):
        manager.run_independently(call)


def _refuse_shared(graph: Any, mark: Replicated, captures: list[Any]) -> None:
    """Refuse a step that writes to a shared resource: the replicas would wait for each other for ever."""
    inside = dict(zip((id(value) for value in captures), graph.internal_captures, strict=True))
    for value in captures:
        if value.dtype != tf.resource or id(value) in mark.handles or not mark.adds_up:
            continue
        writers = [op for op in inside[id(value)].consumers() if op.type.startswith(_WRITES)]
        if writers:
            raise ValueError(
                f"A replica's step writes to a variable that is not its own ({writers[0].type} of {writers[0].name!r}). Next: "
                "on a TPU, create every variable that a step changes inside `with strategy.scope():`."
            )


_WRITES = ("Assign", "ResourceScatter", "ResourceApply")


def _as_tensor(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, (tf.Tensor, tf.Operation)):
        return leaf
    return tf.convert_to_tensor(leaf)


def _spec(leaves: Sequence[Any]) -> Any:
    """Return the most specific spec that fits all replicas; the last batch of an epoch may differ in size."""
    shape = leaves[0].shape
    for leaf in leaves[1:]:
        shape = shape.most_specific_compatible_shape(leaf.shape)
    return tf.TensorSpec(shape, leaves[0].dtype)


def _packed(structure: Nest, tensors: list[Any]) -> Nest:
    rest = iter(tensors)
    leaves = tf.nest.flatten(structure, expand_composites=True)
    leaves = [next(rest) if isinstance(leaf, tf.Tensor) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


# --- Collectives --------------------------------------------------------------------------------------------


def enclosing() -> Replicated | None:
    mark = tpu_util.enclosing_tpu_context()
    return mark if isinstance(mark, Replicated) else None


# The types of TensorFlow's operation for TPUs (CrossReplicaSum).
_ADDED_UP = (tf.float32, tf.bfloat16, tf.float16, tf.int32, tf.uint32)


def check_sum(value: Any) -> None:
    if value.dtype not in _ADDED_UP:
        raise TypeError(
            f"Replicas of a TPU add up {', '.join(kind.name for kind in _ADDED_UP)}. Received: {value.dtype.name}. "
            "Next: tf.cast(value, tf.float32) or tf.int32 before the sum."
        )


def add_up(value: Any) -> Any:
    """Return the sum of every replica's value, on every replica."""
    mark = enclosing()
    if mark is None:
        raise RuntimeError("Replicas add up values inside strategy.run() only. Next: strategy.reduce() outside of it.")
    if len(mark.devices) == 1:
        return tf.identity(value)
    mark.adds_up = True
    return collective_ops.all_reduce_v2(
        value, group_size=len(mark.devices), group_key=_GROUP + len(mark.devices), instance_key=_GROUP + next(_numbers)
    )


def add_up_all(values: Sequence[Any]) -> list[Any]:
    """Add up many values with one collective per type."""
    sums = list(values)
    for dtype in {value.dtype for value in values}:
        same = [index for index, value in enumerate(values) if value.dtype == dtype]
        flat = [tf.reshape(values[index], [-1]) for index in same]
        sizes = [tf.size(part) for part in flat]
        for index, part in zip(same, tf.split(add_up(tf.concat(flat, 0)), sizes), strict=True):
            sums[index] = tf.reshape(part, tf.shape(values[index]))
            sums[index].set_shape(values[index].shape)
    return sums


def exchange(value: Any, concat_dimension: int, split_dimension: int, split_count: int) -> Any:
    """Return each replica's share of every replica's value, in the order of the replicas (all-to-all)."""
    mark = enclosing()
    if mark is None or split_count != len(mark.devices):
        raise ValueError(
            f"all_to_all needs all replicas and runs inside strategy.run() only. Received: split_count={split_count}."
        )
    kind = tf.convert_to_tensor(value).dtype
    shares = tf.stack(
        tf.split(tf.cast(value, tf.int64) if not kind.is_floating else value, split_count, split_dimension)
    )
    mine = tf.one_hot(mark.replica, split_count, dtype=shares.dtype)
    all_shares = add_up(tf.tensordot(mine, shares, axes=0))
    received = tf.unstack(tf.gather(all_shares, mark.replica, axis=1), num=split_count)
    return tf.cast(tf.concat(received, concat_dimension), kind)
