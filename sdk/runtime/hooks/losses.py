"""Losses that a step averages itself: each replica's gradient is then as large as one worker's, and they are added up.

Such a program trains and ends as usual, with the rate of as many times the learning rate. The loss is looked at while its
gradient is traced, and reported once an optimizer adds this gradient up.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ..patches import Function, Patch, around, plumbing
from . import graphs

_WHY = "a loss that is not divided by the number of replicas is reported with the change to make"
_MARK = "_podlift_unscaled"  # of a gradient: the finding about its loss


class LossWatch:
    """Watches the losses of one task. `report` takes each finding once; `home` is the folder of the program's files."""

    def __init__(self, report: Callable[[str], None], home: Path) -> None:
        self._report, self._home = report, f"{home}{os.sep}"
        self._reported: set[str] = set()

    def patches(self) -> list[Patch]:
        """Return the patches that watch each library as soon as the program imports it."""
        return plumbing(
            "unscaled-losses",
            _WHY,
            {
                "tensorflow": self._watch_gradients,
                "keras.src.backend.tensorflow.trainer": self._watch_keras,
                "tf_keras.src.optimizers.utils": self._watch_legacy,
            },
        )

    def _watch_gradients(self, tf: ModuleType) -> None:
        @around(tf.GradientTape, "gradient")
        def gradient(original: Function, tape: Any, target: Any, *args: Any, **options: Any) -> Any:
            grads = original(tape, target, *args, **options)
            with suppress(Exception):  # an unknown kind of loss must not end the training
                self._mark(target, tf.nest.flatten(grads))
            return grads

    def _mark(self, target: Any, grads: Iterable[Any]) -> None:
        replicas = _replicas()
        term = (
            next(graphs.unscaled_terms(target, replicas), None) if replicas > 1 and graphs.is_traced(target) else None
        )
        if term is not None:
            text = self._text(term, replicas)
            for grad in grads:
                if grad is not None:
                    setattr(getattr(grad, "values", grad), _MARK, text)

    def _watch_keras(self, trainer: ModuleType) -> None:
        @around(trainer.optimizers_module.Optimizer, "apply")
        def apply(original: Function, optimizer: Any, grads: Any, *args: Any, **options: Any) -> Any:
            with suppress(Exception):
                self._check(grads)
            return original(optimizer, grads, *args, **options)

    def _watch_legacy(self, utilities: ModuleType) -> None:
        @around(utilities, "all_reduce_sum_gradients")
        def add_up(original: Function, grads_and_vars: Any) -> Any:
            grads_and_vars = list(grads_and_vars)
            with suppress(Exception):
                self._check(grad for grad, _ in grads_and_vars)
            return original(grads_and_vars)

    def _check(self, grads: Iterable[Any]) -> None:
        """Report the loss of gradients that an optimizer adds up over the replicas."""
        if (replicas := _replicas()) > 1:
            values = (getattr(grad, "values", grad) for grad in grads)
            marks = (graphs.comes_unscaled(value, _MARK, replicas) for value in values if graphs.is_traced(value))
            self._once(next(filter(None, marks), ""))

    def _text(self, term: Any, replicas: int) -> str:
        does = (
            "averages the loss over the examples of one replica"
            if graphs.is_of_data(term)
            else "adds a loss that does not depend on the examples"
        )
        return (
            f"{self._line_of(term.op)} {does}, and the optimizer adds up the gradients of all {replicas} replicas: they are "
            f"{replicas} times as large as on one worker. Next: divide this loss by "
            "tf.distribute.get_strategy().num_replicas_in_sync before its gradient is taken, or let a loss of keras.losses "
            "make the mean."
        )

    def _line_of(self, operation: Any) -> str:
        """Return the line and the function of the program that made an operation: "train.py:12 (train_step)"."""
        for frame in reversed(list(operation.traceback or ())):
            if frame.filename.startswith(self._home):
                name = frame.name.removeprefix("tf__")
                function = f" ({name})" if name.isidentifier() else ""
                return f"{frame.filename[len(self._home) :]}:{frame.lineno}{function}"
        return "The training step"

    def _once(self, text: str) -> None:
        if text and text not in self._reported:
            self._reported.add(text)
            self._report(text)


def _replicas() -> int:
    """Return the number of replicas, inside of the step of one; 1 elsewhere."""
    library: Any = importlib.import_module("tensorflow.python.distribute.distribute_lib")
    context = library.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)
