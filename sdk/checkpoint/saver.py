"""Saves checkpoints in the background, one at a time. What it acknowledges is found again, whatever is killed and whenever.

The order is the proof: all bytes are durable and checked; the lease is still ours; then one object is created, and its
creation is the commit; then it is acknowledged; only then anything is removed.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..clock import Clock
from ..errors import InputError, PodliftError, SaveFailedError, WaitTimeoutError, nearest
from ..storage.store import Store
from . import names
from .commit import Committer, Save
from .contents import Contents
from .opening import Opening
from .policy import Policy
from .retention import Keeper
from .writing import OBJECT_BYTES

_THREADS = 4
_ABOUT = ("run_id", "world", "versions", "code")


@dataclass(frozen=True)
class Commit:
    """A checkpoint that was acknowledged. In tasks other than rank 0: that this task's part of it is durable."""

    key: str
    step: int
    epoch: int


class Ticket:
    """One save that is going on.

    Attributes:
        step: what is saved.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._over = threading.Event()
        self._settled = threading.Event()
        self._commit: Commit | None = None
        self._error: SaveFailedError | None = None

    @property
    def done(self) -> bool:
        """True once it is acknowledged or has failed."""
        return self._over.is_set()

    @property
    def failed(self) -> bool:
        """True once it is known that it will not be acknowledged."""
        return self.done and self._commit is None

    def wait(self, timeout_s: float | None = None) -> Commit:
        """Return the commit once it is acknowledged.

        Raises:
            SaveFailedError: it is not, and will not be.
            WaitTimeoutError: it is not yet; it goes on.
        """
        if not self._over.wait(timeout_s):
            raise WaitTimeoutError(
                f"The checkpoint of step {self.step} is not written after {timeout_s} s; it goes on."
            )
        if self._error is not None:
            raise self._error
        if self._commit is None:
            raise SaveFailedError(f"The checkpoint of step {self.step} ended without a commit.")
        return self._commit

    def settled(self, timeout_s: float | None = 0) -> bool:
        """True once the removal of old checkpoints behind it is over too; waits that long for it."""
        return self._settled.wait(timeout_s)

    def settle(self) -> None:
        """Tell that nothing more happens for this save."""
        self._settled.set()

    def end(self, commit: Commit | None, error: SaveFailedError | None = None) -> None:
        """Tell those who wait; the first call counts."""
        if not self._over.is_set():
            self._commit, self._error = commit, error
            self._over.set()


class Saver:
    """Saves what it is given, in the background of one task.

    Args:
        store: where to.
        opening: what the tasks of this attempt have agreed on.
        task: this task's name.
        rank: this task's place in `tasks`; 0 commits.
        tasks: the names of all tasks that save.
        policy: what to keep, and what to do when a save is going on.
        clock: what time it is.
        about: "run_id", "world", "versions" and "code" of the manifest.
        log: takes sentences; called from the background too.
        saved: takes the step of rank 0's first acknowledged checkpoint; called from the background.
        receipts_s: how long rank 0 waits for the other tasks.
        object_bytes: the largest object.

    Attributes:
        error: why nothing is saved any more; None while all is well.
        cost_s: how long the last save took, the removal of old checkpoints included; None before the first.
    """

    def __init__(
        self,
        store: Store,
        opening: Opening,
        *,
        task: str,
        rank: int,
        tasks: Sequence[str],
        policy: Policy,
        clock: Clock,
        about: Mapping[str, Any],
        log: Callable[[str], None],
        saved: Callable[[int], None] = lambda step: None,
        receipts_s: float = 120.0,
        object_bytes: int = OBJECT_BYTES,
    ) -> None:
        unknown = [
            f"{name!r} is nothing that a manifest says. {nearest(name, _ABOUT)}" for name in set(about) - {*_ABOUT}
        ]
        if unknown:
            raise InputError(unknown)
        self._opening, self._policy = opening, policy
        self._rank, self._ranks = rank, len(tasks)
        self._clock, self._log = clock, log
        self._saved: Callable[[int], None] | None = saved if rank == 0 else None
        self._keeper = Keeper(store, opening, policy, clock, log)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="podlift-write")
        self._committer = Committer(
            store,
            opening,
            rank=rank,
            tasks=tuple(tasks),
            keeper=self._keeper,
            clock=clock,
            about=about,
            receipts_s=receipts_s,
            pool=self._pool,
            # Each thread finds its next object ready when it is done with one.
            most=2 * _THREADS,
            object_bytes=object_bytes,
        )
        self._task = task
        # A queue of C: an interrupt or a signal's handler finds a save either queued or not.
        self._queue: queue.SimpleQueue[tuple[Save, Ticket] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ticket: Ticket | None = None
        self._counts, self._last_step = dict[int, int](), -1
        self._told: set[str] = set()
        self._closed = False
        self.error: SaveFailedError | None = None
        self.cost_s: float | None = None

    @property
    def busy(self) -> bool:
        """True while a save, or the removal of old checkpoints behind it, is going on."""
        return self._ticket is not None and not self._ticket.settled()

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
        """Begin to save; every task calls it at the same step. None: another save is going on, and this one is skipped.

        Only rank 0 skips, and only a save of reason "interval": whoever else were to skip would leave rank 0 waiting. All
        others wait for the save before them; what they write for a save that rank 0 has skipped is removed later.

        Args:
            contents: what to save. Its memory must not change until the ticket is done.
            step: where training stands; never less than before.
            position: the same in detail, as JSON.
            reason: "interval", "preempt", "final", "manual" or "failure".
            metrics: for `best`, and for people.
            downgrades: what of the state is not restored exactly.
            keep: it is the end of a fit: kept longer than others.
            leave_out: rank 0 skips this one in any case.

        Raises:
            InputError: the step goes back, or something is not JSON.
            SaveFailedError: an earlier save has failed.
        """
        self._raise_if_failed()
        serial = self._counts.get(step, 0)
        save = Save(
            place=names.Place(self._opening.epoch, step, serial),
            contents=contents,
            position=position,
            reason=reason,
            metrics=dict(metrics or {}),
            downgrades=tuple(downgrades),
            keep=keep,
        ).checked(self._last_step)
        # Counted even where it is skipped: another task may not skip it, and both must speak of the same one.
        self._counts[step] = serial + 1
        skips = self.busy and reason == "interval" and self._policy.on_busy == "skip"
        if (skips or leave_out) and self._rank == 0:
            if self._ranks > 1:
                self._keeper.skipped(save.place)
            return None
        self.wait()
        self._last_step = step
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="podlift-checkpoint", daemon=True)
            self._thread.start()
        ticket = Ticket(step)
        self._tell_of_metric(save)
        self._queue.put((save, ticket))
        self._ticket = ticket
        return ticket

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when no save is going on.

        Raises:
            SaveFailedError: one has failed, now or before.
            WaitTimeoutError: one is still going on.
        """
        if self._ticket is not None and not self._ticket.settled(timeout_s):
            raise WaitTimeoutError(f"A checkpoint is still being written after {timeout_s} s; it goes on.")
        self._raise_if_failed()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the save that is going on, and end the threads; raises as `wait`. More calls do nothing."""
        if self._closed:
            return
        try:
            self.wait(timeout_s)
        finally:
            self._closed = True
            self._queue.put(None)
            self._pool.shutdown(wait=False)

    def _raise_if_failed(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closed:
            raise SaveFailedError("The checkpoints are closed; nothing is saved any more.")

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            save, ticket = item
            started = self._clock.monotonic()
            try:
                if self.error is None:
                    self._save(save, ticket)
            finally:
                self.cost_s = self._clock.monotonic() - started
                ticket.end(None, self.error)
                ticket.settle()
                # A thread that waits for the next save must not hold the arrays of the last one.
                del item, save, ticket

    def _save(self, save: Save, ticket: Ticket) -> None:
        try:
            commit = self._committer.save(save)
            self._tell_of_first(save.place.step)
            ticket.end(Commit(commit, save.place.step, save.place.epoch))
        except BaseException as error:
            known = str(error) if isinstance(error, PodliftError) else f"{type(error).__name__}: {error}"
            self.error = SaveFailedError(
                f"The checkpoint of step {save.place.step} was not saved by {self._task}. {known} "
                "Those before it are untouched."
            )
            self.error.__cause__ = error
            self._log(str(self.error))
            return
        # A failure removes nothing: its process is about to end, and the next attempt will see what is good.
        if self._rank == 0 and save.reason != "failure":
            self._tidy()

    def _tell_of_first(self, step: int) -> None:
        if self._saved is not None:
            try:
                self._saved(step)
                self._saved = None
            except OSError as error:
                # What was saved is saved: the record only helps to notice that it has gone.
                self._log(f"That step {step} was saved could not be recorded: {error}")

    def _tidy(self) -> None:
        try:
            self._keeper.tidy()
        except PodliftError as error:
            self._log(f"Old checkpoints could not be removed now; it is tried again behind the next save. {error}")
        except BaseException as error:
            self.error = SaveFailedError(f"Old checkpoints could not be removed: {type(error).__name__}: {error}.")
            self.error.__cause__ = error
            self._log(str(self.error))

    def _tell_of_metric(self, save: Save) -> None:
        """Say once what keeps a checkpoint from being the best one."""
        if self._policy.metric is None or self._rank:
            return
        name = self._policy.metric[0]
        if name in save.metrics and not math.isfinite(save.metrics[name]):
            sentence = (
                f"The metric {name!r} is {save.metrics[name]}: such a checkpoint is never the best one. "
                "The best one before it is kept."
            )
        elif name not in save.metrics and save.metrics:
            sentence = (
                f"There is no metric {name!r} to tell the best checkpoint by. {nearest(name, sorted(save.metrics))}"
            )
        else:
            return
        if sentence not in self._told:
            self._told.add(sentence)
            self._log(f"{sentence} (step {save.place.step})")
