"""A training loop of the program's own: saved and continued through the object that `ctx.checkpoint()` returns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..reporting import Reporter
    from .auto_checkpoint import Protected, Protection


class Loop:
    """The state of a training loop.

    Usage::

        ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=dataset)
        ckpt.restore()
        for epoch in range(ckpt.epoch, 5):
            for batch in ckpt.data:
                train_step(batch)
                ckpt.step()

    Attributes:
        steps: training steps so far, in all attempts.
        epoch: how often `data` was gone through to its end, in all attempts.
        restored: how many of the steps an earlier attempt has done.
    """

    def __init__(
        self, protection: Protection | None, objects: Mapping[str, Any], data: Any, reporter: Reporter
    ) -> None:
        self.steps = self.epoch = self.restored = 0
        self._protection = protection
        self._objects = dict(objects)
        self._data = data
        self._reporter = reporter
        self._stage: Protected | None = None
        self._batch = 0
        self._feed: Any = None
        self._skip: tuple[int, bytes | None] = (0, None)

    def restore(self) -> bool:
        """Put back what an earlier attempt has saved; return False where there is nothing.

        Call it when all variables are there: the optimizer is built, the model was called. Without the call it happens
        when the loop begins.

        Raises:
            InputError: the checkpoint has other variables; nothing was changed.
        """
        if self._protection is None or self._stage is not None:
            return False
        snapshot = importlib.import_module("...checkpoint.tf.snapshot", __package__)
        self._stage = stage = self._protection.begin("loop", lambda: snapshot.variables_of(**self._objects))
        stage.capture, stage.has_epochs = self._capture, self._data is not None
        # Without data it is not known when a step begins.
        stage.in_step = self._data is None
        if not stage.restore():
            return False
        if stage.at:
            self.steps, self.epoch, self._batch = stage.steps, stage.at["epoch"], stage.at["batch"]
            self.restored = stage.steps
            self._skip = (self._batch, stage.blobs.get("data"))
        return True

    @property
    def data(self) -> Iterator[Any]:
        """The data, once: from where an earlier attempt has stopped, then from the beginning each time.

        It ends early when the run is to end.
        """
        if self._data is None:
            raise TypeError("This loop has no data. Expected: ctx.checkpoint(..., data=dataset).")
        self.restore()
        return self._once()

    def _once(self) -> Iterator[Any]:
        if self._stage is not None and (self._stage.finished or self._stage.interrupted):
            return
        position = importlib.import_module("...checkpoint.tf.position", __package__)
        (self._batch, state), self._skip = self._skip, (0, None)
        self._feed = position.ResumableIterator(self._data, skip=self._batch, state=state)
        for batch in self._feed:
            self._batch += 1
            if self._stage is not None:
                self._stage.in_step = True
            yield batch
            if self._stage is not None and self._stage.interrupted:
                return
        self.epoch, self._batch, self._feed = self.epoch + 1, 0, None
        if self._stage is not None:
            self._stage.epoch_over()

    def step(self, count: int = 1) -> int:
        """Note that a training step is over, save what is due, and return how many there are so far.

        Call it behind every step, in every task. When somebody wants the machine back, it saves and ends the task with
        the exit code 75; when somebody cancels the run, it saves, `ctx.should_stop()` becomes True and `data` ends.

        Args:
            count: how many steps are over.
        """
        self.restore()
        self.steps += count
        self._reporter.stepped(self.steps)
        if self._stage is not None:
            self._stage.stepped(count)
            self._stage.in_step = self._data is None
        return self.steps

    def save(self) -> None:
        """Save now, and wait until that is done.

        Raises:
            SaveFailedError: it could not be saved.
        """
        self.restore()
        if self._stage is not None:
            self._stage.save_now()

    def _capture(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        at: dict[str, Any] = {"epoch": self.epoch, "batch": self._batch}
        if self._data is None:
            return {}, {**at, "data": "none"}
        position = importlib.import_module("...checkpoint.tf.position", __package__)
        found = position.next_pass(self._data) if self._feed is None else self._feed.position()
        if found.why and self._stage is not None:
            self._stage.downgrade(found.why)
        return {"data": found.state}, {**at, "data": found.kind}
