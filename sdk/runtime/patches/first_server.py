"""All tasks of a cluster connect to the server of the first one, and TensorFlow tries again only after a second.

A connection that is refused, because that server does not listen yet, is tried again after `fixed_reconnect_backoff_ms`, which
is 1000 in TensorFlow's gRPC channels. Tasks that start together would meet a second later than they can, whenever another one
comes before the first one. So the others wait here until it listens.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from types import ModuleType
from typing import Any

from . import Function, Patch, around, plumbing

# After that, TensorFlow waits by itself.
_LONGEST_S, _POLL_S, _CONNECT_S = 60.0, 0.02, 1.0
_WHY = "a connection that is refused is tried again only after a second (fixed_reconnect_backoff_ms)"


def patches() -> list[Patch]:
    return plumbing("first-server", _WHY, {"tensorflow": _apply})


def _apply(tensorflow: ModuleType) -> None:
    strategy = importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")

    @around(strategy.CollectiveAllReduceExtended, "_initialize_multi_worker")
    def initialize(original: Function, extended: Any, *args: Any, **options: Any) -> Any:
        await_first_server(os.environ.get("TF_CONFIG", ""))
        return original(extended, *args, **options)


def await_first_server(config: str, longest_s: float = _LONGEST_S) -> None:
    """Wait until the first task's server of a cluster listens."""
    try:
        cluster = json.loads(config)["cluster"]
        host, _, port = (cluster.get("chief") or cluster["worker"])[0].rpartition(":")
        address = host, int(port)
    except (ValueError, LookupError, TypeError, AttributeError):
        return  # TensorFlow reports what is wrong with it
    until = time.monotonic() + longest_s
    while time.monotonic() < until:
        try:
            socket.create_connection(address, _CONNECT_S).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
