"""Metrics and progress of the training loop, as `run.metrics()` and `run.status()` show them."""

from __future__ import annotations

import json
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from ..logs import logger
from ..records.accounts import ACCOUNT
from ..records.recorder import PROGRESS, Recorder
from .account import Account
from .hooks.starvation import StarvedInput
from .patches import CALLBACK_LISTS, Function, Patch, around, plumbing

_log = logger("runtime")


class ProgressWriter:
    """Counts one task's steps in a small file that its supervisor and clients read; `path` is None without a supervisor.

    The file holds the progress, and how the task has spent its time. It is memory-mapped: a write at every step needs no
    system call, and survives a kill.
    """

    def __init__(self, path: str | None, account: Account | None = None) -> None:
        self._pid = os.getpid()
        self.account = account or Account()
        self._steps = self._beats = 0
        self._epoch, self._epochs, self._epoch_step, self._epoch_steps = 0, 0, 0, 0
        self._map: mmap.mmap | None = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with Path(path).open("w+b") as file:
                file.write(bytes(PROGRESS.size + ACCOUNT.size))
                file.flush()
                self._map = mmap.mmap(file.fileno(), PROGRESS.size + ACCOUNT.size)
            self._write()

    @property
    def steps(self) -> int:
        return self._steps

    def begin(self, steps: int) -> None:
        """Set the steps of the run, including earlier attempts. This does not count as a sign of life."""
        self._steps = steps
        self._write()

    def epoch(self, number: int, of: int, steps: int) -> None:
        """Begin an epoch: its number from 1, the number of epochs, and its steps; 0 means unknown."""
        self._epoch, self._epochs, self._epoch_step, self._epoch_steps = number, of, 0, steps
        self._write()

    def step(self, count: int | None = None, of_epoch: int | None = None) -> None:
        """Count a completed training step, or set the number of all (`count`) and of this epoch (`of_epoch`)."""
        if of_epoch is not None:
            self._epoch_step = of_epoch
        before, self._steps = self._steps, self._steps + 1 if count is None else max(0, int(count))
        self.account.step(max(self._steps - before, 0))
        self.beat()

    def beat(self) -> None:
        """Record a sign of life."""
        self._beats += 1
        self._write()

    @contextmanager
    def during(self, part: int) -> Iterator[None]:
        """Count the time of this context as that part of the task's account."""
        with self.account.during(part):
            self._write()
            yield
        self._write()

    def _write(self) -> None:
        # A process that the program forked must not count for the task.
        if self._map is not None and os.getpid() == self._pid:
            position = (self._epoch, self._epochs, self._epoch_step, self._epoch_steps)
            PROGRESS.pack_into(self._map, 0, self._steps, self._beats, *position)
            ACCOUNT.pack_into(self._map, PROGRESS.size, *self.account.numbers())


class Reporter:
    """Appends metrics to the first task's file, and records the end of the first training step.

    Args:
        path: of the metrics; None in tasks that report none.
        check: called at every report and after the first step.
    """

    def __init__(
        self,
        path: str | None,
        recorder: Recorder | None = None,
        progress: ProgressWriter | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._recorder, self._check = path, recorder, check
        self.progress = progress or ProgressWriter(None)
        self.starved: StarvedInput | None = None
        self._stepped = False
        self._left_out: set[str] = set()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def report(
        self,
        metrics: Mapping[str, object],
        *,
        step: int | None = None,
        epoch: int | None = None,
        strict: bool = True,
    ) -> dict[str, float]:
        """Append one record, and return its numbers; a number that JSON cannot hold is None in it.

        Raises:
            TypeError: a value is no number, unless `strict` is False.
        """
        numbers_by_name, left_out = numbers(metrics, strict=strict)
        if self._path is None:
            return numbers_by_name
        self._check()
        self._say_once(left_out)
        values = {name: value if math.isfinite(value) else None for name, value in numbers_by_name.items()}
        # A step may be a number of NumPy, or a variable such as `optimizer.iterations`.
        number = None if step is None else int(plain(step))
        record = {"time": time.time(), "step": number, "epoch": epoch, "metrics": values}
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write per line, so that a reader never sees a partial line followed by another one.
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(record).encode() + b"\n")
        return numbers_by_name

    def _say_once(self, left_out: Mapping[str, str]) -> None:
        for name, reason in left_out.items():
            if name not in self._left_out:
                self._left_out.add(name)
                _log.info(
                    f"the metric {name} is not reported: {reason}. Next: report the numbers that you follow instead"
                )

    def stepped(self, step: int | None = None, *, of_epoch: int | None = None) -> None:
        """Count a completed training step: `step` in all, `of_epoch` in this epoch. Only the first call writes a record."""
        self.progress.step(step, of_epoch)
        if self._stepped or self._recorder is None or os.getpid() != self._pid:
            return  # a forked child must not write records with its parent's sequence numbers
        with self._lock:
            if not self._stepped:
                self._stepped = True
                self._recorder.record("first_step")
                self._check()


def patches(reporter: Reporter) -> list[Patch]:
    """Return the patches with which `fit` of Keras 3 and of tf_keras reports without user code."""
    return plumbing(
        "report-metrics",
        "the metrics of every epoch of fit go to run.metrics()",
        dict.fromkeys(CALLBACK_LISTS, lambda module: _report_from(module, reporter)),
    )


def _report_from(module: ModuleType, reporter: Reporter) -> None:
    class Reporting(module.Callback):  # type: ignore[misc, name-defined]
        # With this, Keras may run the batch hooks in the background, as it does without callbacks.
        async_safe = True
        _step = _first_batch = _in_epoch = 0
        _steps: int | None = None
        _before: int | None = None  # the steps before this fit, or before its first epoch here if it was resumed

        def __init__(self) -> None:
            super().__init__()
            # It reads no logs of batches. tf_keras need not fetch them for it, and accepts it with parameter servers.
            self._supports_tf_logs = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if self._before is None:
                self._before = reporter.progress.steps
            params, self._in_epoch = getattr(self, "params", None) or {}, 0
            reporter.progress.epoch(epoch + 1, params.get("epochs") or 0, params.get("steps") or self._steps or 0)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._first_batch = batch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            # An execution of several steps has the number of its last step; before Keras 3.11, of its first.
            self._step += max(1, batch + 1 - self._first_batch)
            self._in_epoch = max(batch + 1, self._in_epoch + 1)
            # All steps, not one more: the program's own callbacks may report numbers of steps too.
            steps = (self._before or 0) + self._step
            reporter.stepped(steps, of_epoch=self._in_epoch)

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            reporter.progress.beat()

        on_predict_batch_end = on_test_batch_end

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            # If the size of the data is unknown, the first epoch shows it.
            self._steps = self._in_epoch
            reporter.progress.begin((self._before or 0) + self._step)
            reporter.report(dict(logs or {}), step=self._step, epoch=epoch + 1, strict=False)

    @around(module.CallbackList, "__init__")
    def init(original: Function, self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        if not isinstance(callbacks, (list, tuple)):
            callbacks = [callbacks] if callbacks else []
        original(self, [*callbacks, Reporting()], *args, **kwargs)


# More values of one metric, such as those of a confusion matrix, make no readable curves.
_MOST_VALUES = 16


def numbers(metrics: Mapping[Any, Any], *, strict: bool = False) -> tuple[dict[str, float], dict[str, str]]:
    """Return the numbers by name, and by the name of each metric that was left out the reason.

    A vector becomes several numbers, `f1_score/0` and `f1_score/1`, and a dict `iou/car`.

    Raises:
        TypeError: with `strict`, a value is neither a number nor a collection of numbers.
    """
    values: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, value in metrics.items():
        parts = dict(islice(_metric_parts(str(name), value), _MOST_VALUES + 1))
        if not 0 < len(parts) <= _MOST_VALUES:
            left_out[str(name)] = f"it has more than {_MOST_VALUES} values" if parts else "it has no values"
            continue
        for part, number in parts.items():
            try:
                values[part] = float(number)
            except (TypeError, ValueError, OverflowError):
                if strict:
                    raise TypeError(f"A metric must be a number. Received: {part}={number!r}.") from None
                left_out[part] = "it is None" if number is None else f"its type is {type(number).__name__}"
    return values, left_out


def plain(value: Any) -> Any:
    """Return a tensor or a variable as an array of NumPy, and anything else as it is."""
    return value.numpy() if callable(getattr(value, "numpy", None)) else value


def _metric_parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    value = plain(value)
    if isinstance(size := getattr(value, "size", None), int) and callable(getattr(value, "tolist", None)):
        if size > _MOST_VALUES:
            yield from ((f"{name}/{index}", None) for index in range(size))
            return
        # An array of one element is a number, as in Keras's history.
        value = value.item() if size == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, part in value.items():
        yield from _metric_parts(f"{name}/{key}", part)
