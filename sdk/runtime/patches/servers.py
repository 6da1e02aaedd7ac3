"""TensorFlow's servers in the tasks of a cluster: which tasks run one, and how the tasks connect to each other's.

With parameter servers only the first task makes the strategy, and the other tasks serve until they are stopped. If they make
the strategy too, as one binary for all roles does, each waits forever for the others' servers. So a server runs there in its
place.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from ...job import cluster
from ...logs import logger
from . import Function, Patch, around, plumbing

_log = logger("runtime")
# After that, TensorFlow waits by itself.
_LONGEST_S, _POLL_S, _CONNECT_S = 60.0, 0.02, 1.0
_WHY_CONNECTING = "tasks meet without a wait of a second, and SIGTERM ends a task that has connected to the others"
_WHY_SERVING = (
    "workers and parameter servers that make ParameterServerStrategy would wait forever for servers that do not run"
)


def serves(task: str, tasks: Sequence[str]) -> bool:
    """Return whether a task is there for the first one, which sends it work."""
    return cluster.has_servers(tasks) and task not in cluster.in_step(tasks) and cluster.role_of(task) != "evaluator"


def patches(task: str, tasks: Sequence[str]) -> list[Patch]:
    """Return the patches for one of several tasks."""
    connect = functools.partial(_connect, waits=task != tasks[0])
    needed = plumbing("connecting", _WHY_CONNECTING, {"tensorflow": connect})
    if serves(task, tasks):
        needed += plumbing("servers", _WHY_SERVING, {"tensorflow": functools.partial(_serve_instead, task)})
    return needed


def serve(tf: ModuleType, resolver: Any) -> None:
    """Run the server of this task until it is stopped."""
    serving = {"job_name": resolver.task_type, "task_index": resolver.task_id, "protocol": "grpc"}
    tf.distribute.Server(resolver.cluster_spec(), **serving).join()


def _serve_instead(task: str, tf: ModuleType) -> None:
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


def _connect(tensorflow: ModuleType, *, waits: bool) -> None:
    strategy = importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")

    @around(strategy.CollectiveAllReduceExtended, "_initialize_multi_worker")
    def initialize(original: Function, *args: Any, **options: Any) -> Any:
        if waits:
            await_first_server(os.environ.get("TF_CONFIG", ""))
        before = signal.getsignal(signal.SIGTERM)
        try:
            return original(*args, **options)
        finally:
            # TensorFlow takes SIGTERM for itself here, and only notes it (preemption_notifier.cc): a task that does not train
            # yet would not end until it is killed. A signal while TensorFlow connects is still lost.
            with suppress(ValueError):  # not the main thread: TensorFlow's handler stays
                signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def await_first_server(config: str, longest_s: float = _LONGEST_S) -> None:
    """Wait until the first task's server of a cluster listens, to which all tasks connect.

    TensorFlow tries a refused connection again only after a second (`fixed_reconnect_backoff_ms` of its gRPC channels). Tasks
    that start together would meet a second later than they can, whenever another one comes before the first one.
    """
    try:
        cluster = json.loads(config)["cluster"]
        host, _, port = (cluster.get("chief") or cluster["worker"])[0].rpartition(":")
        address = host.strip("[]"), int(port)
    except (ValueError, LookupError, TypeError, AttributeError):
        return  # TensorFlow reports the mistake
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        try:
            socket.create_connection(address, _CONNECT_S).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
