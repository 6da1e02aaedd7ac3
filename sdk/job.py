"""What the user wants: a Job and its policy values. Frozen, checked at construction, JSON in and out.

Usage: `Job("train.py", args=["--epochs", "3"], resources=Resources(workers=2))`
"""

from __future__ import annotations

import json
import math
import re
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from . import accelerators
from .errors import InputError, nearest

JsonArgs = list[Any] | dict[str, Any] | None

# Python neither writes nor reads longer ones as text.
_MAX_DIGITS = 4300
_TOO_LARGE = 10**_MAX_DIGITS
_MAX_DEPTH = 100
_SHOWN = 300

_COPIED = {"from_caller": True}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set by podlift or by Vertex AI for every task: a job that sets them itself would pass here and fail there.
_RESERVED_ENV = re.compile(
    r"TF_CONFIG|CLUSTER_SPEC|CLOUD_ML_.*|AIP_.*|PODLIFT_.*|TF_GRPC_REUSE_PORT|TPU_CONFIG|TPU_NODE_NAME|CMLE_.*"
)


def _json_args(value: Any) -> Any:
    if not isinstance(value, (list, tuple, dict, type(None))):
        raise ValueError("a list is argv, a dict is keyword arguments")
    bad = [f"{path or 'args'} is {what}" for path, what in _not_json(value, "")]
    if bad:
        raise ValueError(f"only JSON can travel to another machine: {'; '.join(bad)}")
    if isinstance(value, (list, tuple)):
        nested = [repr(item) for item in value if not isinstance(item, (str, int, float)) or isinstance(item, bool)]
        if nested:
            raise ValueError(f"an argv holds strings and numbers, not {', '.join(nested)}: use a dict for values")
        return list(value)
    return value


def _not_json(value: Any, path: str, above: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    """Return (path, description) of everything below `value` that JSON cannot carry without loss.

    Args:
        value: anything.
        path: where it lies.
        above: ids of the containers that it lies in.
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return [(path, reason)] if (reason := _unfit(value)) else []
    if not isinstance(value, (list, tuple, dict)):
        return [(path, f"a {type(value).__module__}.{type(value).__qualname__}")]
    if id(value) in above:
        return [(path, "a container that holds itself")]
    if len(above) == _MAX_DEPTH:
        return [(path[:_SHOWN], f"nested more than {_MAX_DEPTH} levels deep")]
    above = (*above, id(value))
    if isinstance(value, dict):
        keys = [(path, f"keyed by {_shown(key)}, not a string") for key in value if not isinstance(key, str)]
        return keys + [bad for key, item in value.items() for bad in _not_json(item, f"{path}[{_shown(key)}]", above)]
    return [bad for i, item in enumerate(value) for bad in _not_json(item, f"{path}[{i}]", above)]


def _unfit(value: str | float | None) -> str:
    """Return what keeps a plain value out of JSON, "" when nothing does."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{value!r}, which UTF-8 cannot hold"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"{value!r}, which JSON does not know"
    elif isinstance(value, int) and abs(value) >= _TOO_LARGE:
        return f"an integer of more than {_MAX_DIGITS} digits"
    return ""


def _environment_values(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    bad = [repr(name) for name, item in value.items() if not isinstance(item, (str, FromCaller)) and item != _COPIED]
    if bad:
        raise ValueError(f"the value of {', '.join(bad)} must be a text, or FromCaller() for the caller's own")
    return {name: FromCaller() if item == _COPIED else item for name, item in value.items()}


def _environment(value: dict[str, str | FromCaller]) -> dict[str, str | FromCaller]:
    problems = []
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name):
            problems.append(f"{name!r} is not a name: letters, digits and underscores, no digit first")
        elif _RESERVED_ENV.fullmatch(name):
            problems.append(f"{name!r} is set by podlift for each task: choose another name")
        if isinstance(text, str) and "\0" in text:
            problems.append(f"the value of {name!r} holds a NUL character, which no variable can")
    if problems:
        raise ValueError("; ".join(problems))
    return value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("must be a list of texts")
    return tuple(_text(item) for item in value) if isinstance(value, (list, tuple)) else value


def _requirements(value: Any) -> Any:
    return _text(value) if isinstance(value, (str, PurePath)) else _texts(value)


def _inputs(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    bad = [repr(name) for name in value if not (isinstance(name, str) and _ENV_NAME.fullmatch(name))]
    if bad:
        raise ValueError(f"{', '.join(bad)}: an input's name is letters, digits and underscores, no digit first")
    return {name: _text(place) for name, place in value.items()}


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


def _accelerator(value: str) -> str:
    return accelerators.lookup(value).name


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(_sentences(error, type(self))) from None


class Resources(_Value):
    """How many tasks, and on what.

    Args:
        workers: training tasks in all, the chief included; at least 1.
        accelerator: a name of the hardware table.
        cluster: "chief" is the shape that Vertex AI gives (one chief, the rest workers); "workers" gives workers only,
            for scripts that take task 0 of `worker` for the chief.
        network: local mode only. "host": tasks share this machine's network. "isolated": they run in a network
            namespace of their own that holds nothing but loopback, so that nobody outside can reach TensorFlow's servers,
            which listen on every interface without authentication.
    """

    workers: Annotated[int, Field(ge=1, le=1000)] = 1
    accelerator: Annotated[str, AfterValidator(_accelerator)] = "cpu"
    cluster: Literal["chief", "workers"] = "chief"
    network: Literal["host", "isolated"] = "host"


class Code(_Value):
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

    project: Annotated[str, BeforeValidator(_text)] | None = None
    include: Texts = ()
    exclude: Texts = ()
    requirements: Annotated[str | tuple[str, ...], BeforeValidator(_requirements)] = "auto"
    isolated: bool = False
    keras: Literal["auto", "legacy"] = "auto"
    writes: Literal["chief", "all"] = "chief"
    start: Literal["auto", "fork", "spawn"] = "auto"


class Limits(_Value):
    """How long things may take.

    Args:
        timeout_s: the whole run, in seconds; None for no limit.
        max_steps: training steps, after which every `fit` ends and `ctx.should_stop()` is true, as a success; None for no
            limit.
        hang_s: how long no task may finish a batch, once one has, before the run counts as hung, in seconds; none for no
            limit. A program that reports no batches is judged by what it prints and by the CPU time that it takes.
        grace_s: between asking a task to stop and killing it, in seconds.
        exit_wait_s: how long a chief that is done waits for the other tasks to finish before they are stopped, in seconds.
    """

    timeout_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = None
    max_steps: Annotated[int, Field(ge=1)] | None = None
    hang_s: Annotated[float, Field(gt=0, strict=False, allow_inf_nan=False)] | None = 1800.0
    grace_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 5.0
    exit_wait_s: Annotated[float, Field(ge=0, strict=False, allow_inf_nan=False)] = 60.0


class Retry(_Value):
    """How often a run starts again by itself, by who is to blame for the end of an attempt.

    Args:
        user: restarts after an error of the program.
        infrastructure: restarts after a task was killed, ran out of memory or hung, or what it runs on failed.
        preemption: restarts after somebody asked a task to stop (SIGTERM), or it left with 75; none for no limit.
    """

    user: Annotated[int, Field(ge=0)] = 0
    infrastructure: Annotated[int, Field(ge=0)] = 3
    preemption: Annotated[int, Field(ge=0)] | None = None


class FromCaller(_Value):
    """Stands for the caller's own value of an environment variable: copied when the run starts, stored nowhere.

    Usage: `Job("train.py", env={"WANDB_API_KEY": FromCaller()})`
    """

    from_caller: Literal[True] = True


class Job(_Value):
    """A training program and how to run it.

    Args:
        entry: a script's path, a notebook's, a folder's with a `__main__.py`, `package.module`, or
            `package.module:function`.
        args: a list is argv; a dict is keyword arguments of a function, or `--key value` of a script. JSON only.
        env: environment variables of every task. Texts are stored with the run: for a secret give `FromCaller()`, which
            stores the name only.
        inputs: data by name: a path, `gs://...` or any URL that fsspec opens; the program finds it as `ctx.inputs[name]`.
        resources: how many tasks, on what.
        code: what is packaged, how it runs.
        limits: how long things may take.
        retry: how often the run starts again by itself.

    Raises:
        InputError: every mistake in one error.
    """

    entry: Annotated[str, BeforeValidator(_text)]
    args: Annotated[JsonArgs, BeforeValidator(_json_args)] = None
    env: Annotated[dict[str, str | FromCaller], BeforeValidator(_environment_values), AfterValidator(_environment)] = (
        Field(default_factory=dict)
    )
    inputs: Annotated[dict[str, str], BeforeValidator(_inputs)] = Field(default_factory=dict)
    resources: Resources = Resources()
    code: Code = Code()
    limits: Limits = Limits()
    retry: Retry = Retry()

    def __init__(self, entry: str, **data: Any) -> None:
        super().__init__(entry=entry, **data)

    def argv(self) -> list[str]:
        """Return `args` as the words behind a script's name.

        A dict becomes `--key value`: True a bare `--key`, False and None nothing, a list `--key a b`, a dict its JSON.
        """
        if not isinstance(self.args, dict):
            return [str(item) for item in self.args or []]
        words: list[str] = []
        for key, value in self.args.items():
            if value is None or value is False:
                continue
            words.append(f"--{key}")
            if isinstance(value, list):
                words += [_word(item) for item in value]
            elif value is not True:
                words.append(_word(value))
        return words


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _sentences(error: ValidationError, model: type[BaseModel]) -> list[str]:
    return [sentence for item in error.errors() for sentence in _sentence(dict(item), model)]


def _sentence(item: dict[str, Any], model: type[BaseModel]) -> tuple[str, ...]:
    path = [str(part) for part in item["loc"] if not str(part).startswith(("list[", "dict[", "constrained-", "float"))]
    where = ".".join(path)
    if item["type"] == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        return (f"{owner.__name__} has no field {path[-1]!r}. {nearest(path[-1], list(owner.model_fields))}",)
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause.problems
    said = str(cause) if cause else item["msg"].replace("Input should be", "Must be")
    # The environment's values may be secrets, and URLs may hold some: their sentences give names only.
    silent = item["type"] == "missing" or path[:1] in (["env"], ["inputs"])
    return (f"{where}: {said.rstrip('.')}." + ("" if silent else f" Received: {_shown(item['input'])}."),)


def _shown(value: Any) -> str:
    """Return how a value is written, cut to what fits into a sentence; its type where it cannot be written."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__qualname__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        annotation = model.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model
