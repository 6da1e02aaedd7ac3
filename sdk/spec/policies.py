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
    """How many tasks, and on what.

    Args:
        workers: training tasks in all, the chief included; at least 1.
        accelerator: a name of the hardware table.
        ps: parameter servers, for ParameterServerStrategy, beside the workers.
        evaluator: one task more, outside of the cluster, that evaluates what the others save.
        provisioning: Vertex AI only. "spot": cheaper machines that may be taken away at any time. "flex": waits until
            machines are free.
        machine: Vertex AI only: a machine type, where the one that the hardware table gives is not wanted.
        disk_gb: Vertex AI only: the boot disk of each machine, in GB.
        cluster: "chief" is the shape that Vertex AI gives (one chief, the rest workers); "workers" gives workers only,
            for scripts that take task 0 of `worker` for the chief.
        network: local mode only. "host": tasks share this machine's network. "isolated": they run in a network
            namespace of their own that holds nothing but loopback, so that nobody outside can reach TensorFlow's servers,
            which listen on every interface without authentication.
    """

    workers: Annotated[int, Field(ge=1, le=1000)] = 1
    accelerator: Annotated[str, AfterValidator(_accelerator)] = "cpu"
    ps: Annotated[int, Field(ge=0, le=1000)] = 0
    evaluator: bool = False
    provisioning: Literal["standard", "spot", "flex"] = "standard"
    machine: Annotated[str, Field(min_length=1)] | None = None
    disk_gb: Annotated[int, Field(ge=1)] = 100
    cluster: Literal["chief", "workers"] = "chief"
    network: Literal["host", "isolated"] = "host"


class Code(Value):
    """What is packaged and how it runs.

    Args:
        project: the folder to package; by default the nearest one above the entry that holds a pyproject.toml,
            requirements.txt or .git, else the script's own folder, or the current one for a module.
        include: paths and patterns, relative to the project, of what is packaged although a rule leaves it out, and of
            folders outside the project that are packaged too.
        exclude: patterns, as in a .gitignore, of what is not packaged.
        requirements: "auto" reads uv.lock, requirements.txt or pyproject.toml of the project; "none" reads nothing; or the
            path of a requirements file, or a list of requirements.
        isolated: run the tasks in a fresh environment made of exactly the requirements, not in the current one.
        keras: "auto" leaves TensorFlow's choice alone (Keras 3); "legacy" gives `tf.keras` from tf_keras.
        writes: "chief": files that Keras writes (callbacks, `model.save`) reach the path they name from the chief only;
            the other tasks write to a temporary folder. "all": every task writes where it says.
        start: "spawn": every task is a Python of its own. "fork": all are forked from one that has imported TensorFlow and
            Keras. "auto": "fork" on Linux where there are several tasks, and nothing in the program speaks against it.
    """

    project: Annotated[str, BeforeValidator(as_text)] | None = None
    include: Texts = ()
    exclude: Texts = ()
    requirements: Annotated[str | tuple[str, ...], BeforeValidator(text_or_texts)] = "auto"
    isolated: bool = False
    keras: Literal["auto", "legacy"] = "auto"
    writes: Literal["chief", "all"] = "chief"
    start: Literal["auto", "fork", "spawn"] = "auto"


class Limits(Value):
    """How long things may take, and what they may cost.

    Args:
        timeout_s: the whole run, in seconds; None for no limit.
        max_steps: training steps, after which every `fit` ends and `ctx.should_stop()` is true, as a success; None for no
            limit.
        hang_s: how long no task may finish a batch, once one has, before the run counts as hung, in seconds; none for no
            limit. A program that reports no batches is judged by what it prints and by the CPU time that it takes.
        grace_s: between asking a task to stop and killing it, in seconds.
        exit_wait_s: how long a chief that is done waits for the other tasks to finish before they are stopped, in seconds.
        max_cost_usd: a run that may cost more is refused, in US dollars; None for no limit.
        allow_unknown_price: with `max_cost_usd`, start what has no known price all the same.
    """

    timeout_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    max_steps: Annotated[int, Field(ge=1)] | None = None
    hang_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = 1800.0
    grace_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 5.0
    exit_wait_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 60.0
    max_cost_usd: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    allow_unknown_price: bool = False


class Retry(Value):
    """How often a run starts again by itself, by who is to blame for the end of an attempt.

    Args:
        user: restarts after an error of the program.
        infrastructure: restarts after a task was killed, ran out of memory or hung, or what it runs on failed.
        preemption: restarts after somebody asked a task to stop (SIGTERM), or it left with 75; none for no limit.
    """

    user: Annotated[int, Field(ge=0)] = 0
    infrastructure: Annotated[int, Field(ge=0)] = 3
    preemption: Annotated[int, Field(ge=0)] | None = None


class Checkpoints(Value):
    """When the state of a training is saved by itself, and what is kept. See docs/how-to/checkpoints.md.

    Args:
        every_steps: save after this many training steps; None leaves it to `every_s`.
        every_s: save when that long has passed since the last time, in seconds; None leaves it to `every_steps`. Without
            `every_steps`, the end of an epoch is saved as well, where that takes at most a twentieth of the time.
        keep_last: how many of the newest are kept, beside the best one, pinned ones, and the ends of `fit`s.
        best: a metric of `fit`: the checkpoint of the epoch with its best value is kept too. "val_loss" is best when it is
            low; say "max:val_f1" or "min:val_cost" where the name does not tell.
        on_busy: "skip": a checkpoint that is due while the last one is still being written is left out. "block": the training
            waits for it.
        auto: protect `fit` without a line of user code.
        resume_from: start with the state of another run: its name or directory, or one checkpoint of it
            (`RUN@STEP`). Parameters and optimizer are taken over, the training itself begins.
    """

    every_steps: Annotated[int, Field(ge=1)] | None = None
    every_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = 300.0
    keep_last: Annotated[int, Field(ge=1)] = 3
    best: Annotated[str, AfterValidator(_metric)] | None = None
    on_busy: Literal["skip", "block"] = "skip"
    auto: bool = True
    resume_from: Annotated[str, BeforeValidator(as_text)] | None = None


class Vertex(Value):
    """Where on Vertex AI a run goes: `sdk.submit("train.py", backend=Vertex(project="my-project", bucket="my-bucket"))`.

    Args:
        project: the id of the Google Cloud project.
        regions: where to run; the first one is asked for first.
        bucket: where runs live, as BUCKET or BUCKET/PREFIX, unless `root` names a place; the prefix is "podlift" by default.
        service_account: whose permissions the program has; by default those of Vertex AI's own agent.
        image: the container image: anything with Python and TensorFlow.
        labels: of the jobs, beside podlift's own.
        raw: merged into the body of the request, last: what podlift has no field for. A list is replaced as a whole, or one
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
    labels: dict[str, str] = Field(default_factory=dict)
    raw: dict[str, JsonValue] = Field(default_factory=dict)
