"""Functions with `jit_compile=True` on the CPUs of several replicas: TensorFlow cannot compile the sums over replicas there.

"Collectives are not yet implemented for CPU devices when compiling with XLA", or a variable of one device that another one
reads. They run without XLA, so that a job for GPUs can be tried on a machine without any.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ...logs import logger
from ...spec.payload import Payload
from . import Function, Patch, around, is_supported_tensorflow
from .tpu import has_stand_in

_log = logger("runtime")


def patches(payload: Payload, environ: Mapping[str, str]) -> list[Patch]:
    """Return the patch for a task without accelerators that trains with others or on several stand-ins for GPUs.

    None for TPUs: on their stand-in, a program is compiled on purpose.
    """
    stands_in = bool(payload.gpu) and has_stand_in(payload, environ)
    if payload.tpu or not (stands_in or (not payload.gpu and len(payload.tasks) > 1)):
        return []
    return [
        Patch(
            name="cpu-xla",
            why="XLA cannot compile sums over replicas for CPUs",
            module="tensorflow",
            applies=is_supported_tensorflow,
            apply=_apply,
            quiet=True,
        )
    ]


def _apply(tf: ModuleType) -> None:
    functions: Any = importlib.import_module("tensorflow.python.eager.polymorphic_function.polymorphic_function")
    logged = False

    @around(functions.Function, "__init__")
    def init(original: Function, *args: Any, **options: Any) -> None:
        nonlocal logged
        if options.get("jit_compile"):
            options["jit_compile"] = None
            if not logged:
                logged = True
                _log.info(
                    "jit_compile=True has no effect here: XLA cannot compile sums over replicas for CPUs. On GPUs it is used"
                )
        original(*args, **options)
