"""What in a tf.data pipeline cannot be repeated in another process: Python functions, random operations, no order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_GENERATORS = ("RngReadAndSkip", "StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a pipeline is made of.

    Args:
        python: a Python function or generator makes its elements.
        downgrades: why going through it again may give other elements, one sentence each.
    """

    python: bool
    downgrades: tuple[str, ...]


def traits_of(dataset: Any) -> Traits:
    """Look at every step of a pipeline; what cannot be looked at (a distributed dataset) is taken to be well-behaved."""
    python, sentences = False, []
    for step in _steps(dataset, set()):
        for node in _nodes(step):
            python = python or node.op in _PYTHON
            sentences += [_random(node, step)]
        sentences += [_order(step)]
    return Traits(python=python, downgrades=tuple(dict.fromkeys(filter(None, sentences))))


def _steps(dataset: Any, seen: set[int]) -> Iterator[Any]:
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    yield dataset
    try:
        inputs = list(dataset._inputs())
    except (AttributeError, NotImplementedError):
        original = getattr(dataset, "_original_dataset", None)  # of a distributed dataset
        inputs = [] if original is None else [original]
    for each in inputs:
        yield from _steps(each, seen)


def _nodes(step: Any) -> Iterator[Any]:
    try:
        functions = [wrapper.function for wrapper in step._functions()]
    except (AttributeError, NotImplementedError):
        return
    for function in functions:
        graph = function.graph.as_graph_def()
        yield from graph.node
        for nested in graph.library.function:
            yield from nested.node_def


def _random(node: Any, step: Any) -> str:
    if node.op.startswith(_GENERATORS):
        return (
            f"the data pipeline draws from a tf.random.Generator ({node.op}), whose state runs ahead of the training. "
            "Next: use tf.random.stateless_* with a seed made from the element's number"
        )
    if "seed2" not in node.attr or node.op.startswith("Stateless"):
        return ""
    if node.attr["seed"].i == 0 and node.attr["seed2"].i == 0:
        return f"the data pipeline draws random numbers without a seed ({node.op}). Next: call tf.random.set_seed"
    if getattr(step, "_num_parallel_calls", None) is not None and not _is_deterministic():
        return (
            f"the data pipeline draws random numbers in parallel calls ({node.op}), in no certain order. "
            "Next: call tf.config.experimental.enable_op_determinism"
        )
    return ""


def _order(step: Any) -> str:
    # Options hold for all the steps before them, and the last step has those of all.
    loose = getattr(step, "_deterministic", None) in ("false", False) or _interleaves_loosely(step)
    try:
        loose = loose or step.options().deterministic is False
    except (AttributeError, NotImplementedError):
        pass
    return (
        "the order of the data is not deterministic (deterministic=False)" if loose and not _is_deterministic() else ""
    )


def _interleaves_loosely(step: Any) -> bool:
    """Look into the graph: this kind of step does not keep its argument. Its sources are mostly names of files."""
    if "ParallelInterleave" not in type(step).__name__:
        return False
    tf = importlib.import_module("tensorflow")
    ignore = tf.data.experimental.ExternalStatePolicy.IGNORE.value
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=step._variant_tensor, external_state_policy=ignore).numpy()
    nodes = tf.compat.v1.GraphDef.FromString(text).node
    return any(node.attr["deterministic"].s == b"false" for node in nodes if "deterministic" in node.attr)


def _is_deterministic() -> bool:
    config = importlib.import_module("tensorflow.python.framework.config")
    return bool(getattr(config, "is_op_determinism_enabled", bool)())
