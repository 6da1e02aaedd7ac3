"""Functions with `jit_compile=True` under a strategy on CPUs: TensorFlow cannot compile their sums over replicas.

"Collectives are not yet implemented for CPU devices when compiling with XLA", with one worker as well, or a variable of one
device that another one reads. They run without XLA, so that a job for GPUs can be tried on a machine without any.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ...job.payload import Payload
from ...logs import logger
from . import Function, Patch, around, is_supported_tensorflow
from .devices import has_stand_in

_log = logger("runtime")


def patches(payload: Payload, environ: Mapping[str, str]) -> list[Patch]:
    """Return the patch for a task without accelerators, or with stand-ins for GPUs.

    None for TPUs: on their stand-in, a program is compiled on purpose.
    """
    if payload.tpu or (payload.gpu and not has_stand_in(payload, environ)):
        return []
    return [
        Patch(
            name="cpu-xla",
            why="XLA cannot compile sums over replicas for CPUs",
            module="tensorflow",
            applies=is_supported_tensorflow,
            apply=functools.partial(_apply, together=len(payload.tasks) > 1),
            quiet=True,
        )
    ]


def _apply(tf: ModuleType, *, together: bool) -> None:
    functions, library, mirrored = (
        importlib.import_module(f"tensorflow.python.{name}")
        for name in (
            "eager.polymorphic_function.polymorphic_function",
            "distribute.distribute_lib",
            "distribute.mirrored_strategy",
        )
    )
    logged = False

    @around(library.StrategyBase, "__init__")
    def create(original: Function, strategy: Any, extended: Any) -> None:
        nonlocal together
        original(strategy, extended)
        together = together or isinstance(extended, mirrored.MirroredExtended)

    @around(functions.Function, "__init__")
    def init(original: Function, *args: Any, **options: Any) -> None:
        nonlocal logged
        if together and options.get("jit_compile"):
            options["jit_compile"] = None
            if not logged:
                logged = True
                _log.info(
                    "jit_compile=True has no effect here: XLA cannot compile sums over replicas for CPUs. On GPUs it is used"
                )
        original(*args, **options)
