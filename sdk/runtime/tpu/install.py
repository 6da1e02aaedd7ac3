"""Makes TensorFlow's own names for TPUs use the stand-in.

The classes stay TensorFlow's: `isinstance(strategy, tf.distribute.TPUStrategy)` is true for every name under which a program
may have imported it. This module answers their queries of the hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.distribute.cluster_resolver.tpu import tpu_cluster_resolver
from tensorflow.python.tpu import tpu, tpu_embedding_v1, tpu_embedding_v2, tpu_embedding_v3, tpu_strategy_util
from tensorflow.python.tpu.ops import tpu_ops

from ..gpu.devices import LogicalDevices
from ..patches import Function, around
from . import replicas
from .devices import System

_EMBEDDINGS = (
    (tpu_embedding_v1, "TPUEmbeddingV0"),
    (tpu_embedding_v2, "TPUEmbedding"),
    (tpu_embedding_v3, "TPUEmbeddingV2"),
)


def install(system: System) -> None:
    """Install the system as this process's TPU. Must come before any TensorFlow operation."""
    LogicalDevices("TPU", lambda: system.cores).install()
    # It would optimize the graph of each replica separately, and takes longer than it saves.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    _resolve(system)
    _initialize(system)
    _distribute(system)
    _exchange(system)
    _refuse_embeddings()
    _end_iterators_at_once()


def _resolve(system: System) -> None:
    kind = tpu_cluster_resolver.TPUClusterResolver

    @around(kind, "__init__")
    def init(original: Function, self: Any, tpu: Any = None, *args: Any, **options: Any) -> None:
        system.check_name(tpu)
        original(self, "local", *args, **options)

    around(kind, "cluster_spec")(lambda original, self: _NoCluster(original(self)))
    kind.get_tpu_system_metadata = lambda self: system.metadata()
    kind.num_accelerators = lambda self, *args, **options: {"TPU": system.cores}


class _NoCluster(tf.train.ClusterSpec):  # type: ignore[misc]
    """The cluster of a program on its TPU's own machine: it has no jobs, and errors explain that."""

    def __getitem__(self, job: str) -> Any:
        raise TypeError(f"A ClusterSpec is not subscriptable; as_dict() is. {_NO_CLUSTER}")

    def as_dict(self) -> dict[str, object]:
        return _NoJobs(super().as_dict())


class _NoJobs(dict[str, object]):
    def __missing__(self, job: str) -> Any:
        raise KeyError(f"{job!r} is not a job of this cluster. {_NO_CLUSTER}")


_NO_CLUSTER = (
    "On a TPU VM, and on this stand-in, tpu='local' has an empty cluster: the program runs on the TPU's own machine, so the "
    "same line raises there. Next: leave it out; tf.config.list_logical_devices('TPU') lists the cores."
)


def _initialize(system: System) -> None:
    def initialize(resolver: Any, kind: Any) -> Any:
        if not tf.executing_eagerly():
            raise RuntimeError("initialize_tpu_system() belongs outside of every tf.function.")
        resolver = kind("local") if resolver is None else resolver
        topology = system.topology()
        resolver.set_tpu_topology(topology.serialized())
        tpu_strategy_util._INITIALIZED_TPU_SYSTEMS[resolver._tpu] = topology
        return topology

    def shut_down(resolver: Any, kind: Any) -> None:
        tpu_strategy_util._INITIALIZED_TPU_SYSTEMS.pop("local", None)

    tpu_strategy_util.initialize_tpu_system_impl = initialize
    tpu_strategy_util.shutdown_tpu_system_impl = shut_down


class _StandInExtended(tpu_strategy.TPUExtended):  # type: ignore[misc]
    """TensorFlow's own class, on other devices."""

    system: System

    def __init__(self, container: Any, resolver: Any = None, *args: Any, **options: Any) -> None:
        if options.get("device_assignment") is not None or options.get("use_spmd_for_xla_partitioning"):
            raise NotImplementedError(
                "The stand-in has one core per replica. Received: a device assignment or SPMD partitioning, which need a "
                "real TPU. Next: TPUStrategy(resolver)."
            )
        super().__init__(container, resolver, *args, **options)
        self._tpu_devices = np.array([[device] for device in self.system.devices], dtype=object)
        self._host_device = host = self.system.devices[0]
        for devices_of, devices in (
            (self._device_input_worker_devices, list(self.system.devices)),
            (self._host_input_worker_devices, [host] * self.system.cores),
        ):
            devices_of.clear()
            devices_of[host] = devices

    def _batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any) -> list[Any]:
        values = [tf.convert_to_tensor(v) if isinstance(v, tf.IndexedSlices) else v for v, _ in pairs]
        if replicas.enclosing() is None or not all(isinstance(value, tf.Tensor) for value in values):
            return list(super()._batch_reduce_to(reduce_op, pairs, options))
        for value in values:
            replicas.check_sum(value)
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        return replicas.add_up_all([tf.math.scalar_mul(1 / self.system.cores, v) if mean else v for v in values])

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        mark = replicas.enclosing()
        if mark is None or isinstance(tensor, (float, int)):
            return super()._broadcast_to(tensor, destinations)
        return replicas.add_up(tensor * tf.cast(tf.equal(mark.replica, 0), tensor.dtype))


def _distribute(system: System) -> None:
    _StandInExtended.system = system
    tpu_strategy.TPUExtended = _StandInExtended
    for kind in (tpu_strategy.TPUStrategyV2, tpu_strategy.TPUStrategy):

        @around(kind, "__init__")
        def init(original: Function, self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            # A replica's function needs its own component of a variable, not a packed handle of all.
            self._enable_packed_variable_in_eager_mode = False


def _exchange(system: System) -> None:
    def replicate(computation: Any, inputs: Sequence[Any], *args: Any, **options: Any) -> list[Any]:
        return replicas.replicate(computation, inputs, system.devices)

    def cross_replica_sum(x: Any, group_assignment: Any = None, name: str | None = None) -> Any:
        _check_all_replicas(group_assignment)
        x = tf.convert_to_tensor(x)
        replicas.check_sum(x)
        return replicas.add_up(x)

    def all_to_all(
        x: Any,
        concat_dimension: int,
        split_dimension: int,
        split_count: int,
        group_assignment: Any = None,
        name: Any = None,
    ) -> Any:
        _check_all_replicas(group_assignment)
        return replicas.exchange(x, concat_dimension, split_dimension, split_count)

    tpu.replicate = replicate
    tpu_ops.cross_replica_sum = cross_replica_sum
    tpu_ops.all_to_all = all_to_all


def _check_all_replicas(group_assignment: Any) -> None:
    if group_assignment is not None:
        raise NotImplementedError("The stand-in exchanges among all replicas. Received: a group_assignment.")


def _refuse_embeddings() -> None:
    def refuse(self: Any, *args: Any, **options: Any) -> None:
        raise NotImplementedError(
            "The stand-in has no TPU embedding tables, and neither has v5e: they are hardware of v2 and v3. Use "
            "keras.layers.Embedding or tf.nn.embedding_lookup, which run on every TPU."
        )

    for module, name in _EMBEDDINGS:
        getattr(module, name).__init__ = refuse


def _end_iterators_at_once() -> None:
    """Disable autotuning of the input: deleting an iterator waits up to minutes for the tuning thread.

    The stand-in does not benefit from tuning, and every replica has its own iterator.
    """

    def without_autotune(dataset: Any) -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return dataset.with_options(options)

    @around(iterator_ops.OwnedIterator, "_create_iterator")
    def create(original: Function, self: Any, dataset: Any) -> None:
        original(self, without_autotune(dataset))

    @around(multi_device_iterator_ops.OwnedMultiDeviceIterator, "__init__")
    def init(original: Function, self: Any, dataset: Any = None, *args: Any, **options: Any) -> None:
        original(self, None if dataset is None else without_autotune(dataset), *args, **options)
