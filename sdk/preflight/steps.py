"""Inspects a captured training step: its operations, the compiled program, its memory, its input."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import compiler_ir, concrete_function
from tensorflow.python.framework import func_graph as func_graphs
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops, summary_ops_v2

from ..planning.preflight_findings import Layer, PreflightFinding
from . import rules, sizes
from .capture import functions_of, within
from .observations import Observations, TracedStep

# Used if the batch is unknown.
_DEFAULT_BATCH = 8
Locate = Callable[[Any], tuple[str, int]]


@dataclass
class Compiled:
    layers: tuple[Layer, ...] = ()
    peak: int | None = None
    refusal: str = ""


def shapes(step: TracedStep, observations: Observations) -> tuple[list[Any], int | None, bool]:
    """Return fully defined specs, the batch of one replica, and whether that is known rather than guessed."""
    if all(spec.shape.is_fully_defined() for spec in step.specs):
        return list(step.specs), _batch(step.specs), True
    batch = next(
        (spec.shape[0] for spec in step.specs if spec.shape.rank and spec.shape[0] is not None), _DEFAULT_BATCH
    )
    fed = next(
        (fed_shapes for dataset in reversed(observations.datasets) if (fed_shapes := _fed(step.specs, dataset))), None
    )
    filled, is_known = [], True
    for number, spec in enumerate(step.specs):
        sides = spec.shape if fed is None or fed[number] is None else fed[number]
        is_known = is_known and sides.is_fully_defined()
        guessed = [batch if side is None else side for side in ([] if sides.rank is None else sides)]
        filled.append(tf.TensorSpec(guessed, spec.dtype))
    return filled, _batch(filled), is_known


def _batch(specs: Sequence[Any]) -> int | None:
    """Return the largest first dimension of specs or tensors."""
    return max((spec.shape[0] for spec in specs if spec.shape.rank), default=None)


def _feeds(dataset: Any, specs: Sequence[Any]) -> bool:
    """Return whether the elements of a data set fit the inputs of a step."""
    inputs = [spec for spec in specs if spec.shape.rank]
    flat = tf.nest.flatten(dataset.element_spec, expand_composites=True)
    return [spec.dtype for spec in inputs] == [spec.dtype for spec in flat] and all(
        one.shape.is_compatible_with(other.shape) for one, other in zip(inputs, flat, strict=True)
    )


def _fed(specs: Sequence[Any], dataset: Any) -> list[Any] | None:
    """Return the shapes of a data set's first element, aligned with the specs that it feeds."""
    try:
        first = next(iter(dataset.take(1)), None) if _feeds(dataset, specs) else None
    except (tf.errors.OpError, ValueError, TypeError, OSError):
        first = None  # the program itself will report errors of its data
    if first is None:
        return None
    sides = iter(tensor.shape for tensor in tf.nest.flatten(first, expand_composites=True))
    return [next(sides) if spec.shape.rank else None for spec in specs]


def uneven(step: TracedStep, observations: Observations, replicas: int) -> tuple[int, int] | None:
    """Return the examples of a replica's usual batch and of its last one, if they differ."""
    batches = list(observations.arrays)
    for dataset in observations.datasets:
        if _feeds(dataset, step.specs):
            batches += [rest for source in _sources(dataset) if (rest := _rest(source)) is not None]
    return (batches[0][0] // replicas, -(-batches[0][1] // replicas)) if batches else None


def _rest(dataset: Any) -> tuple[int, int] | None:
    """Return the sizes of the usual and of the last batch of a data set; None if they are equal or unknown."""
    size, drops = getattr(dataset, "_batch_size", None), getattr(dataset, "_drop_remainder", None)
    if size is None or drops is None or bool(tf.get_static_value(drops)):
        return None
    size, count = int(tf.get_static_value(size)), int(dataset._inputs()[0].cardinality())
    # Negative if unknown or infinite.
    return (size, count % size) if count > size and count % size else None


def _sources(dataset: Any) -> Iterator[Any]:
    """Yield a data set and the data sets that it is derived from."""
    pending, visited = [dataset], set()
    while pending:
        current = pending.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        pending += list(current._inputs())
        inner = getattr(current, "_dataset", None) or getattr(current, "_input_dataset", None)
        if inner is not None:
            pending.append(inner)


def pipeline(observations: Observations, locate: Locate) -> list[rules.StepOp]:
    """Return the operations of the functions of the input pipeline."""
    operations = []
    for source in itertools.chain.from_iterable(map(_sources, observations.datasets)):
        for name in ("_map_func", "_func", "_predicate"):
            function = getattr(getattr(source, name, None), "function", None)
            if function is not None:
                operations += [_op(op, locate) for op in within(function.graph)]
    return operations


def traced(step: TracedStep, specs: Sequence[Any]) -> Any:
    """Return the graph of a step for these specs: the program's own if it is complete, else a new trace."""
    alone = all(isinstance(value, ops.EagerTensor) for value in step.graph.external_captures)
    if step.on_tpu and alone and all(spec.shape.is_fully_defined() for spec in step.specs):
        return step.graph
    return step.build(list(specs))


def operations(graph: Any, locate: Locate) -> list[rules.StepOp]:
    """Return the operations of a step and of the functions that it calls."""
    host: set[int] = set()
    if tf.config.get_soft_device_placement():
        _for_host_calls(graph, host, {})
    return [_op(op, locate, on_host=id(op) in host) for op in within(graph)]


def _for_host_calls(graph: Any, host: set[int], done: dict[int, set[int]]) -> set[int]:
    """Add the operations that only serve host calls to `host`; return which inputs of the graph do so too.

    With soft placement a TPU leaves them to its host together with the call, such as encoding the picture of a summary.
    """
    if id(graph) in done:
        return done[id(graph)]
    done[id(graph)] = set()
    results = {id(tensor) for tensor in graph.outputs}

    def only_there(tensor: Any) -> bool:
        return id(tensor) not in results and all(goes_to_host(user, tensor) for user in tensor.consumers())

    def goes_to_host(user: Any, tensor: Any) -> bool:
        if id(user) in host:
            return True
        numbers = [number for number, source in enumerate(user.inputs) if source is tensor]
        # The first input of a condition is its predicate; the others are the inputs of its branches.
        shift = {"If": 1, "StatelessIf": 1, "PartitionedCall": 0, "StatefulPartitionedCall": 0}.get(user.type)
        if shift is None:
            return False
        inner = [_for_host_calls(function, host, done) for function in functions_of(user, graph)]
        return bool(inner) and all(number - shift in serving for number in numbers for serving in inner)

    for op in reversed(graph.get_operations()):
        used = any(tensor.consumers() for tensor in op.outputs)
        if op.type in rules.host_calls() or (used and all(only_there(tensor) for tensor in op.outputs)):
            host |= {id(op), *(id(below) for inner in functions_of(op, graph) for below in within(inner))}
    done[id(graph)] = {number for number, tensor in enumerate(graph.inputs) if only_there(tensor)}
    return done[id(graph)]


def _op(op: Any, locate: Locate, *, on_host: bool = False) -> rules.StepOp:
    path, line = locate(op.traceback)
    return rules.StepOp(
        type=op.type,
        name=op.name,
        path=path,
        line=line,
        inputs=[_spec(tensor) for tensor in op.inputs],
        outputs=[_spec(tensor) for tensor in op.outputs],
        on_host=on_host,
    )


def _spec(tensor: Any) -> tuple[str, rules.Shape]:
    return tensor.dtype.name, None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


@contextlib.contextmanager
def without_host_calls() -> Iterator[None]:
    """Trace without operations that a TPU leaves to its host: the compiler for CPUs does not support them."""
    kind = func_graphs.FuncGraph
    original = kind._create_op_internal

    def create(graph: Any, op_type: str, inputs: Any, *args: Any, **options: Any) -> Any:
        if op_type not in rules.host_calls():
            return original(graph, op_type, inputs, *args, **options)
        if op_type == "StringFormat":
            return tf.constant("").op
        return original(graph, "NoOp", [], [], name=options.get("name"))

    recording = summary_ops_v2.should_record_summaries
    kind._create_op_internal = create
    summary_ops_v2.should_record_summaries = lambda: False
    try:
        yield
    finally:
        kind._create_op_internal = original
        summary_ops_v2.should_record_summaries = recording


def state_bytes(graph: Any) -> int:
    specs = {id(handle): _variable_spec(handle) for handle in graph.external_captures if handle.dtype == tf.resource}
    return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs.values() if spec is not None)


def _variable_spec(handle: Any) -> Any:
    """Return shape and type of a variable by its handle; None if it is not a variable or has no fixed shape."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return None
    spec = tf.TensorSpec(data.shape_and_type[0].shape, tf.as_dtype(data.shape_and_type[0].dtype))
    return spec if spec.shape.is_fully_defined() else None


def _fill(graph: Any) -> None:
    """Initialize variables that have no value yet: the compiler needs their shapes only."""
    for handle in graph.external_captures:
        spec = _variable_spec(handle) if handle.dtype == tf.resource else None
        if spec is not None and not bool(resource_variable_ops.var_is_initialized_op(handle)):
            resource_variable_ops.assign_variable_op(handle, tf.zeros(spec.shape, spec.dtype))


def compiled(graph: Any, specs: Sequence[Any], dumps: str) -> Compiled:
    """Compile a step with known shapes; `dumps` is the folder in which the compiler writes its tables."""
    _fill(graph)
    for outer, inside in list(graph.captures):
        # A summary writer without its summaries.
        if outer.dtype == tf.resource and not inside.consumers() and _variable_spec(outer) is None:
            graph._function_captures.pop(id(outer), False)
            graph.inputs = [tensor for tensor in graph.inputs if tensor is not inside]
    function = concrete_function.ConcreteFunction.from_func_graph(graph, None, {"_XlaMustCompile": True})
    compilation = Compiled()
    try:
        ask = compiler_ir.from_concrete_function(function, list(specs))
        compilation.layers = sizes.layers(ask(stage="hlo"))
        ask(stage="optimized_hlo")
    except (tf.errors.OpError, ValueError, TypeError) as error:
        compilation.refusal = str(error)
        return compilation
    for table in Path(dumps).iterdir():
        if table.name.endswith("buffer-assignment.txt"):
            compilation.peak = sizes.peak_bytes(table.read_text()) or compilation.peak
        table.unlink()  # the next step's tables are written to the same folder
    return compilation


def programs(steps: Sequence[TracedStep]) -> int:
    return sum(len(_kinds(same)) for same in by_line(steps).values())


def by_line(steps: Sequence[TracedStep]) -> dict[tuple[str, int], list[TracedStep]]:
    """Return the steps that train by the lines that run them."""
    lines: dict[tuple[str, int], list[TracedStep]] = {}
    for step in steps:
        if step.trains:
            lines.setdefault((step.path, step.line), []).append(step)
    return lines


def _kinds(steps: Sequence[TracedStep]) -> set[str]:
    return {str([(str(spec.shape), spec.dtype.name) for spec in step.specs]) for step in steps}


def recompiled(steps: Sequence[TracedStep]) -> list[PreflightFinding]:
    """Report steps that were traced for several shapes, or more often than their shapes explain."""
    findings = []
    for (path, line), same in by_line(steps).items():
        kinds = _kinds(same)
        # TensorFlow traces a first call that creates variables twice.
        if len(kinds) == 1 and len(same) <= 2:
            continue
        why = f"of {len(kinds)} different shapes" if len(kinds) > 1 else "with Python numbers that differ"
        findings.append(
            PreflightFinding(
                path, line, "warning", "recompilation", f"the step was traced {len(same)} times, {why}",
                "the TPU's compiler makes a program for each, which takes up to minutes",
                "drop_remainder=True for shapes; numbers as tf.constant or tf.Variable",
            )
        )  # fmt: skip
    return findings
