"""Iterators over distributed datasets whose position can be saved, for tasks with one CPU.

TensorFlow feeds each device through a buffer that cannot be saved. A single CPU does not need one, as its batches are already
in its memory: they come from a plain iterator, with the same elements in the same order.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

_MODULE = "tensorflow.python.distribute.input_lib"
_AHEAD = 2  # batches that the buffer would have prefetched


def install() -> str:
    """Make distributed datasets use plain iterators; return "", or why this version of TensorFlow does not allow it."""
    try:
        module = importlib.import_module(_MODULE)
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
            if all(getattr(each, "_options", None) is plain for each in getattr(iterator, "_iterators", [None])):
                iterator._options = plain  # otherwise its type spec would announce the other kind to a tf.function
            return iterator

        return iterate_dataset

    worker.podlift, worker._make_iterator = True, make_iterator
    for dataset in datasets:
        dataset.__iter__ = iterating(dataset.__iter__)
    return ""


def _is_one_cpu(devices: Any) -> bool:
    return len(devices) == 1 and tf.DeviceSpec.from_string(devices[0]).device_type == "CPU"
