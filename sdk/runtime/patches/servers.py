"""In a cluster with parameter servers only the first task makes the strategy, and the other tasks serve until they are stopped.

If they make the strategy too, as one binary for all roles does, each waits forever for the others' servers. So a server runs
there in its place.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ...job import cluster
from ...logs import logger
from . import Function, Patch, around, plumbing

_log = logger("runtime")
_WHY = "workers and parameter servers that make ParameterServerStrategy would wait forever for servers that do not run"


def serves(task: str, tasks: Sequence[str]) -> bool:
    """Return whether a task is there for the first one, which sends it work."""
    return cluster.has_servers(tasks) and task not in cluster.in_step(tasks) and cluster.role_of(task) != "evaluator"


def patches(task: str, tasks: Sequence[str]) -> list[Patch]:
    if not serves(task, tasks):
        return []
    return plumbing("servers", _WHY, {"tensorflow": functools.partial(_apply, task)})


def serve(tf: ModuleType, resolver: Any) -> None:
    """Run the server of this task until it is stopped."""
    serving = {"job_name": resolver.task_type, "task_index": resolver.task_id, "protocol": "grpc"}
    tf.distribute.Server(resolver.cluster_spec(), **serving).join()


def _apply(task: str, tf: ModuleType) -> None:
    strategy = importlib.import_module("tensorflow.python.distribute.parameter_server_strategy_v2")

    @around(strategy.ParameterServerStrategyV2, "__init__")
    def init(original: Function, self: Any, cluster_resolver: Any, *args: Any, **options: Any) -> None:
        own = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if cluster_resolver.cluster_spec().as_dict() == own.cluster_spec().as_dict():
            _log.info(
                f"The chief alone makes ParameterServerStrategy: {task} runs tf.distribute.Server here, until it is stopped"
            )
            serve(tf, own)
        original(self, cluster_resolver, *args, **options)
