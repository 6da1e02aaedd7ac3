"""Saves checkpoints in the background, one at a time. An acknowledged checkpoint survives a kill at any instant.

The order is the proof: all bytes are durable and verified; the lease is still ours; then one object is created, and its
creation is the commit; then the save is acknowledged; only after that is anything removed.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import PodliftError, SaveFailedError, WaitTimeoutError, nearest
from ..logs import logger
from ..process import cores
from . import commit, names
from .commit import SaveLimits, SaveRequest
from .contents import WRITERS, Contents
from .opening import OpenStore
from .policy import metric_of
from .retention import Retention

_log = logger("checkpoint")

# The training is on its way to its next step, and would wait for the interpreter's lock.
_LET_GO_S = 0.004
# A third of the weight of a thread that computes: one that holds the interpreter's lock must never wait for long, and a save
# on a busy machine must be done before the next one is due.
_NICE = 5


@dataclass(frozen=True)
class Commit:
    """An acknowledged checkpoint. For tasks other than rank 0: their part of it is durable."""

    key: str
    step: int
    epoch: int


class Ticket(Future[Commit]):
    """A save in progress. It is done once the save is acknowledged or has failed."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self.settled = threading.Event()  # set once old checkpoints are removed too

    def wait(self, timeout_s: float | None = None) -> Commit:
        """Return the commit once it is acknowledged, or raise SaveFailedError; WaitTimeoutError if the save still continues."""
        try:
            return self.result(timeout_s)
        except futures.TimeoutError:
            raise WaitTimeoutError(
                f"The checkpoint of step {self.step} was not written within {timeout_s} s; the save continues."
            ) from None


class AsyncSaver:
    """Saves one task's checkpoints in a background thread. Rank 0 commits."""

    def __init__(self, opened: OpenStore, limits: SaveLimits | None = None) -> None:
        self.opened, self._limits = opened, limits or SaveLimits()
        self._policy, self._rank, self._clock = opened.policy, opened.info.rank, opened.env.clock
        self._saved: Callable[[int], None] | None = opened.env.saved if self._rank == 0 else None
        self._retention = Retention(opened)
        # Regular saves leave the processor to the training, which continues meanwhile; it waits for all others.
        self._yielding = _MeteredPool(initializer=_yield_processor)
        self._pool = _MeteredPool()
        # SimpleQueue.put is atomic with respect to signal handlers.
        self._queue: queue.SimpleQueue[tuple[SaveRequest, Ticket] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ticket: Ticket | None = None
        self._counts, self._last_step = dict[int, int](), -1
        self._warned: set[str] = set()
        self._closed = False
        self._own_s = 0.0
        self.error: SaveFailedError | None = None  # why all further saves are off
        self.cost_s: float | None = None  # of the last save, with the removal of old checkpoints
        self.cpu_s: float | None = None  # the processor time of it

    @property
    def busy(self) -> bool:
        """True while a save, or the removal of old checkpoints after it, is in progress."""
        return self._ticket is not None and not self._ticket.settled.is_set()

    def save(
        self,
        contents: Contents,
        *,
        step: int,
        position: Any = None,
        reason: str = "interval",
        metrics: Mapping[str, float] | None = None,
        downgrades: Sequence[str] = (),
        keep: bool = False,
        leave_out: bool = False,
    ) -> Ticket | None:
        """Begin a save; every task calls this at the same step. None: the save was skipped because another one is in progress.

        Only rank 0 skips, and only saves of reason "interval" unless `leave_out` says so: if another task skipped, rank 0
        would wait for it. The other tasks wait for the previous save; their objects for a save that rank 0 skipped are removed
        later. Only rank 0 of tasks without a connection saves. The memory of `contents` must not change until the ticket is
        done.
        """
        self._raise_if_failed()
        ranks = len(self.opened.info.tasks)
        if self.opened.env.apart():
            if self._rank:
                return None
            ranks = 1
        serial = self._counts.get(step, 0)
        save = SaveRequest(
            checkpoint_id=names.CheckpointId(self.opened.opening.epoch, step, serial),
            contents=contents,
            position=position,
            reason=reason,
            metrics=dict(metrics or {}),
            downgrades=tuple(downgrades),
            keep=keep,
            ranks=ranks,
        ).checked(self._last_step)
        # Skipped saves are counted too: another task may not skip this one, and both must use the same serial.
        self._counts[step] = serial + 1
        skips = self.busy and reason == "interval" and self._policy.on_busy == "skip"
        if (skips or leave_out) and self._rank == 0:
            if ranks > 1:
                self._retention.skipped(save.checkpoint_id)
            return None
        self.wait()
        self._last_step = step
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="podlift-checkpoint", daemon=True)
            self._thread.start()
        ticket = Ticket(step)
        self._warn_about_metric(save)
        self._queue.put((save, ticket))
        self._ticket = ticket
        return ticket

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when no save is in progress; SaveFailedError if one failed, WaitTimeoutError if it still continues."""
        if self._ticket is not None and not self._ticket.settled.wait(timeout_s):
            raise WaitTimeoutError(f"A checkpoint is still being written after {timeout_s} s; the save continues.")
        self._raise_if_failed()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the save in progress, then end the threads; raises as `wait`. Further calls do nothing."""
        if self._closed:
            return
        try:
            self.wait(timeout_s)
        finally:
            self._closed = True
            self._queue.put(None)
            self._yielding.shutdown(wait=False)
            self._pool.shutdown(wait=False)

    def _raise_if_failed(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closed:
            raise SaveFailedError("The saver is closed; no further checkpoints are saved.")

    def _work(self) -> None:
        # Elsewhere a core may wait for this task, which is still computing.
        cores.widen()
        while (item := self._queue.get()) is not None:
            save, ticket = item
            try:
                if save.reason == "interval":
                    self._clock.sleep(_LET_GO_S)
                started, _ = self._clock.monotonic(), self._cpu_s()
                if self.error is None:
                    self._save(save, ticket)
                self.cost_s, self.cpu_s = self._clock.monotonic() - started, self._cpu_s()
            except BaseException as error:
                # If this thread ended instead, the next save would wait for ever.
                self.error = self.error or _broken(save, error)
            finally:
                if not ticket.done():
                    # A ticket without an error would count as saved.
                    ticket.set_exception(self.error or _broken(save, None))
                settled = ticket.settled
                # A step copies each array that this thread still keeps alive.
                del item, save, ticket
                settled.set()

    def _cpu_s(self) -> float:
        """Return the processor time of the threads since the last call."""
        before, self._own_s = self._own_s, time.thread_time()
        return self._own_s - before + self._yielding.taken_s() + self._pool.taken_s()

    def _save(self, save: SaveRequest, ticket: Ticket) -> None:
        try:
            pool = self._yielding if save.reason == "interval" else self._pool
            key = commit.save(self.opened, save, self._retention, pool, self._limits)
            self._record_first(save.checkpoint_id.step)
            ticket.set_result(Commit(key, save.checkpoint_id.step, save.checkpoint_id.epoch))
        except BaseException as error:
            why = str(error) if isinstance(error, PodliftError) else f"{type(error).__name__}: {error}"
            self._fail(
                f"The checkpoint of step {save.checkpoint_id.step} was not saved by {self.opened.info.task}. {why} "
                "Earlier checkpoints are untouched.",
                error,
            )
            return
        # A save of reason "failure" removes nothing: its process is about to end, and the next attempt decides.
        if self._rank == 0 and save.reason != "failure":
            self._tidy()

    def _fail(self, message: str, cause: BaseException) -> None:
        self.error = SaveFailedError(message)
        self.error.__cause__ = cause
        _log.info(message)

    def _record_first(self, step: int) -> None:
        if self._saved is not None:
            try:
                self._saved(step)
                self._saved = None
            except OSError as error:
                # The checkpoint itself is safe: the record only helps to notice if it disappears.
                _log.info(f"The checkpoint of step {step} was saved, but this could not be recorded: {error}")

    def _tidy(self) -> None:
        try:
            self._retention.tidy()
        except PodliftError as error:
            _log.info(f"Old checkpoints could not be removed now; the next save tries again. {error}")
        except BaseException as error:
            self._fail(f"Old checkpoints could not be removed: {type(error).__name__}: {error}.", error)

    def _warn_about_metric(self, save: SaveRequest) -> None:
        """Log once why checkpoints cannot be compared by the metric of `best`."""
        metric = metric_of(self._policy)
        if metric is None or self._rank:
            return
        name, warning = metric[0], ""
        if name in save.metrics and not math.isfinite(save.metrics[name]):
            warning = (
                f"The metric {name!r} is {save.metrics[name]}, so this checkpoint cannot be the best one. "
                "The best earlier one is kept."
            )
        elif name not in save.metrics and save.metrics:
            hint = nearest(name, sorted(save.metrics))
            warning = f"The best checkpoint cannot be chosen: there is no metric {name!r}. {hint}"
        if warning and warning not in self._warned:
            self._warned.add(warning)
            _log.info(f"{warning} (step {save.checkpoint_id.step})")


class _MeteredPool(ThreadPoolExecutor):
    """Threads that write, and the processor time that they have used."""

    def __init__(self, initializer: Callable[[], None] | None = None) -> None:
        super().__init__(WRITERS, thread_name_prefix="podlift-write", initializer=initializer)
        self._used: queue.SimpleQueue[float] = queue.SimpleQueue()

    def taken_s(self) -> float:
        """Return the processor time since the last call."""
        return sum(self._used.get() for _ in range(self._used.qsize()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._metered, [partial(fn, *args, **kwargs)])

    def _metered(self, call: list[Callable[[], Any]]) -> Any:
        started = time.thread_time()
        try:
            # The pool keeps its arguments until after the result is known: they must not keep arrays alive.
            return call.pop()()
        finally:
            self._used.put(time.thread_time() - started)


def _yield_processor() -> None:
    """Let this thread run when the training's threads leave a processor idle, and a little otherwise."""
    if sys.platform == "linux":  # elsewhere the whole process has one priority
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


def _broken(save: SaveRequest, cause: BaseException | None) -> SaveFailedError:
    error = SaveFailedError(
        f"The thread that saves checkpoints failed at step {save.checkpoint_id.step}: {type(cause).__name__}. No further "
        "checkpoints are saved; acknowledged ones are untouched."
    )
    error.__cause__ = cause
    return error
