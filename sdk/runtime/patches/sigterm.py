"""TensorFlow takes SIGTERM for itself when it connects the workers, and only notes it (preemption_notifier.cc).

A task that has made its strategy and does not train yet would not end until it is killed. So the handler before it is put back.
A signal while TensorFlow connects is still lost.
"""

from __future__ import annotations

import importlib
import signal
from contextlib import suppress
from types import ModuleType
from typing import Any

from . import Function, Patch, around, plumbing

_WHY = "SIGTERM before the training ends a task, also when TensorFlow has connected the workers"


def patches() -> list[Patch]:
    return plumbing("sigterm", _WHY, {"tensorflow": _apply})


def _apply(tensorflow: ModuleType) -> None:
    strategy = importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")

    @around(strategy.CollectiveAllReduceExtended, "_initialize_multi_worker")
    def initialize(original: Function, *args: Any, **options: Any) -> Any:
        before = signal.getsignal(signal.SIGTERM)
        try:
            return original(*args, **options)
        finally:
            with suppress(ValueError):  # not the main thread: TensorFlow's handler stays
                signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
