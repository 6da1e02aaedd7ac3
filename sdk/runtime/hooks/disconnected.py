"""Reports once, at the first step or report, that several tasks train without a connection: each its own model."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import Function, Patch, around, plumbing

_SERVERS = "tensorflow.python.training.server_lib"


class DisconnectedTasks:
    """Checks whether the program has connected the `count` tasks that step together. One of them reports it."""

    def __init__(self, count: int, report: Callable[[str], None] | None) -> None:
        self._count = count
        self._report = report
        self._has_server = self._checked = False
        self._pid = os.getpid()

    def patches(self) -> list[Patch]:
        """Return the patch that notes a server that the program starts itself."""
        return plumbing("note-servers", "a cluster's server connects the tasks", {_SERVERS: self._note_servers})

    def _note_servers(self, module: ModuleType) -> None:
        @around(module.Server, "__init__")
        def init(original: Function, *args: Any, **kwargs: Any) -> None:
            self._has_server = True
            original(*args, **kwargs)

    @property
    def apart(self) -> bool:
        """True if this task and the others train without a connection now, each at its own pace."""
        return self._count > 1 and not self._has_server and "tensorflow" in sys.modules and not _connected()

    def check(self) -> None:
        """Report disconnected tasks. Only the first call does anything."""
        # A process that the program forked must not report for the task.
        if self._checked or self._report is None or self._count < 2 or os.getpid() != self._pid:
            return
        self._checked = True
        if self.apart:
            self._report(
                f"{self._count} tasks run this program without a connection: it made no tf.distribute strategy for several "
                "workers, so each task trains its own model on all of the data. Next: train under sdk.context().strategy "
                "(tf.distribute.MultiWorkerMirroredStrategy), or use --workers 1. Tasks that are meant to be independent "
                "need nothing."
            )


def _connected() -> bool:
    if "horovod" in sys.modules:
        return True
    jax = sys.modules.get("jax._src.distributed")
    if getattr(getattr(jax, "global_state", None), "client", None) is not None:
        return True
    # Reads the context without creating it.
    context = importlib.import_module("tensorflow.python.eager.context").__dict__.get("_context")
    servers = (getattr(context, name, None) for name in ("_server_def", "_collective_ops_server_def"))
    return any(server is not None for server in servers)
