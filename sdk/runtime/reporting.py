"""Metrics on their way from the training loop to `run.metrics()`."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..records.recorder import Recorder
from .patches import Patch, plumbing
from .progress import Progress


class Reporter:
    """Appends metric records to the first task's file, and records when the first training step was over.

    Args:
        path: the file; None in tasks that report nothing.
        recorder: the task's records.
        progress: takes every step; None in a process that nobody watches.
        look: called at every report, and when the first step is over.
    """

    def __init__(
        self,
        path: str | None,
        recorder: Recorder | None,
        progress: Progress | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._progress = progress or Progress(None)
        self._path = path
        self._recorder = recorder
        self._stepped = False
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def report(self, metrics: Mapping[str, Any], *, step: int | None = None, epoch: int | None = None) -> None:
        """Append one record; values become floats, and those that JSON does not know become None.

        Raises:
            TypeError: a value is no number.
        """
        values = {str(name): _number(name, value) for name, value in metrics.items()}
        if self._path is None:
            return
        self._look()
        record = {"time": time.time(), "step": step, "epoch": epoch, "metrics": values}
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write for one line: a reader never meets half a line that is followed by another.
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(record).encode() + b"\n")

    def begin(self, steps: int) -> None:
        """Note that an earlier attempt has done so many training steps."""
        self._progress.begin(steps)

    def beat(self) -> None:
        """Note a sign of life: a batch of evaluate or predict is over."""
        self._progress.beat()

    def epoch(self, number: int, of: int | None, steps: int | None) -> None:
        """Note that an epoch of `fit` begins.

        Args:
            number: from 1.
            of: after which one `fit` ends; None for unknown.
            steps: it has so many; None for unknown.
        """
        self._progress.epoch(number, of or 0, steps or 0)

    def stepped(self, step: int | None = None, *, of_epoch: int | None = None) -> None:
        """Note that a training step is over; only the first call writes a record.

        Args:
            step: how many are over; None for one more.
            of_epoch: how many of this epoch are.
        """
        self._progress.step(step, of_epoch)
        if self._stepped or self._recorder is None or os.getpid() != self._pid:
            return  # a forked child must not write records under its parent's numbers
        with self._lock:
            if not self._stepped:
                self._stepped = True
                self._recorder.record("first_step")
                self._look()


def _number(name: object, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"A metric must be a number. Received: {name}={value!r}.") from None
    return number if math.isfinite(number) else None


def patches(reporter: Reporter) -> list[Patch]:
    """Return what makes `fit` of Keras 3 and of tf_keras report without user code."""
    modules = ("keras.src.callbacks.callback_list", "tf_keras.src.callbacks")
    return plumbing(
        "report-metrics",
        "the metrics of every epoch of fit go to run.metrics()",
        dict.fromkeys(modules, lambda module: _report_from(module, reporter)),
    )


def _report_from(module: ModuleType, reporter: Reporter) -> None:
    class Reporting(module.Callback):  # type: ignore[misc, name-defined]
        """Added to every CallbackList."""

        # Keras runs the batch hooks of callbacks that say this in the background, as it does without any.
        async_safe = True
        _step = _begun = _behind = 0
        _steps: int | None = None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            params, self._behind = getattr(self, "params", None) or {}, 0
            reporter.epoch(epoch + 1, params.get("epochs"), params.get("steps") or self._steps)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._begun = batch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # An execution of several steps bears the number of its last one; before Keras 3.11, of its first.
            self._step += max(1, batch + 1 - self._begun)
            self._behind = max(batch + 1, self._behind + 1)
            reporter.stepped(of_epoch=self._behind)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            reporter.beat()

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            reporter.beat()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            # Of data of unknown size the first epoch tells how much it is.
            self._steps = self._behind
            reporter.report(dict(logs or {}), step=self._step, epoch=epoch)

    original = module.CallbackList.__init__

    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        given = [] if not callbacks else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        original(self, [*given, Reporting()], *args, **kwargs)

    module.CallbackList.__init__ = __init__
