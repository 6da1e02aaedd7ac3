"""Divides a data set between workers by its files if there are enough of them, and otherwise by examples; reports which.

TensorFlow's AUTO chooses files whenever a pipeline reads any, and fails at the first batch if there are fewer than workers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ... import text
from ...errors import InputError
from ...logs import logger
from . import Function, Patch, around, plumbing

_log = logger("runtime")

_INPUT_LIB = "tensorflow.python.distribute.input_lib"
# The sources that TensorFlow can divide by files (auto_shard.cc).
_READERS = re.compile(r"(TFRecord|TextLine|FixedLengthRecord|RecordIO|SSTable|ArrayRecord)DatasetV?\d*")
_COUNTED = 10_000
_UNKNOWN = -1  # in a graph, the number of files is a tensor without a value
_UNDIVIDED = (
    "each of {0} workers reads all of this data ({1}), and shuffles it without a seed, in the same order as the others: they "
    "train on the same batches, unless the program has divided it before. Next: dataset.shard(count, index) of index, count = "
    "sdk.context().shard(), or a shuffle seed that differs between the tasks"
)


class SharedInput:
    """Chooses how the data sets of one process are divided.

    Args:
        logs: False in tasks that need not report it.
        seeded: whether the seed of a step of a pipeline was derived, and is the same in all tasks.
    """

    def __init__(self, *, logs: bool, seeded: Callable[[Any], bool] = lambda step: False) -> None:
        self._logs, self._seeded = logs, seeded
        self._logged_sentences: set[str] = set()
        self._pid = os.getpid()

    def patches(self) -> list[Patch]:
        return plumbing("shared-input", "data sets are divided between workers", {_INPUT_LIB: self._hook})

    def _hook(self, module: ModuleType) -> None:
        @around(module.DistributedDataset, "_create_cloned_datasets_from_dataset")
        def divide(original: Function, distributed: Any, data: Any, context: Any, workers: Any, *args: Any) -> None:
            divided = self.divided(data, context.num_input_pipelines if context else workers.num_workers)
            original(distributed, divided, context, workers, *args)

        @around(module, "_create_datasets_from_function_with_input_context")
        def create(original: Function, contexts: Any, *args: Any) -> Any:
            datasets = original(contexts, *args)
            self._warn(datasets[0][0], contexts[0].num_input_pipelines, "distribute_datasets_from_function")
            return datasets

    def divided(self, dataset: Any, workers: int) -> Any:
        """Return the data set with a policy that works; InputError if it demands one that does not."""
        if workers < 2:
            return dataset
        import tensorflow as tf

        policies = tf.data.experimental.AutoShardPolicy
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy == policies.OFF:
            self._warn(dataset, workers, "AutoShardPolicy.OFF")
        if policy not in (policies.AUTO, policies.FILE):
            return dataset
        files = _files_of(dataset)
        if files == _UNKNOWN:
            return dataset
        enough = files is not None and files >= workers
        if policy == policies.FILE and not enough:
            raise InputError(_too_few(files, workers))
        self._say(_choice(files, workers))
        if enough or files is None:
            return dataset
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policies.DATA
        return dataset.with_options(options)

    def _warn(self, dataset: Any, workers: int, why: str) -> None:
        """Report that all workers train on the same batches, if they do."""
        from ...checkpoint.tf.position import steps_of

        steps = list(steps_of(dataset)) if workers > 1 else []
        # A division by hand before the data became a data set is invisible here: the sentence names this condition.
        if any(map(self._seeded, steps)) and not any("Shard" in type(step).__name__ for step in steps):
            self._say(_UNDIVIDED.format(workers, why))

    def _say(self, sentence: str) -> None:
        # A process that the program forked must not log for the task.
        if self._logs and sentence not in self._logged_sentences and os.getpid() == self._pid:
            self._logged_sentences.add(sentence)
            _log.info(sentence)


def _choice(files: int | None, workers: int) -> str:
    if files is None:
        return (
            f"the data is not read from files: each of {workers} workers makes all of it and keeps its share of the examples "
            "(auto-shard policy DATA)"
        )
    counted = text.counted(files, "file")
    if files < workers:
        return (
            f"{counted} for {workers} workers: each worker reads all of the data and keeps its share of the examples "
            f"(auto-shard policy DATA). With {workers} files or more, each would read its own"
        )
    chosen = f"{counted} for {workers} workers: each worker reads its own (auto-shard policy FILE)"
    if files % workers == 0:
        return chosen
    return (
        f"{chosen}. They do not divide evenly: workers with fewer files have no examples in the last batches of an epoch. "
        f"Next: a multiple of {workers} files"
    )


def _too_few(files: int | None, workers: int) -> str:
    if files is None:
        return (
            "AutoShardPolicy.FILE needs a data set that reads files with tf.data.TFRecordDataset, TextLineDataset or "
            "FixedLengthRecordDataset. Received: one that does not. Next: AutoShardPolicy.DATA, or OFF with "
            "dataset.shard(count, index) of index, count = sdk.context().shard()."
        )
    return (
        f"AutoShardPolicy.FILE needs a file for each worker. Received: {text.counted(files, 'file')} for {workers} workers. "
        f"Next: split the data into {workers} files or more, use AutoShardPolicy.DATA or AUTO, or submit with --workers "
        f"{max(files, 1)}."
    )


def _files_of(dataset: Any) -> int | None:
    """Return how many files the source with the fewest reads; None if nothing reads files, _UNKNOWN in some graphs."""
    from ...checkpoint.tf.position import nodes_of, steps_of

    counts = []
    for step in steps_of(dataset):
        names = getattr(step, "_filenames", None)
        if not hasattr(names, "cardinality"):
            reads = any(_READERS.fullmatch(node.op) for node in nodes_of(step))
            names = step._inputs()[0] if reads else None
        if names is not None:
            counts.append(_count(names))
    return min(counts, default=None)


def _count(names: Any) -> int:
    import tensorflow as tf

    if not tf.executing_eagerly():
        listed = getattr(names, "_tensors", None)
        return int(listed[0].shape[0] or _UNKNOWN) if listed else _UNKNOWN
    number = int(names.cardinality())
    # It is unknown for names that were filtered.
    return number if number >= 0 else sum(1 for _ in names.take(_COUNTED))
