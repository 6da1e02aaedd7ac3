"""A Job: the program and its options, as small values. Frozen, checked at construction, JSON in and out."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Annotated, Any, Literal

from .. import ids
from ..text import SHOWN, shown
from .gates import Gate
from .policies import Checkpoints, Code, Limits, Resources, Retry
from .secrets import Secret
from .values import Accepts, PathText, Validator, Value, as_text, default, is_utf8

JsonArgs = list[Any] | dict[str, Any] | None

# Python neither writes nor reads longer ones as text.
_MAX_DIGITS = 4300
_TOO_LARGE = 10**_MAX_DIGITS
_MAX_DEPTH = 100

_COPIED = {"from_caller": True}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set by podlift or by Vertex AI for every task: a job that sets them itself would pass here and fail there.
_RESERVED_ENV = re.compile(
    r"TF_CONFIG|CLUSTER_SPEC|CLOUD_ML_.*|AIP_.*|PODLIFT_.*|TF_GRPC_REUSE_PORT|TPU_CONFIG|TPU_NODE_NAME|CMLE_.*"
)


def _json_args(value: object) -> object:
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


def _not_json(value: object, path: str, above: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    """Return (path, description) of all below `value` that JSON cannot carry; `above` are ids of the containers around it."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return [(path, reason)] if (reason := _unfit(value)) else []
    if not isinstance(value, (list, tuple, dict)):
        return [(path, f"a {type(value).__module__}.{type(value).__qualname__}")]
    if id(value) in above:
        return [(path, "a container that holds itself")]
    if len(above) == _MAX_DEPTH:
        return [(path[:SHOWN], f"nested more than {_MAX_DEPTH} levels deep")]
    above = (*above, id(value))
    if isinstance(value, dict):
        keys = [(path, f"keyed by {shown(key)}, not a string") for key in value if not isinstance(key, str)]
        return keys + [bad for key, item in value.items() for bad in _not_json(item, f"{path}[{shown(key)}]", above)]
    return [bad for i, item in enumerate(value) for bad in _not_json(item, f"{path}[{i}]", above)]


# Of a process on Linux, in bytes: MAX_ARG_STRLEN with its final NUL; a quarter of the usual stack, less its other contents.
_MAX_VARIABLE, _MAX_VARIABLES = 128 * 1024, 1_900_000


def _unfit(value: str | float | None) -> str:
    """Return why JSON cannot hold a plain value, "" if it can."""
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


@dataclass(frozen=True, kw_only=True)
class FromCaller(Value):
    """Stands for the caller's own value of an environment variable: copied when the run starts, stored nowhere.

    Usage: `Job("train.py", env={"WANDB_API_KEY": FromCaller()})`
    """

    from_caller: Literal[True] = True


# FromCaller comes last: it has no field that must be there when it is read from JSON.
Variable = str | Secret | FromCaller
Environment = dict[str, Variable]


def _environment_values(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    variables = {name: _variable(item) for name, item in value.items()}
    bad = [repr(name) for name, item in variables.items() if item is None]
    if bad:
        raise ValueError(
            f"the value of {', '.join(bad)} must be a text, FromCaller() for the caller's own, or "
            'Secret("projects/PROJECT/secrets/SECRET")'
        )
    return variables


def _variable(item: object) -> Variable | None:
    """Return a variable, also from JSON; None if the value is not a variable."""
    if isinstance(item, (str, FromCaller, Secret)):
        return item
    if item == _COPIED:
        return FromCaller()
    if isinstance(item, dict) and "name" in item and item.keys() <= {"name", "file"}:
        return Secret(**item)
    return None


def _environment(value: Environment) -> Environment:
    problems = []
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name):
            problems.append(f"{name!r} is not a name: letters, digits and underscores, no digit first")
        elif _RESERVED_ENV.fullmatch(name):
            problems.append(f"{name!r} is set by podlift for each task: choose another name")
        if isinstance(text, str) and "\0" in text:
            problems.append(f"the value of {name!r} holds a NUL character, which no variable can")
        if isinstance(text, str) and not is_utf8(text):
            problems.append(
                f"the value of {name!r} holds bytes that are not UTF-8, and is stored as text: give FromCaller() (--env "
                f"{name}), which passes the variable of this shell as it is, or encode it"
            )
    texts = {name: text for name, text in value.items() if isinstance(text, str)}
    sizes = {name: len(f"{name}={text}".encode(errors="surrogatepass")) for name, text in texts.items()}
    problems += [
        f"{name!r} has {size} bytes, and Linux takes {_MAX_VARIABLE - 1} at most: put the value into a file of the project"
        for name, size in sizes.items()
        if size >= _MAX_VARIABLE
    ]
    if not problems and sum(sizes.values()) > _MAX_VARIABLES:
        problems.append(
            f"the variables have {sum(sizes.values())} bytes together, and Linux takes {_MAX_VARIABLES} with little room "
            "to spare: put the values into files of the project"
        )
    if problems:
        raise ValueError("; ".join(problems))
    return value


def _inputs(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    bad = [repr(name) for name in value if not (isinstance(name, str) and _ENV_NAME.fullmatch(name))]
    if bad:
        raise ValueError(f"{', '.join(bad)}: an input's name is letters, digits and underscores, no digit first")
    return {name: as_text(path) for name, path in value.items()}


@dataclass(frozen=True, kw_only=True)
class Job(Value):
    """A training program and how to run it: `sdk.submit(Job("train.py", args=["--epochs", "3"], limits=Limits(max_steps=20)))`.

    Args:
        entry: Program to run. The path of a script, of a notebook or of a folder with a `__main__.py`, `package.module`, or
            `package.module:function`.
        args: Arguments of the program, as JSON. A list is argv; a dict is keyword arguments of a function, or `--key value`
            of a script.
        env: Environment variables of every task. Texts are stored with the run: for a secret give `FromCaller()`, which
            stores the name only, or a `Secret`.
        inputs: Data by name. A path, `gs://...` or any URL that fsspec opens; the program finds it as `ctx.inputs[name]`.
        resources: number of tasks, and their hardware.
        code: packaging of the program, and its environment.
        limits: limits on time, steps and cost.
        retry: number of automatic restarts, by cause.
        checkpoints: times of automatic saves, and the checkpoints that are kept.
        model: Name of the model in the registry. The run's model is registered as a version of it when the program has
            succeeded. By default the name of the schedule or of the run, if there is a gate or a warm start, else none.
        warm_start: Begin with the weights of a registered version of the model. "champion": the champion; "last": the newest
            version. Optimizer and steps start from the beginning; without a version, the weights do too.
        gate: conditions for the promotion of the run's model.

    Raises:
        InputError: every mistake in one error.
    """

    entry: PathText = field(kw_only=False)
    args: Annotated[JsonArgs, Validator(_json_args, before=True)] = None
    env: Accepts[
        Annotated[Environment, Validator(_environment_values, before=True), Validator(_environment)],
        Mapping[str, Variable],
    ] = default(field(default_factory=dict))
    inputs: Accepts[Annotated[dict[str, str], Validator(_inputs, before=True)], Mapping[str, str | PurePath]] = default(
        field(default_factory=dict)
    )
    resources: Accepts[Resources, Resources | Mapping[str, object]] = default(field(default_factory=Resources))
    code: Accepts[Code, Code | Mapping[str, object]] = default(field(default_factory=Code))
    limits: Accepts[Limits, Limits | Mapping[str, object]] = default(field(default_factory=Limits))
    retry: Accepts[Retry, Retry | Mapping[str, object]] = default(field(default_factory=Retry))
    checkpoints: Accepts[Checkpoints, Checkpoints | Mapping[str, object]] = default(field(default_factory=Checkpoints))
    model: Annotated[str, Validator(ids.check_name)] | None = None
    warm_start: Literal["champion", "last"] | None = None
    gate: Accepts[Gate, Gate | Mapping[str, object]] = default(field(default_factory=Gate))

    @property
    def copied(self) -> list[str]:
        """The names of the environment variables that are copied from the caller."""
        return [name for name, value in self.env.items() if isinstance(value, FromCaller)]

    @property
    def secrets(self) -> dict[str, Secret]:
        """The environment variables with a value in Secret Manager."""
        return {name: value for name, value in self.env.items() if isinstance(value, Secret)}

    @property
    def callers(self) -> list[str]:
        """The names of the variables that a run on the caller's machine takes from its environment."""
        return [*self.copied, *(name for name, secret in self.secrets.items() if secret.file is None)]

    def argv(self) -> list[str]:
        """Return `args` as the words after a script's name: `Job("train.py", args={"epochs": 3}).argv()`.

        A dict becomes `--key value`: True a bare `--key`, False and None nothing, a list `--key a b`, a dict its JSON, and
        a value that looks like an option `--key=-1e-05`.
        """
        return words_of(self.args) if isinstance(self.args, dict) else [str(item) for item in self.args or []]


def words_of(args: Mapping[str, object]) -> list[str]:
    """Return keywords as the words after a script's name, see `Job.argv`."""
    words: list[str] = []
    for key, value in args.items():
        if value is None or value is False:
            continue
        if isinstance(value, list):
            words += [f"--{key}", *map(_word, value)]
        elif value is True:
            words.append(f"--{key}")
        else:
            word = _word(value)
            # argparse takes -1e-05 for an option.
            words += [f"--{key}={word}"] if _LIKE_AN_OPTION.match(word) else [f"--{key}", word]
    return words


_LIKE_AN_OPTION = re.compile(r"-(?!\d+$|\d*\.\d+$)")


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
