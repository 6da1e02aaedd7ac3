"""How a job is run: small values, each for one question. Frozen, checked at construction, JSON in and out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Literal

from ..hardware import accelerators
from .values import (
    Accepts,
    Bounds,
    PathText,
    Seconds,
    Texts,
    Validator,
    Value,
    default,
    metric_text,
    text_or_texts,
)

# The default folder in a bucket.
PREFIX = "podlift"


def accelerator_name(value: str) -> str:
    return accelerators.lookup(value).name


@dataclass(frozen=True, kw_only=True)
class Resources(Value):
    """Number of tasks and their hardware, on every backend: `Resources(workers=2, accelerator="l4:2")`.

    Args:
        workers: Training tasks, including the chief. At least 1.
        accelerator: Hardware of each task: a name from `podlift accelerators`.
        ps: Parameter servers, in addition to the workers. For ParameterServerStrategy.
        evaluator: Add a task outside the cluster that evaluates the checkpoints of the others.
    """

    workers: Annotated[int, Bounds(ge=1, le=1000)] = 1
    accelerator: Annotated[str, Validator(accelerator_name)] = "cpu"
    ps: Annotated[int, Bounds(ge=0, le=1000)] = 0
    evaluator: bool = False


@dataclass(frozen=True, kw_only=True)
class Code(Value):
    """Packaging of the program, and its environment: `Code(requirements="none", exclude=["*.csv"])`.

    Args:
        project: Folder to package. By default the nearest one above the entry that holds a pyproject.toml, requirements.txt
            or .git, else the script's own folder, or the current one for a module.
        include: Paths or patterns to package although a rule excludes them. Relative to the project; folders outside the
            project too.
        exclude: Patterns of files not to package, as in a .gitignore.
        requirements: Source of the requirements. "auto" reads uv.lock, requirements.txt or pyproject.toml of the
            project; "none" reads nothing; or the path of a requirements file, or a list of requirements.
        isolated: Run the tasks in a fresh environment of exactly the requirements.
        keras: The Keras that `tf.keras` is. "auto" keeps TensorFlow's choice (Keras 3); "legacy" gives tf_keras.
        writes: Which tasks write the files that Keras saves. "chief": callbacks and `model.save` reach the path they name
            from the chief only; the other tasks write to a temporary folder. "all": every task writes to that path.
        allow_secret: Names of variables and paths of files that may be stored although they look like credentials; "args" for
            the arguments.
    """

    project: Accepts[PathText | None, str | PurePath | None] = default(None)
    include: Accepts[Texts, Sequence[str | PurePath]] = default(())
    exclude: Accepts[Texts, Sequence[str | PurePath]] = default(())
    requirements: Accepts[
        Annotated[str | tuple[str, ...], Validator(text_or_texts, before=True)],
        str | PurePath | Sequence[str | PurePath],
    ] = default("auto")
    isolated: bool = False
    keras: Literal["auto", "legacy"] = "auto"
    writes: Literal["chief", "all"] = "chief"
    allow_secret: Accepts[Texts, Sequence[str]] = default(())


@dataclass(frozen=True, kw_only=True)
class Limits(Value):
    """Limits on time (in seconds), steps and cost: `Limits(timeout_s=7200, max_cost_usd=20)`.

    Args:
        timeout_s: Time limit of the whole run. On a cloud, of all its jobs together; a resume begins it again. None for no
            limit.
        max_steps: Training steps after which the run ends as a success. Every `fit` ends then, and `ctx.should_stop()` is
            true; None for no limit.
        hang_s: Time without a finished batch that counts as a hang. It counts from the first batch on; None for no limit. A
            program that reports no batches is judged by its output and its CPU time.
        idle_accelerator_s: Time without any use of the GPUs of a run after which it ends as a failure, and is not restarted. It
            counts in each attempt, while data is prepared too. None for no limit.
        grace_s: Time between asking a task to stop and killing it.
        exit_wait_s: Time that a finished chief waits for the other tasks. They are stopped then.
        max_cost_usd: Limit on the cost of all jobs of a run together, in US dollars, jobs before a resume included. No job
            starts that could exceed it. None for no limit.
        allow_unknown_price: Count only the known parts of a price against `max_cost_usd`. Otherwise, no job starts with a price
            that is partly unknown.
    """

    timeout_s: Seconds | None = None
    max_steps: Annotated[int, Bounds(ge=1)] | None = None
    hang_s: Seconds | None = 1800.0
    idle_accelerator_s: Seconds | None = None
    grace_s: Annotated[float, Bounds(ge=0)] = 5.0
    exit_wait_s: Annotated[float, Bounds(ge=0)] = 60.0
    max_cost_usd: Seconds | None = None
    allow_unknown_price: bool = False


@dataclass(frozen=True, kw_only=True)
class Retry(Value):
    """Number of automatic restarts of a run, by the end of its attempt: `Retry(user_errors=1, preemptions=20)`.

    Args:
        user_errors: Restarts after an error in the program.
        infrastructure: Restarts after a kill, a hang, lack of memory or a failed machine.
        preemptions: Restarts after a task received SIGTERM or exited with 75. None for no limit.
    """

    user_errors: Annotated[int, Bounds(ge=0)] = 0
    infrastructure: Annotated[int, Bounds(ge=0)] = 3
    preemptions: Annotated[int, Bounds(ge=0)] | None = None


# The longest interval that podlift chooses between two saves.
LONGEST_PACED_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Value):
    """Times of automatic saves, and the checkpoints that are kept: `Checkpoints(every_steps=500, best="val_loss")`.

    See docs/how-to/checkpoints.md.

    Args:
        every_steps: Save after this many training steps; None leaves it to `every_s`.
        every_s: Save this many seconds after the last save; without `every_steps` also at ends of epochs, for at most 5%.
            "auto", which `every_steps` replaces: as often as saves cost 1% of the time, but at least every 5 minutes, and at
            most every 5 s, or 30 s in a bucket.
        keep_last: Newest checkpoints to keep. The best one, pinned ones and the ends of `fit` calls are kept too.
        best: Also keep the checkpoint with the best value of this metric. It is a metric of `fit`; "val_loss" is best when it
            is low; write "max:val_f1" or "min:val_cost" if the name does not show it.
        on_busy: Skip a checkpoint that is due while the last one is being written. "block" makes the training wait.
        auto: Save and restore `fit` without any code in the program.
        resume_from: Start from the state of another run. Its name or directory, or one of its checkpoints (`RUN@STEP`).
            Parameters and optimizer are taken over; the training itself starts from the beginning.
    """

    every_steps: Annotated[int, Bounds(ge=1)] | None = None
    every_s: Seconds | Literal["auto"] | None = "auto"
    keep_last: Annotated[int, Bounds(ge=1)] = 3
    best: Annotated[str, Validator(metric_text)] | None = None
    on_busy: Literal["skip", "block"] = "skip"
    auto: bool = True
    resume_from: Accepts[PathText | None, str | PurePath | None] = default(None)

    @property
    def is_paced(self) -> bool:
        """True if podlift chooses the interval while the run trains."""
        return self.every_s == "auto" and self.every_steps is None

    @property
    def seconds(self) -> float | None:
        """The interval, if it is a fixed one."""
        return None if isinstance(self.every_s, str) else self.every_s


def shortest_s(store: str) -> float:
    """Return the shortest interval that podlift chooses between two saves in a store."""
    return 30.0 if store.startswith("gs://") else 5.0


# Whole words of a metric's name: `previous_loss` has no IoU.
_HIGHER_IS_BETTER = {
    "acc", "accuracy", "auc", "auroc", "bleu", "f1", "f1score", "iou", "miou", "precision", "r2", "r2score", "recall",
}  # fmt: skip
_LOWER_IS_BETTER = {"cost", "error", "loss", "mae", "mse", "perplexity", "rmse"}


def _directions(name: str) -> tuple[bool, bool]:
    """Return whether a name has a word for a value that is better when it is high, and one for a value that is low."""
    whole = set(re.split(r"[^a-z0-9]+", name.lower().replace("io_u", "iou")))  # Keras names MeanIoU so
    words = {*whole, *(word.rstrip("0123456789") for word in whole)}
    return not words.isdisjoint(_HIGHER_IS_BETTER), not words.isdisjoint(_LOWER_IS_BETTER)


def shows_mode(best: str) -> bool:
    """Return whether a metric's name or its prefix shows if a high or a low value is better."""
    higher, lower = _directions(best)
    return ":" in best or higher != lower


def metric_and_mode(best: str) -> tuple[str, str]:
    """Return ("val_f1", "max") for "max:val_f1"."""
    mode, separator, name = best.partition(":")
    if separator:
        return name, mode
    higher, lower = _directions(best)
    return best, "max" if higher and not lower else "min"
