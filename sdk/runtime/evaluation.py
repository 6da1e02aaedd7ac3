"""Evaluates models with a function of the project, one after the other, in a separate process.

The process has the program's packages and code, and nothing of the training: no cluster, no memory of an accelerator, no state
of TensorFlow. It may crash: the results so far are in files.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import posixpath
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

from .. import logs
from ..errors import nearest
from ..job.payload import Payload
from ..job.wire import decode
from ..model_registry.decision import Evaluation
from ..process import spawn
from ..records import exits
from ..storage import own_folders, posix, trees
from ..storage.emulator import mask_token
from ..text import and_more, duration
from ..tracebacks import one_line
from . import bootstrap, import_guard, secret_values, task_main
from .unpack import unpack

_log = logs.logger("runtime")
# Its process would wait for the other tasks of a cluster.
_OF_CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC")
_NAMED, _POLL_S = 10, 0.02
NOT_DONE = "was not done after"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The models to evaluate; `home` takes the copy of the code and the results."""

    function: str  # module:function
    models: tuple[str, ...]  # folders
    data: str
    home: str

    def result(self, index: int) -> str:
        return posixpath.join(self.home, f"{index}.json")


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """How the process of an evaluation is started; by default as a child of the last phase, which it inherits all from."""

    env: Mapping[str, str] = field(default_factory=dict)  # more variables
    output: int | None = None  # file descriptors
    errors: int | None = None
    limit_s: float = math.inf  # after this time it is killed


INHERITED = ProcessOptions()


def evaluate(payload_path: str, task: str, request: Request, options: ProcessOptions = INHERITED) -> list[Evaluation]:
    """Evaluate the models in a new process, and return the result for each."""
    own_folders.discard(*posixpath.split(request.home), private=False)
    Path(request.home).mkdir(parents=True)
    about = posixpath.join(request.home, "request.json")
    Path(about).write_text(json.dumps(asdict(request)))
    command = [sys.executable, str(Path(task_main.__file__)), payload_path, task, "evaluation", about]
    env = {name: value for name, value in os.environ.items() if name not in _OF_CLUSTERS}
    env |= {**options.env, "PODLIFT_PARENT": str(os.getpid())}
    # The last phase is ended with all its processes, so that its process stays in its group.
    alone, until = options is not INHERITED, time.monotonic() + options.limit_s
    no, output, errors = subprocess.DEVNULL, options.output, options.errors
    process = subprocess.Popen(
        command, env=env, cwd=request.home, stdin=no, stdout=output, stderr=errors, start_new_session=alone
    )
    try:
        while not (done := spawn.has_exited(process)) and time.monotonic() < until:
            time.sleep(_POLL_S)
    finally:
        # Before it is reaped: until then no other group can have its number.
        (spawn.end_group if alone else subprocess.Popen.kill)(process)
        _, why = exits.describe(process.wait(), exits.OutOfMemory.UNKNOWN)
    why = why if done else f"{NOT_DONE} {duration(options.limit_s)}"
    return [_read_result(request.result(index), f"Its process {why}") for index in range(len(request.models))]


def _read_result(path: str, otherwise: str) -> Evaluation:
    try:
        return decode(Evaluation, json.loads(Path(path).read_bytes()))
    except FileNotFoundError:
        return Evaluation(problem=otherwise)


def main(payload_path: str, task: str, home: str, about: str) -> int:
    """Evaluate each model of the request, and write its result at once."""
    bootstrap.die_with_parent()
    logs.start()
    payload = Payload.from_json(Path(payload_path).read_bytes())
    request = decode(Request, json.loads(Path(about).read_bytes()))
    # Now: the program may remove them from its environment.
    secrets = secret_values.words(os.environ, payload.copied)
    work = Path(request.home, "code")
    unpack(Path(payload.bundle), payload.digest, work)
    (work / payload.cwd).mkdir(parents=True, exist_ok=True)
    os.chdir(work / payload.cwd)
    bootstrap.set_path(payload, work, home)
    import_guard.install(payload.source_dirs, work)
    sys.argv = [request.function]
    function: Callable[[str, str], object] | None = None
    problem = ""
    try:
        function = _function(request.function)
    except BaseException as error:
        problem = _problem(error, work)
    for index, folder in enumerate(request.models):
        result = Evaluation(problem=problem) if function is None else measured(function, folder, request.data, work)
        masked_result = replace(result, problem=secret_values.hidden(mask_token(result.problem), secrets))
        posix.put_passing(request.result(index), json.dumps(asdict(masked_result)).encode())
    return 0


def _function(name: str) -> Callable[[str, str], object]:
    module, _, function = name.partition(":")
    member: Any = getattr(importlib.import_module(module), function, None)
    if callable(member):
        return member  # type: ignore[no-any-return]
    functions = [key for key, value in vars(sys.modules[module]).items() if callable(value) and not key.startswith("_")]
    what = f"The module {module!r} has no function {function!r}." if member is None else f"{name} is not a function."
    raise LookupError(f"{what} {nearest(function, functions) if functions else ''}".rstrip())


def measured(function: Callable[[str, str], object], folder: str, data: str, work: Path) -> Evaluation:
    """Call the function of the code in `work` for one model, and return its numbers or the problem."""
    # It may write to the folder.
    files = sorted(trees.walk(folder).files)
    try:
        return checked(function(folder, data))
    except BaseException as error:  # also SystemExit: it is the project's code
        has = (
            f"The folder of the model has {and_more(files, _NAMED)}." if files else "The folder of the model is empty."
        )
        return Evaluation(problem=f"{_problem(error, work).rstrip('.')}. {has}")


def checked(returned: object) -> Evaluation:
    """Return the result of a function as numbers by name, or its mistake. NaN and infinity are numbers."""
    if not isinstance(returned, Mapping):
        return Evaluation(problem=f"It returned {_kind(returned)} instead of numbers by name.")
    wrong = [f"{name!r}: {_kind(value)}" for name, value in returned.items() if _number(value) is None]
    wrong += [f"{name!r} is no text" for name in returned if not isinstance(name, str)]
    if wrong or not returned:
        return Evaluation(problem=f"It returned no numbers by name: {', '.join(wrong[:_NAMED]) or 'an empty dict'}.")
    return Evaluation(metrics={str(name): _number(value) or 0.0 for name, value in returned.items()})


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    # Also numbers of NumPy, and tensors and arrays with one element.
    if not isinstance(value, Real) and not (hasattr(value, "dtype") and getattr(value, "shape", None) == ()):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "None"


def _problem(error: BaseException, work: Path) -> str:
    traceback.print_exception(error)
    message = f"{type(error).__name__}: {one_line(str(error))}" if str(error) else type(error).__name__
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    own = [f"{Path(file).relative_to(work)}:{line}" for file, line in frames if Path(file).is_relative_to(work)]
    return f"{own[-1]}: {message}" if own else message
