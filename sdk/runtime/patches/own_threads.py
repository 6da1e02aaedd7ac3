"""Lets a task use all CPUs of its run if its program asks TensorFlow for more threads than its part has CPUs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...logs import logger
from ...process import cores
from . import Patch, plumbing

_log = logger("runtime")


def patches() -> list[Patch]:
    hooks = {"tensorflow.python.eager.context": _hook} if cores.own_part() else {}
    return plumbing("own-threads", "threads that a program asks for are not confined", hooks)


def _hook(module: ModuleType) -> None:
    # Not the function of `tf.config`: a forked task has imported all of its aliases.
    asked = module.Context.intra_op_parallelism_threads

    def ask(context: Any, number: int) -> None:
        asked.fset(context, number)
        if number > cores.own_part():
            # The threads are made later, by this one.
            cores.widen()
            _log.info(f"the program asks for {number} threads for an operation: this task may use all CPUs of the run")

    module.Context.intra_op_parallelism_threads = asked.setter(ask)
