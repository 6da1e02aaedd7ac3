"""Replaces TensorFlow's GPUs by logical CPU devices under the same names, so that programs for GPUs run unmodified.

Strategies stay TensorFlow's. This module answers queries of the hardware, by strategies and by programs.
"""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.python.client import device_lib
from tensorflow.python.distribute import collective_all_reduce_strategy as multi_worker
from tensorflow.python.distribute import cross_device_ops, parameter_server_strategy

from ...hardware import Accelerator
from ...hardware.accelerators import HIDDEN_GPUS
from ...logs import logger
from ..patches import Function, around
from .devices import LogicalDevices

_log = logger("runtime")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def install(row: Accelerator, count: int) -> None:
    """Install `count` GPUs of this row in this process. Must come before any TensorFlow operation."""
    devices = LogicalDevices("GPU", lambda: _visible(count, os.environ))
    devices.install()
    # It would optimize the graph of each replica separately, and takes longer than it saves.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    _describe(devices, row)
    _several_in_each_worker(devices)
    _central_storage(devices)
    _exchange_without_nccl()


def _visible(count: int, environ: MutableMapping[str, str]) -> int:
    """Return how many the program leaves visible, as CUDA counts; this machine's own GPUs stay hidden."""
    devices = environ.get(_VISIBLE, HIDDEN_GPUS)
    environ[_VISIBLE] = HIDDEN_GPUS
    if devices == HIDDEN_GPUS:
        return count
    # CUDA ignores everything after the number of a missing GPU.
    return len(list(itertools.takewhile(lambda number: number.isdecimal() and int(number) < count, devices.split(","))))


def _describe(devices: LogicalDevices, row: Accelerator) -> None:
    about = f"{row.title} (a stand-in)"

    @around(tf.config.experimental, "get_device_details")
    def details(original: Function, device: Any) -> Any:
        return {"device_name": about} if device in devices.physical else original(device)

    @around(tf.config.experimental, "get_memory_info")
    def memory(original: Function, device: str) -> Any:
        if "GPU" not in device.upper():
            return original(device)
        # They share the memory of the process, which TensorFlow does not count for CPUs.
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"current": pages * os.sysconf("SC_PAGE_SIZE"), "peak": peak}

    @around(device_lib, "list_local_devices")
    def local(original: Function, *args: Any, **options: Any) -> list[Any]:
        limit = (row.memory_gib or 0) * 2**30
        return [
            *(
                device
                for device in original(*args, **options)
                if device.device_type != "CPU" or device.name.endswith("CPU:0")
            ),
            *(
                device_attributes_pb2.DeviceAttributes(
                    name=device.name,
                    device_type="GPU",
                    memory_limit=limit,
                    physical_device_desc=f"device: {at}, name: {about}",
                )
                for at, device in enumerate(devices.logical)
            ),
        ]


def _several_in_each_worker(devices: LogicalDevices) -> None:
    """Let MultiWorkerMirroredStrategy use all of them: on CPUs, it uses one device in each task, whatever is configured."""

    @around(multi_worker.CollectiveAllReduceExtended, "_initialize_local_devices")
    def local(original: Function, self: Any, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        indices = range(max(len(devices.logical), 1))
        return tuple(f"{worker_device}/device:CPU:{index}" for index in indices), "CPU"


def _central_storage(devices: LogicalDevices) -> None:
    @around(parameter_server_strategy.ParameterServerStrategyExtended, "_initialize_local")
    def local(original: Function, self: Any, compute_devices: Any, *args: Any, **options: Any) -> None:
        original(self, compute_devices or [device.name for device in devices.logical] or None, *args, **options)


def _exchange_without_nccl() -> None:
    logged = False

    def note() -> None:
        nonlocal logged
        if not logged:
            logged = True
            _log.info(
                "NCCL runs as RING here, among logical CPU devices: the same sums, and nothing about the speed of NCCL"
            )

    @around(multi_worker.CollectiveAllReduceExtended, "__init__")
    def init(original: Function, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if self._communication_options.implementation.name == "NCCL":
            note()

    @around(cross_device_ops.NcclAllReduce, "__init__")
    def all_reduce(original: Function, self: Any, *args: Any, **options: Any) -> None:
        note()
        original(self, *args, **options)
        # Its own operation has no kernel for CPUs, and TensorFlow uses this one wherever it cannot reduce all at once.
        self.batch_reduce_implementation = self._simple_cross_replica_ops.batch_reduce_implementation
