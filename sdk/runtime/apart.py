"""Says once, at the first step or report, that several tasks train without a connection: each a model of its own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .patches import Patch, plumbing

_SERVERS = "tensorflow.python.training.server_lib"


class Apart:
    """Looks in the first task whether the program has connected the tasks.

    Args:
        count: how many tasks take steps together.
        say: takes the finding.
    """

    def __init__(self, count: int, say: Callable[[str], None]) -> None:
        self._count = count
        self._say = say
        self._served = self._looked = False
        self._pid = os.getpid()

    def patches(self) -> list[Patch]:
        """Return what notes that the program has started a server of its own."""
        return plumbing("note-servers", "a cluster's server connects the tasks", {_SERVERS: self._note_servers})

    def _note_servers(self, module: ModuleType) -> None:
        original = module.Server.__init__

        def __init__(server: Any, *args: Any, **kwargs: Any) -> None:
            self._served = True
            original(server, *args, **kwargs)

        module.Server.__init__ = __init__

    def look(self) -> None:
        """Say it if it is so; only the first call does."""
        # What the program forks does not speak for the task.
        if self._looked or self._count < 2 or os.getpid() != self._pid:
            return
        self._looked = True
        if not self._served and "tensorflow" in sys.modules and not _connected():
            self._say(
                f"{self._count} tasks run this program, and they do not talk to each other: no tf.distribute strategy of "
                "several workers was made, so each trains a model of its own on all of the data. Next: train under "
                "sdk.context().strategy (tf.distribute.MultiWorkerMirroredStrategy), or use --workers 1. Tasks that are "
                "meant to be independent need nothing."
            )


def _connected() -> bool:
    """Say whether TensorFlow, or another library, has been told of the other tasks in this process."""
    if "horovod" in sys.modules:
        return True
    jax = sys.modules.get("jax._src.distributed")
    if getattr(getattr(jax, "global_state", None), "client", None) is not None:
        return True
    # The context is not made here: it is looked at as it is.
    context = importlib.import_module("tensorflow.python.eager.context").__dict__.get("_context")
    servers = (getattr(context, name, None) for name in ("_server_def", "_collective_ops_server_def"))
    return any(server is not None for server in servers)
