"""What a training program can ask about the run it is part of. Outside any run: one replica, no-ops."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..spec.layout import RunPaths
from ..spec.payload import Payload
from .reporting import Reporter

if TYPE_CHECKING:
    from .hooks.auto_checkpoint import Protection
    from .hooks.loop import Loop


@dataclass(frozen=True, kw_only=True)
class Dirs:
    """Folders of the run: where a model, checkpoints and TensorBoard's files belong."""

    model: str
    checkpoints: str
    tensorboard: str


class Context:
    """The run that this process is a task of.

    Usage: `ctx = sdk.context()`

    Attributes:
        task: this task's name, such as "chief-0".
        tasks: names of all tasks; the first decides about success.
        run_id: the run's id, "" outside any run.
        args: the job's args: a dict, or a list of words.
        inputs: where the job's inputs lie, by name: `tf.data.TFRecordDataset(ctx.inputs["train"])`; {} outside any run.
        dirs: folders of the run; below the current folder outside any run.
    """

    def __init__(
        self,
        *,
        task: str,
        tasks: tuple[str, ...],
        run_id: str,
        args: Any,
        inputs: Mapping[str, str],
        dirs: Dirs,
        reporter: Reporter,
        max_steps: int | None = None,
        protection: Protection | None = None,
        tpu: str = "",
    ) -> None:
        self.task = task
        self.tasks = tasks
        self.run_id = run_id
        self.args = args
        self.inputs = dict(inputs)
        self.dirs = dirs
        self._reporter = reporter
        self._max_steps = max_steps
        self._protection = protection
        self._loop: Loop | None = None
        self._asked = 0
        self._strategy: Any = None
        self._tpu = tpu

    @property
    def strategy(self) -> Any:
        """The tf.distribute strategy that fits the cluster, made at the first use.

        With several tasks that is MultiWorkerMirroredStrategy: use it before any other TensorFlow operation. With parameter
        servers it is ParameterServerStrategy in the first task; workers and servers do not come back from here, they serve
        it until it ends. On a TPU it is TPUStrategy, of the TPU or of its stand-in: the log says which.
        """
        if self._strategy is None:
            from . import strategy

            self._strategy = strategy.fitting(self.task, self.tasks, tpu=self._tpu)
        return self._strategy

    @property
    def is_chief(self) -> bool:
        """True in the one task whose files are kept and whose end is the run's end."""
        return self.task == self.tasks[0]

    def global_batch_size(self, per_replica: int) -> int:
        """Return the number of examples of one step over all replicas, for that many on each."""
        return per_replica * int(self.strategy.num_replicas_in_sync)

    def report(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send metrics to `run.metrics()`; every task may call it, the first task's values count.

        Args:
            metrics: numbers by name.
            step: training steps so far.

        Raises:
            TypeError: a value is no number.
        """
        self._reporter.stepped(step)
        self._reporter.report(metrics, step=step)

    def checkpoint(self, *, data: Any = None, **objects: Any) -> Loop:
        """Protect a training loop of your own: what is saved, when it is due, is restored when the run starts again.

        Usage: `ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=dataset)`, then `ckpt.restore()`,
        `for batch in ckpt.data:` and behind every training step `ckpt.step()`. Outside any run nothing is saved.

        Args:
            data: the tf.data.Dataset, distributed or not, or any iterable that gives the same again.
            objects: what has variables: models, optimizers, metrics, `tf.Module`s, `tf.Variable`s. They are built already.

        Raises:
            InputError: an object that cannot be saved.
        """
        from .hooks.loop import Loop

        self._loop = Loop(self._protection, objects, data, self._reporter)
        return self._loop

    def callbacks(self) -> list[Any]:
        """Return what protects a `fit` where `checkpoints.auto` is off: `model.fit(x, y, callbacks=ctx.callbacks())`."""
        from .hooks.fit import marker

        return [marker()]

    def should_stop(self) -> bool:
        """Return whether a training loop of your own should end now: `if ctx.should_stop(): break`.

        Ask once for each step, in every task. With a limit of steps (`max_steps`) the answer is True from that many calls on,
        so a loop that asks behind each step does `max_steps` of them, and one that asks before (`while not
        ctx.should_stop()`) one less. When somebody cancels the run it becomes True behind the same step in every task, and
        there are `grace_s` seconds to end. It is False outside any run.
        """
        self._asked += 1
        self._reporter.beat()
        agreement = None if self._protection is None else self._protection.agreement
        if agreement is not None and self._loop is None:
            agreement.step()
        wished = agreement is not None and agreement.leaving is not None
        before = 0 if self._loop is None else self._loop.restored
        return wished or (self._max_steps is not None and before + self._asked >= self._max_steps)


_current: Context | None = None


def enter(payload: Payload, task: str, reporter: Reporter, protection: Protection | None = None) -> None:
    """Make this process that task."""
    global _current
    _current = Context(
        task=task,
        tasks=tuple(payload.tasks),
        run_id=payload.run_id,
        args=payload.kwargs if payload.kwargs else list(payload.argv),
        inputs=payload.inputs,
        dirs=_dirs(payload),
        reporter=reporter,
        max_steps=payload.max_steps,
        protection=protection,
        tpu=payload.tpu,
    )


def _dirs(payload: Payload) -> Dirs:
    if payload.board:
        # What outlives a container lies in the bucket, where its variables say.
        names = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
        model, checkpoints, tensorboard = (os.environ[name].rstrip("/") for name in names)
        return Dirs(model=model, checkpoints=checkpoints, tensorboard=tensorboard)
    paths = RunPaths(payload.run_url)
    return Dirs(model=paths.model, checkpoints=paths.checkpoints, tensorboard=paths.tensorboard)


def context() -> Context:
    """Return the run that this process is a task of; outside any run, one that stands for this process alone."""
    global _current
    if _current is None and "PODLIFT_RUN" in os.environ:
        # A process that the task has started afresh, such as a worker of multiprocessing.
        paths, task = RunPaths(os.environ["PODLIFT_RUN"]), os.environ["PODLIFT_TASK"]
        payload = Payload.from_json(Path(paths.payload(int(os.environ["PODLIFT_ATTEMPT"]))).read_bytes())
        enter(payload, task, Reporter(paths.metrics(payload.attempt, task) if task == payload.tasks[0] else None, None))
    if _current is None:
        dirs = Dirs(model="model", checkpoints="checkpoints", tensorboard="logs")
        alone = Reporter(None, None)
        _current = Context(task="chief-0", tasks=("chief-0",), run_id="", args=[], inputs={}, dirs=dirs, reporter=alone)
    return _current


def inside_task() -> str | None:
    """Return the name of the task that this process belongs to, None outside any run."""
    return os.environ.get("PODLIFT_TASK")
