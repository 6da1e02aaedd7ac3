"""Evaluates models with a function of the project, one after the other, in a separate process.

The process has the program's packages and code, and nothing of the training: no cluster, no memory of an accelerator, no state
of TensorFlow. It may crash: the results so far are in files.
"""

from __future__ import annotations

import importlib
import json
import os
import posixpath
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from .. import logs
from ..errors import nearest
from ..job.payload import Payload
from ..job.wire import decode
from ..model_registry.decision import Evaluation
from ..records import exits
from ..storage import own_folders, posix
from ..storage.emulator import mask_token
from ..tracebacks import one_line
from . import bootstrap, import_guard, secret_values, task_main
from .unpack import unpack

_log = logs.logger("runtime")
# Its process would wait for the other tasks of a cluster.
_OF_CLUSTERS = ("TF_CONFIG", "CLUSTER_SPEC")
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Request:
    """The models to evaluate; `home` takes the copy of the code and the results."""

    function: str  # module:function
    models: tuple[str, ...]  # folders
    data: str
    home: str

    def result(self, index: int) -> str:
        return posixpath.join(self.home, f"{index}.json")


def evaluate(payload_path: str, task: str, request: Request) -> list[Evaluation]:
    """Evaluate the models in a new process, and return the result for each."""
    own_folders.discard(*posixpath.split(request.home), private=False)
    Path(request.home).mkdir(parents=True)
    about = posixpath.join(request.home, "request.json")
    Path(about).write_text(json.dumps(asdict(request)))
    command = [sys.executable, str(Path(task_main.__file__)), payload_path, task, "evaluation", about]
    env = {name: value for name, value in os.environ.items() if name not in _OF_CLUSTERS}
    process = subprocess.Popen(command, env={**env, "PODLIFT_PARENT": str(os.getpid())}, cwd=request.home)
    code = process.wait()
    _, why = exits.describe(code, exits.OutOfMemory.UNKNOWN)
    return [_found(request.result(index), f"Its process {why}") for index in range(len(request.models))]


def _found(path: str, otherwise: str) -> Evaluation:
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
        problem = _problem(error)
    for index, folder in enumerate(request.models):
        result = Evaluation(problem=problem) if function is None else measured(function, folder, request.data)
        kept = replace(result, problem=secret_values.hidden(mask_token(result.problem), secrets))
        posix.put_passing(request.result(index), json.dumps(asdict(kept)).encode())
    return 0


def _function(name: str) -> Callable[[str, str], object]:
    module, _, function = name.partition(":")
    made: Any = getattr(importlib.import_module(module), function, None)
    if callable(made):
        return made  # type: ignore[no-any-return]
    functions = [key for key, value in vars(sys.modules[module]).items() if callable(value) and not key.startswith("_")]
    what = f"The module {module!r} has no function {function!r}." if made is None else f"{name} is not a function."
    raise LookupError(f"{what} {nearest(function, functions) if functions else ''}".rstrip())


def measured(function: Callable[[str, str], object], folder: str, data: str) -> Evaluation:
    """Call the function for one model, and return its numbers or its error."""
    try:
        return checked(function(folder, data))
    except BaseException as error:  # also SystemExit: it is the project's code
        return Evaluation(problem=_problem(error))


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


def _problem(error: BaseException) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {one_line(str(error))}" if str(error) else type(error).__name__
