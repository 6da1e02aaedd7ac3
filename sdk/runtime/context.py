"""The run as its training program sees it. Outside any run there is one replica, and nothing is recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..hardware import accelerators
from ..job import cluster
from ..job.layout import RunPaths
from ..job.payload import Payload
from .patches import servers
from .reporting import Reporter

if TYPE_CHECKING:
    from .hooks.auto_checkpoint import AutoCheckpoint
    from .hooks.evaluator import Evaluator
    from .hooks.loop import Loop


@dataclass(frozen=True, kw_only=True)
class Dirs:
    """Folders of the run for the model, the program's own checkpoints and TensorBoard files."""

    model: str
    checkpoints: str
    tensorboard: str


@dataclass(kw_only=True, eq=False, repr=False)
class Context:
    """The task of this process, and its run.

    Usage: `ctx = sdk.context(); print(ctx.task, ctx.is_chief, ctx.args)`

    Attributes:
        task: this task's name, such as "chief-0".
        tasks: names of all tasks; the first one decides whether the run succeeds.
        run_id: the run's id, "" outside any run.
        args: the job's args: a dict, or a list of words.
        inputs: paths of the job's inputs by name: `tf.data.TFRecordDataset(ctx.inputs["train"])`; {} outside any run.
        dirs: folders of the run; outside any run, below the current folder.
    """

    task: str
    tasks: tuple[str, ...]
    run_id: str
    args: Any
    inputs: dict[str, str]
    dirs: Dirs
    _reporter: Reporter
    _max_steps: int | None = None
    _auto_checkpoint: AutoCheckpoint | None = None
    _tpu: str = ""
    _gpus: int = 1
    _replicas: tuple[int, int] | None = None
    _loop: Loop | None = None
    _evaluator: Evaluator | None = None
    _stop_checks: int = 0
    _strategy: Any = None

    @property
    def strategy(self) -> Any:
        """The tf.distribute strategy that fits the cluster, made at the first use.

        Usage: `with ctx.strategy.scope(): model = build()`.

        With several tasks it is MultiWorkerMirroredStrategy: use it before any other TensorFlow operation. With parameter
        servers it is ParameterServerStrategy in the first task; in workers and servers this property does not return, they
        serve the first task until it ends. On a TPU it is TPUStrategy, of the TPU or of its stand-in: the log names which. In a
        single task with several GPUs it is MirroredStrategy.
        """
        if self._strategy is None:
            self._strategy = _make_strategy(self.task, self.tasks, tpu=bool(self._tpu), gpus=self._gpus)
        return self._strategy

    @property
    def coordinator(self) -> Any:
        """TensorFlow's ClusterCoordinator for `ctx.strategy`, in the first task of a job with parameter servers.

        Usage: `ctx.coordinator.schedule(step, args=(data,))`, then `ctx.coordinator.join()`. It gives the steps of a lost
        worker to the others. In workers and servers this property does not return, as `ctx.strategy` does not.

        Raises:
            InputError: the job has no parameter servers.
        """
        if not cluster.has_servers(self.tasks) or self.is_evaluator:
            raise InputError(
                f"Only the first task of a job with parameter servers has a coordinator. Received: ctx.coordinator in "
                f"{self.task} of {', '.join(self.tasks)}. Next: submit with --ps 1 and at least --workers 2, or use "
                "ctx.strategy alone."
            )
        import tensorflow as tf

        return tf.distribute.coordinator.ClusterCoordinator(self.strategy)  # the same one at each call

    def per_worker_data(self, make: Callable[..., Any]) -> Any:
        """Return an iterator for the steps of `ctx.coordinator`: each worker makes its own data, also after a restart.

        Usage: `data = ctx.per_worker_data(make)`, then `ctx.coordinator.schedule(step, args=(data,))` with `next(data)` in the
        step. Nothing divides the data between the workers.

        Args:
            make: called in each worker, without arguments; returns a tf.data.Dataset that is repeated and shuffled.

        Raises:
            InputError: the job has no parameter servers.
        """
        return iter(self.coordinator.create_per_worker_dataset(make))

    @property
    def is_chief(self) -> bool:
        """True in the first task, which decides the run and keeps its files: `if ctx.is_chief: model.save("model.keras")`."""
        return self.task == self.tasks[0]

    @property
    def is_evaluator(self) -> bool:
        """True in the task that evaluates the checkpoints of the others (`--evaluator`): `print(ctx.is_evaluator)`."""
        return cluster.role_of(self.task) == "evaluator"

    def global_batch_size(self, per_replica: int) -> int:
        """Return the number of examples in one step of all replicas: `dataset.batch(ctx.global_batch_size(32))`.

        On Vertex AI the replicas of the run's first location count in every location, also in one with another number of them.

        Args:
            per_replica: examples in one step of each replica of `ctx.strategy`.
        """
        replicas = int(self.strategy.num_replicas_in_sync)
        here, first = self._replicas or (replicas, replicas)
        return per_replica * (first if replicas == here else replicas)

    def shard(self) -> tuple[int, int]:
        """Return (index, count), this task's part of the data, for loaders that TensorFlow does not divide.

        Usage: `index, count = ctx.shard()`, then `files[index::count]` or `dataset.shard(count, index)`. It is (0, 1) for a
        task that trains alone, such as an evaluator or the first task of parameter servers, and outside any run.
        """
        together = cluster.in_step(self.tasks)
        return (together.index(self.task), len(together)) if self.task in together else (0, 1)

    def report(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send metrics to `run.metrics()`: `ctx.report({"loss": 0.25}, step=100)`.

        Every task may call it; the values of the first one and of an evaluator count. An evaluator also writes its values to
        `dirs.tensorboard`.

        Args:
            metrics: numbers by name. A vector of up to 16 becomes `name/0`, `name/1` and so on; a longer one is left out.
            step: training steps so far, counted from the start of the run.

        Raises:
            TypeError: a value is not a number.
        """
        if self._evaluator is not None:
            self._evaluator.report(metrics, step=step)
            return
        self._reporter.stepped(step)
        self._reporter.report(metrics, step=step)

    def checkpoint(self, *, data: Any = None, **objects: Any) -> Loop:
        """Add checkpoints to a custom training loop: it is saved when due, and restored when the run is restarted.

        Usage: `ckpt = ctx.checkpoint(model=model, optimizer=optimizer, data=dataset)`, then `ckpt.restore()`,
        `for batch in ckpt.data:` and, after every training step, `ckpt.step()`. Outside any run nothing is saved.

        Args:
            data: the tf.data.Dataset, distributed or not, or any iterable that yields the same elements each time.
            objects: objects with variables: models, optimizers, metrics, `tf.Module`s, `tf.Variable`s, already built.

        Raises:
            InputError: an object cannot be saved, or the task is an evaluator.
        """
        if self.is_evaluator:
            raise InputError(
                "An evaluator has no training loop. Received: ctx.checkpoint() in the evaluator. Next: before it, "
                "`if ctx.is_evaluator: for step in ctx.each_checkpoint(model=model): ctx.report(...)`, and leave the program."
            )
        from .hooks.loop import Loop

        self._loop = Loop(self._auto_checkpoint, objects, data, self._reporter)
        return self._loop

    def each_checkpoint(self, **objects: Any) -> Iterator[int]:
        """Wait for each checkpoint of the run, load it, and yield its step; for the evaluator of a custom training loop.

        Usage: `for step in ctx.each_checkpoint(model=model): ctx.report({"val_loss": evaluate(model)}, step=step)`. It ends
        when the training has ended. A `fit` in the evaluator does the same by itself.

        Args:
            objects: objects of `ctx.checkpoint` under the same names, already built; other objects are not loaded.

        Raises:
            InputError: the task is not an evaluator.
            CheckpointMismatchError: a checkpoint lacks a variable of the objects; nothing was loaded.
        """
        if self._evaluator is None:
            raise InputError(
                f"Only an evaluator waits for checkpoints. Received: ctx.each_checkpoint() in {self.task}. Next: call it if "
                "ctx.is_evaluator, and submit with --evaluator."
            )
        return self._evaluator.each(objects)

    def warm_start(self, model: Any, *, file: str | None = None) -> bool:
        """Load the weights that the run starts from into a Keras model, for custom loops; return False if there are none.

        Usage: `ctx.warm_start(model)`, once the model has its weights and before `ctx.checkpoint`. A `fit` does it by itself,
        unless the program has called this. Without `warm_start` in the job, and outside any run, nothing is loaded.

        Args:
            model: the model to load the weights into; nothing else is replaced, such as its optimizer.
            file: the model file, if the registered version has several: "best.keras".

        Raises:
            InputError: the weights have other names or shapes than the model, or `file` has to choose one of several files.
                Nothing was loaded.
        """
        checkpoint = self._auto_checkpoint
        if checkpoint is None:
            return False
        if checkpoint.has_restored(model.weights):
            checkpoint.warm_start.end("the state that this run has saved is newer")
            return False
        return checkpoint.warm_start.load(model, file)

    def callbacks(self) -> list[Any]:
        """Return callbacks that add checkpoints to one `fit`, for programs with `checkpoints.auto` off.

        Usage: `model.fit(x, y, callbacks=ctx.callbacks())`.
        """
        from .hooks.fit import fit_callback

        return [fit_callback()]

    def should_stop(self) -> bool:
        """Return whether a custom training loop should end now: `if ctx.should_stop(): break`.

        Call it once per step, in every task. With a limit of steps (`max_steps`) the answer is True from that many calls on,
        so a loop that calls it after each step does `max_steps` steps, and one that calls it before (`while not
        ctx.should_stop()`) one less. After a cancel request it becomes True after the same step in every task, and the
        program has `grace_s` seconds to end. A task at a pace of its own, which that step is far ahead of, gets True after
        its next step. It is False outside any run.
        """
        self._stop_checks += 1
        self._reporter.progress.beat()
        coordinator = None if self._auto_checkpoint is None else self._auto_checkpoint.coordinator
        if coordinator is not None:
            if self._loop is None:
                coordinator.step()
            if coordinator.exit_action is not None:
                return True
        before = 0 if self._loop is None else self._loop.restored
        return self._max_steps is not None and before + self._stop_checks >= self._max_steps


def _make_strategy(task: str, tasks: Sequence[str], *, tpu: bool, gpus: int) -> Any:
    import tensorflow as tf

    if tpu:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    together = cluster.in_step(tasks)
    if cluster.has_servers(tasks):
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if task in together:
            return tf.distribute.ParameterServerStrategy(resolver)
        if servers.serves(task, tasks):
            servers.serve(tf, resolver)
    if len(together) > 1 and task in together:
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.MirroredStrategy() if gpus > 1 else tf.distribute.get_strategy()


_current: Context | None = None


def enter(
    payload: Payload,
    task: str,
    reporter: Reporter,
    checkpoint: AutoCheckpoint | None = None,
    evaluator: Evaluator | None = None,
) -> None:
    """Make this process the given task: `context()` returns its context from now on."""
    global _current
    _current = Context(
        task=task,
        tasks=tuple(payload.tasks),
        run_id=payload.run_id,
        args=payload.kwargs if payload.kwargs else list(payload.argv),
        inputs=dict(payload.inputs),
        dirs=dirs_of(payload),
        _reporter=reporter,
        _max_steps=payload.limits.max_steps,
        _auto_checkpoint=checkpoint,
        _evaluator=evaluator,
        _tpu=payload.tpu,
        _gpus=accelerators.per_task(accelerators.row(payload.gpu or "cpu")),
        _replicas=payload.replicas,
    )


def dirs_of(payload: Payload) -> Dirs:
    if payload.bucket_url:
        # A container's own disk does not survive it: the folders are in the bucket, as its variables name them.
        names = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
        model, checkpoints, tensorboard = (os.environ[name].rstrip("/") for name in names)
        return Dirs(model=model, checkpoints=checkpoints, tensorboard=tensorboard)
    paths = RunPaths(payload.run_url)
    return Dirs(model=paths.model, checkpoints=paths.checkpoints, tensorboard=paths.tensorboard)


def context() -> Context:
    """Return the context of this process: `ctx = sdk.context()`; outside any run, the context of a single task."""
    global _current
    if _current is None and "PODLIFT_RUN" in os.environ:
        # A new process of the task, such as a worker of multiprocessing.
        paths, task = RunPaths(os.environ["PODLIFT_RUN"]), os.environ["PODLIFT_TASK"]
        payload = Payload.from_json(Path(paths.payload(int(os.environ["PODLIFT_ATTEMPT"]))).read_bytes())
        enter(payload, task, Reporter(paths.metrics(payload.attempt, task) if task == payload.tasks[0] else None))
    if _current is None:
        dirs = Dirs(model="model", checkpoints="checkpoints", tensorboard="logs")
        task = "chief-0"
        _current = Context(task=task, tasks=(task,), run_id="", args=[], inputs={}, dirs=dirs, _reporter=Reporter(None))
    return _current


def inside_task() -> str | None:
    """Return the name of the task that this process belongs to; None outside any run."""
    return os.environ.get("PODLIFT_TASK")
