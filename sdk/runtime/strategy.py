"""The tf.distribute strategy for a task: one process, several, parameter servers, a TPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ..spec import cluster


def make(task: str, tasks: Sequence[str], *, tpu: str = "") -> Any:
    tf: Any = importlib.import_module("tensorflow")
    if tpu:
        return _tpu_strategy(tf)
    together = cluster.in_step(tasks)
    if any(cluster.role_of(name) == "ps" for name in tasks):
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if task in together:
            return tf.distribute.ParameterServerStrategy(resolver)
        if cluster.role_of(task) != "evaluator":
            serving = {"job_name": resolver.task_type, "task_index": resolver.task_id, "protocol": "grpc"}
            tf.distribute.Server(resolver.cluster_spec(), **serving).join()
    several = len(together) > 1 and task in together
    return tf.distribute.MultiWorkerMirroredStrategy() if several else tf.distribute.get_strategy()


def _tpu_strategy(tf: Any) -> Any:
    """Do what every program for a TPU does, with the machine's TPU or the stand-in."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
