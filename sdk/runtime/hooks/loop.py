"""Custom training loops: saved and continued through the object that `ctx.checkpoint()` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import reporting
from ..account import OTHER

if TYPE_CHECKING:
    from ..reporting import Reporter
    from .auto_checkpoint import AutoCheckpoint, PhaseCheckpoints


class Loop:
    """The checkpoints of a custom training loop.

    Usage::

        ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=dataset)
        ckpt.restore()
        for epoch in range(ckpt.epoch, 5):
            for batch in ckpt.data:
                train_step(batch)
                ckpt.step()

    Attributes:
        steps: training steps so far, in all attempts.
        epoch: how many passes over `data` are complete, in all attempts.
        restored: how many of the steps earlier attempts did.
    """

    def __init__(
        self, checkpoint: AutoCheckpoint | None, objects: Mapping[str, object], data: Any, reporter: Reporter
    ) -> None:
        self.steps = self.epoch = self.restored = 0
        self._checkpoint, self._objects, self._data, self._reporter = checkpoint, dict(objects), data, reporter
        self._phase: PhaseCheckpoints | None = None
        self._batch = 0
        self._feed: Any = None
        self._skip: tuple[int, bytes | None] = (0, None)

    def restore(self) -> bool:
        """Restore the state that an earlier attempt saved; return False if there is none.

        Call it once all variables exist: the optimizer is built, the model was called. If it is not called, the state is
        restored when the loop begins.

        Raises:
            InputError: the checkpoint has other variables; nothing was changed.
        """
        if self._checkpoint is None or self._phase is not None:
            return False
        from ...checkpoint.tf import snapshot

        self._phase = phase = self._checkpoint.begin("loop", lambda: snapshot.variables_of(**self._objects))
        phase.capture, phase.has_epochs = self._capture, self._data is not None
        # Without data it is unknown when a step begins.
        phase.in_step = self._data is None
        if not phase.restore():
            return False
        if phase.at:
            self.steps, self.epoch, self._batch = phase.steps, phase.at["epoch"], phase.at["batch"]
            self.restored = phase.steps
            self._skip = (self._batch, phase.blobs.get("data"))
        return True

    @property
    def data(self) -> Iterator[Any]:
        """One pass over the data. The first pass continues where an earlier attempt stopped.

        A pass ends early after a stop request.
        """
        if self._data is None:
            raise TypeError("This loop has no data. Expected: ctx.checkpoint(..., data=dataset).")
        self.restore()
        return self._once()

    def _once(self) -> Iterator[Any]:
        if self._phase is not None and (self._phase.finished or self._phase.interrupted):
            return
        from ...checkpoint.tf import position

        (self._batch, state), self._skip = self._skip, (0, None)
        self._feed = position.ResumableIterator(self._data, skip=self._batch, state=state)
        account = self._reporter.progress.account
        if not self.steps - self.restored and self._reporter.starved is not None:
            self._reporter.starved.watch(self._data)
        for batch in self._feed:
            account.batch()
            self._batch += 1
            if self._phase is not None:
                self._phase.in_step = True
            yield batch
            if self._phase is not None and self._phase.interrupted:
                return
        account.enter(OTHER)
        self.epoch, self._batch, self._feed = self.epoch + 1, 0, None
        if self._phase is not None:
            self._phase.epoch_over()

    def step(self, count: int = 1) -> int:
        """Count a completed training step, save if a checkpoint is due, and return the number of steps so far.

        Call it after every step, in every task. If the machine is preempted, it saves and ends the task with exit code 75.
        If the run is cancelled, it saves, `ctx.should_stop()` becomes True and `data` ends.

        Args:
            count: number of completed steps.
        """
        self.restore()
        self.steps += count
        self._reporter.stepped(self.steps)
        if self._phase is not None:
            self._phase.count(count)
            self._phase.settle(count)
            self._phase.in_step = self._data is None
        return self.steps

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save now, and wait until the checkpoint is complete.

        Usage: `ckpt.save({"val_loss": loss})` after an evaluation, for `checkpoint_best` and `run.checkpoints(best=...)`.

        Args:
            metrics: numbers by name, or vectors of them, kept with the checkpoint; the same in every task.

        Raises:
            TypeError: a value is not a number.
            SaveFailedError: the state could not be saved.
        """
        self.restore()
        if self._phase is not None:
            self._phase.save_now(reporting.numbers(metrics or {}, strict=True)[0])

    def _capture(self) -> tuple[dict[str, bytes], dict[str, object]]:
        at: dict[str, object] = {"epoch": self.epoch, "batch": self._batch}
        if self._data is None:
            return {}, {**at, "data": "none"}
        from ...checkpoint.tf import position

        reached = position.next_pass(self._data) if self._feed is None else self._feed.position()
        if reached.why and self._phase is not None:
            self._phase.downgrade(reached.why)
        return {"data": reached.state}, {**at, "data": reached.kind}
