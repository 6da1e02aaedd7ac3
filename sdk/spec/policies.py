"""How a job is run: small values, each for one question. Frozen, checked at construction, JSON in and out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue

from ..hardware import accelerators
from .values import Texts, Value, as_text, text_or_texts


def _metric(value: str) -> str:
    mode, colon, name = value.partition(":")
    if colon and (mode not in ("min", "max") or not name):
        raise ValueError("a metric's name, or min:NAME, or max:NAME")
    return value


def _regions(value: Any) -> Any:
    named = tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value
    if not named:
        raise ValueError("must name one at least, such as us-central1")
    return named


def _accelerator(value: str) -> str:
    return accelerators.lookup(value).name


class Resources(Value):
    """How many tasks, and on which hardware. Every backend understands these.

    Args:
        workers: Number of training tasks, including the chief; at least 1.
        accelerator: Hardware of each task: a name from `podlift accelerators`.
        ps: Number of parameter servers, for ParameterServerStrategy, in addition to the workers.
        evaluator: Add one task outside the cluster that evaluates what the others save.
    """

    workers: Annotated[int, Field(ge=1, le=1000)] = 1
    accelerator: Annotated[str, AfterValidator(_accelerator)] = "cpu"
    ps: Annotated[int, Field(ge=0, le=1000)] = 0
    evaluator: bool = False


class Code(Value):
    """What is packaged and how it runs.

    Args:
        project: Folder to package; by default the nearest one above the entry that holds a pyproject.toml, requirements.txt
            or .git, else the script's own folder, or the current one for a module.
        include: Paths and patterns to package although a rule excludes them, relative to the project; folders outside the
            project too.
        exclude: Patterns of files not to package, as in a .gitignore.
        requirements: Where the requirements come from. "auto" reads uv.lock, requirements.txt or pyproject.toml of the
            project; "none" reads nothing; or the path of a requirements file, or a list of requirements.
        isolated: Run the tasks in a fresh environment that holds exactly the requirements, instead of the current one.
        keras: Which Keras `tf.keras` is. "auto" keeps TensorFlow's choice (Keras 3); "legacy" gives tf_keras.
        writes: Which tasks write the files that Keras saves. "chief": callbacks and `model.save` reach the path they name
            from the chief only; the other tasks write to a temporary folder. "all": every task writes to that path.
    """

    project: Annotated[str, BeforeValidator(as_text)] | None = None
    include: Texts = ()
    exclude: Texts = ()
    requirements: Annotated[str | tuple[str, ...], BeforeValidator(text_or_texts)] = "auto"
    isolated: bool = False
    keras: Literal["auto", "legacy"] = "auto"
    writes: Literal["chief", "all"] = "chief"


class Limits(Value):
    """How long things may take, and what they may cost.

    Args:
        timeout_s: Time limit of the whole run; None for no limit.
        max_steps: Number of training steps after which every `fit` ends and `ctx.should_stop()` is true, as a success; None
            for no limit.
        hang_s: Time without a finished batch, after the first one, that counts as a hang; None for no limit. A program that
            reports no batches is judged by its output and its CPU time.
        grace_s: Time between asking a task to stop and killing it.
        exit_wait_s: Time that a finished chief waits for the other tasks before they are stopped.
        max_cost_usd: Refuse a run that may cost more than this, in US dollars; None for no limit.
        allow_unknown_price: With `max_cost_usd`, start a run even if its price is not known.
    """

    timeout_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    max_steps: Annotated[int, Field(ge=1)] | None = None
    hang_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = 1800.0
    grace_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 5.0
    exit_wait_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 60.0
    max_cost_usd: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    allow_unknown_price: bool = False


class Retry(Value):
    """How often a run restarts by itself, by what ended the attempt.

    Args:
        user_errors: Number of restarts after an error in the program.
        infrastructure: Number of restarts after a task was killed, ran out of memory or hung, or its machine failed.
        preemptions: Number of restarts after a task received SIGTERM or exited with 75; None for no limit.
    """

    user_errors: Annotated[int, Field(ge=0)] = 0
    infrastructure: Annotated[int, Field(ge=0)] = 3
    preemptions: Annotated[int, Field(ge=0)] | None = None


class Checkpoints(Value):
    """When the state of a training is saved automatically, and which checkpoints are kept. See docs/how-to/checkpoints.md.

    Args:
        every_steps: Save after this many training steps; None leaves it to `every_s`.
        every_s: Save when this many seconds have passed since the last save; None leaves it to `every_steps`. Without
            `every_steps`, the end of an epoch is saved too, if that takes at most a twentieth of the time.
        keep_last: Number of newest checkpoints to keep, besides the best one, pinned ones and the ends of `fit` calls.
        best: Also keep the checkpoint of the epoch with the best value of this metric of `fit`. "val_loss" is best when it is
            low; write "max:val_f1" or "min:val_cost" if the name does not show it.
        on_busy: What happens to a checkpoint that is due while the last one is still being written. "skip" leaves it out;
            "block" makes the training wait.
        auto: Save and restore `fit` without a line of user code.
        resume_from: Start from the state of another run: its name or directory, or one of its checkpoints (`RUN@STEP`).
            Parameters and optimizer are taken over; the training itself starts from the beginning.
    """

    every_steps: Annotated[int, Field(ge=1)] | None = None
    every_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = 300.0
    keep_last: Annotated[int, Field(ge=1)] = 3
    best: Annotated[str, AfterValidator(_metric)] | None = None
    on_busy: Literal["skip", "block"] = "skip"
    auto: bool = True
    resume_from: Annotated[str, BeforeValidator(as_text)] | None = None


class Local(Value):
    """How a run on this machine behaves: `sdk.submit("train.py", workers=2, backend=Local(network="isolated"))`.

    Args:
        network: Network of the tasks. "host": they share this machine's network. "isolated": they run in a network namespace
            that holds only loopback, so that no other machine can reach TensorFlow's servers, which listen on every interface
            without authentication.
        start: How task processes start. "spawn": each task is a new Python process. "fork": all are forked from a process
            that has imported TensorFlow and Keras. "auto": "fork" on Linux if there are several tasks and nothing in the
            program speaks against it.
        cluster: Roles in the cluster. "chief" is what Vertex AI gives (one chief, the rest workers); "workers" gives only
            workers, for scripts in which task 0 of `worker` is the chief.
    """

    network: Literal["host", "isolated"] = "host"
    start: Literal["auto", "fork", "spawn"] = "auto"
    cluster: Literal["chief", "workers"] = "chief"


class Vertex(Value):
    """Where and how a run uses Vertex AI: `sdk.submit("train.py", backend=Vertex(project="my-project", bucket="my-bucket"))`.

    Args:
        project: Id of the Google Cloud project.
        regions: Regions to run in; the first one is tried first.
        bucket: Bucket for runs, as BUCKET or BUCKET/PREFIX, unless `root` names a place; the prefix is "podlift" by default.
        service_account: Service account of the program; by default Vertex AI's own agent.
        image: Container image; any image with Python and TensorFlow.
        machine: Machine type, instead of the one that the hardware table gives.
        disk_gb: Boot disk of each machine, in GB.
        provisioning: How machines are obtained. "standard"; "spot": cheaper machines that may be taken away at any time;
            "flex": waits until machines are free.
        labels: Labels of the jobs, in addition to podlift's own.
        raw: JSON merged into the request last, for fields that podlift does not know. A list is replaced as a whole, or one
            of its items by its number: `{"jobSpec": {"workerPoolSpecs": {"0": {...}}}}`; None removes.
    """

    project: Annotated[str, Field(min_length=1)] | None = None
    regions: Annotated[
        str | tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(text_or_texts),
        AfterValidator(_regions),
    ] = ("us-central1",)
    bucket: Annotated[str, Field(min_length=1)] | None = None
    service_account: Annotated[str, Field(min_length=1)] | None = None
    image: Annotated[str, Field(min_length=1)] | None = None
    machine: Annotated[str, Field(min_length=1)] | None = None
    disk_gb: Annotated[int, Field(ge=1)] = 100
    provisioning: Literal["standard", "spot", "flex"] = "standard"
    labels: dict[str, str] = Field(default_factory=dict)
    raw: dict[str, JsonValue] = Field(default_factory=dict)


# The value of each backend, by its name.
BACKENDS: dict[str, type[Local] | type[Vertex]] = {"local": Local, "vertex": Vertex}
