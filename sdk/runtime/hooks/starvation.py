"""Finds out that a training waits for its input, and which one change of its tf.data pipeline is the first to make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..account import COMPILE, INPUT_WAIT, STEP, Account

# Waiting below this share of the steps' time is not worth a change.
_SHARE = 0.2
# It is judged once, over this many steps and seconds after the first step, which may fill a shuffle buffer.
_STEPS, _NS = 10, 10_000_000_000
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_SEQUENTIAL = {"MapDataset": "map", "InterleaveDataset": "interleave", "FlatMapDataset": "flat_map"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One transformation of a pipeline."""

    kind: str  # such as "MapDataset"
    function: str = ""  # the name of the program's function, "" if it has none or a lambda
    python: bool = False  # Python code runs for each element


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    stages: Sequence[Stage]  # the last one first
    prefetches: bool = True  # tf.data prefetches by itself
    made_by: str = "dataset"  # or "PyDataset", "generator", "loader" (of torch), "arrays"


class StarvedInput:
    """Reports once that steps wait for their input."""

    def __init__(self, account: Account, report: Callable[[str], None]) -> None:
        self._account, self._report = account, report
        self._baseline: tuple[int, int, int] | None = None
        self._data: Any = None
        self._judged = False

    def watch(self, data: Any) -> None:
        """Watch the training with these data, which begins now; None for the end of one."""
        self._data, self._baseline = data, None
        self._account.settled = None if data is None or self._judged else self._check

    def _check(self, part: int) -> None:
        """Called once a second, and at the end of each part."""
        account = self._account
        now = (account.steps, account.spent(STEP), account.spent(INPUT_WAIT))
        if part == COMPILE or self._baseline is None:
            self._baseline = now
            return
        steps, worked, waited = (after - before for after, before in zip(now, self._baseline, strict=True))
        if steps < _STEPS or worked + waited < _NS:
            return
        data, self._data, self._judged = self._data, None, True
        account.settled = None
        if waited >= _SHARE * (worked + waited):
            # An unknown kind of data must not end the training.
            with suppress(Exception):
                self._report(sentence(pipeline_of(data), waited / steps / 1e6, (worked + waited) / steps / 1e6))


def sentence(pipeline: Pipeline, waited_ms: float, step_ms: float) -> str:
    """Return the measured times, and the one change to make."""
    return (
        f"The input starves the training: of the {step_ms:.3g} ms of a step, {waited_ms:.3g} ms "
        f"({waited_ms / step_ms:.0%}) are spent waiting for the next batch. Next: {change(pipeline)}"
    )


def change(pipeline: Pipeline) -> str:
    """Return the first change to make to a pipeline that is too slow."""
    if pipeline.made_by == "PyDataset":
        return "pass workers=4, use_multiprocessing=True to the PyDataset: its batches are made one after the other."
    if pipeline.made_by == "loader":
        return "pass num_workers=4 to the DataLoader, or more: its processes make the batches while steps are done."
    if pipeline.made_by == "generator":
        return (
            "make the data a keras.utils.PyDataset with workers=4: a generator makes its batches one after the other."
        )
    kinds = [stage.kind for stage in pipeline.stages]
    if not (pipeline.prefetches or "PrefetchDataset" in kinds):
        return "end the data set with .prefetch(tf.data.AUTOTUNE): batches are made only once a step requests them."
    # Stages before a cache run in the first pass only.
    live = pipeline.stages[: kinds.index("CacheDataset")] if "CacheDataset" in kinds else pipeline.stages
    for stage in live:
        if stage.kind in ("MapDataset", "InterleaveDataset"):
            call = f"{_SEQUENTIAL[stage.kind]}({stage.function or 'function'}, num_parallel_calls=tf.data.AUTOTUNE)"
            return f"write .{call}: it makes one element after the other."
    if any(stage.python and stage.kind == "FlatMapDataset" for stage in live):
        return (
            "cache the elements of the Python generator with .cache() after it, if each epoch has the same ones and they fit "
            "into memory; else make them with tf.data's own operations. A generator yields one element after the other."
        )
    if "CacheDataset" not in kinds and pipeline.made_by == "dataset":
        return (
            "keep the elements in memory with .cache() before shuffle and batch, if they fit: all functions run in parallel "
            "already, and each epoch calls them again."
        )
    return "give the task more CPUs, or make less of each element: the pipeline is parallel and cached already."


def pipeline_of(data: Any) -> Pipeline:
    """Inspect the data that a program passes to `fit` or to `ctx.checkpoint`."""
    import tensorflow as tf

    from ...checkpoint.tf.position import steps_of

    original = getattr(data, "_original_dataset", data)
    if isinstance(original, tf.data.Dataset):
        options = original.options()
        off = options.autotune.enabled is False or options.experimental_optimization.inject_prefetch is False
        return Pipeline(stages=tuple(_stages(steps_of(original))), prefetches=not off)
    if hasattr(data, "use_multiprocessing"):
        return Pipeline(stages=(), made_by="PyDataset")
    if hasattr(data, "num_workers") and hasattr(data, "batch_sampler"):
        return Pipeline(stages=(), made_by="loader")
    made_by = "generator" if hasattr(data, "__next__") else "arrays"
    return Pipeline(stages=(), made_by=made_by)


def _stages(steps: Iterator[Any]) -> Iterator[Stage]:
    from ...checkpoint.tf.position import nodes_of

    for step in steps:
        kind = type(step).__name__.lstrip("_").removesuffix("V2").removesuffix("V1")
        wrapper = getattr(step, "_map_func", None)
        name = str(getattr(getattr(wrapper, "_func", None), "__name__", ""))
        named = name if name.isidentifier() else ""
        yield Stage(kind=kind, function=named, python=any(node.op in _PYTHON for node in nodes_of(step)))
