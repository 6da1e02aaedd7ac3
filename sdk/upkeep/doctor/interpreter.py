"""Checks of Python and of the frameworks, which are imported in a separate process, as in a task."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from ...checks import TENSORFLOW_RANGE
from ...checks.check import Check, Level, bad, fine
from ...process import task_environment

PYTHON_RANGE = ((3, 10), (3, 13))
# TensorFlow has wheels for these; elsewhere it must be built.
_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
# Imports take seconds, with a cold disk or on a busy machine a minute.
_LIMIT_S = 180.0
# Reports each step as a line of JSON, so that a crash does not lose earlier answers.
_PROGRAM = """
import importlib, importlib.metadata, importlib.util, json, os
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def report(name, **found):
    print(json.dumps({"name": name, **found}), file=answers, flush=True)
def attempt(name, use):
    if importlib.util.find_spec(name) is None:
        return report(name, missing=True)
    report(name, begun=True)
    try:
        module = importlib.import_module(name)
        report(name, version=str(module.__version__), **use(module))
    except BaseException as error:
        words = (str(error).strip() or repr(error)).splitlines()
        report(name, error=f"{type(error).__name__}: {words[-1]}")
    else:
        return True
def compute(tf):
    return {"sum": float(tf.reduce_sum(tf.ones((2, 2))))}
attempt("numpy", lambda numpy: {})
if attempt("tensorflow", compute):
    try:
        report("tf_keras", version=importlib.metadata.version("tf_keras"))
    except importlib.metadata.PackageNotFoundError:
        report("tf_keras", missing=True)
    attempt("keras", lambda keras: {"backend": keras.backend.backend()})
"""


class _Answer(TypedDict, total=False):
    """The program's report about a module, until it ended."""

    missing: bool
    begun: bool
    version: str
    error: str
    sum: float
    backend: str


def python(version: tuple[int, int], executable: str) -> Check:
    low, high = (".".join(map(str, edge)) for edge in PYTHON_RANGE)
    message = f"{'.'.join(map(str, version))} ({executable})"
    if PYTHON_RANGE[0] <= version <= PYTHON_RANGE[1]:
        return fine("python", message)
    return bad("python", "error", f"{message} is outside {low} to {high}", f"use Python {high}")


def machine(system: str, architecture: str, libc: str) -> Check:
    """Judge the platform: `sys.platform`, `platform.machine()`, and glibc's version ("" for others)."""
    message = f"{system}, {architecture}{f', {libc}' if libc else ''}"
    if architecture.lower() not in _MACHINES:
        return bad(
            "machine", "warning", f"{message}: TensorFlow has no wheels for it", "use an x86_64 or arm64 machine"
        )
    if system == "linux" and not libc:
        message = f"{message}: TensorFlow has wheels for glibc only"
        return bad("machine", "warning", message, "use a distribution or image with glibc, such as Debian")
    if system != "linux":
        return bad("machine", "warning", f"{message}: only Linux is tested", "use Linux")
    return fine("machine", message)


def this_interpreter() -> list[Check]:
    libc = " ".join(platform.libc_ver()).strip()
    return [
        python(sys.version_info[:2], sys.executable),
        machine(sys.platform, platform.machine(), libc if "glibc" in libc else ""),
    ]


def frameworks(environ: Mapping[str, str], limit_s: float = _LIMIT_S) -> list[Check]:
    """Import numpy, TensorFlow and Keras as a task on a CPU would, and compute something, within `limit_s`."""
    task_env = {**task_environment.inherited(environ, ()), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    config = Path(task_env.get("HOME") or Path.home()) / ".keras" / "keras.json"
    answers, ended = _try(task_env, config, limit_s)
    chosen = _chosen(environ, task_env, config)
    missing = answers.get("tensorflow", {}).get("missing", False)
    checks = [] if missing else [_numpy(answers.get("numpy", {}), ended)]
    checks.append(_tensorflow(answers.get("tensorflow", {}), ended))
    # Another backend explains all errors of Keras.
    if not missing and not any(check.level == "error" for check in chosen):
        checks.append(_keras(answers.get("keras", {}), ended))
    return [*checks, *chosen, *_tf_keras(answers)]


def _try(task_env: Mapping[str, str], config: Path, limit_s: float) -> tuple[dict[str, _Answer], str]:
    """Return the program's report about each module, and how it failed, if it did."""
    ended, output = "", b""
    # Not in the current folder, which may have a numpy.py.
    with tempfile.TemporaryDirectory(prefix="podlift-") as nowhere:
        # Keras, and Matplotlib which it imports, write a missing configuration: keep it out of the user's home.
        with suppress(OSError):
            shutil.copy(config, nowhere)
        command, env = [sys.executable, "-c", _PROGRAM], {**task_env, "KERAS_HOME": nowhere, "MPLCONFIGDIR": nowhere}
        try:
            done = subprocess.run(command, cwd=nowhere, env=env, capture_output=True, timeout=limit_s, check=False)
            output = done.stdout
            if done.returncode < 0:
                ended = f"killed by {signal.Signals(-done.returncode).name}"
            elif done.returncode:
                ended = f"ended with exit code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            ended, output = f"not done after {limit_s:g} s", error.stdout or b""
        except OSError as error:
            ended = f"no process could be started ({error.strerror})"
    answers: dict[str, _Answer] = {}
    for line in output.splitlines():
        answer = json.loads(line)
        answers.setdefault(answer.pop("name"), {}).update(answer)
    return answers, ended


def _numpy(answer: _Answer, ended: str) -> Check:
    if "version" in answer:
        return fine("numpy", answer["version"])
    return _unusable("numpy", answer, ended, _pip("--force-reinstall", "numpy"))


def _tensorflow(answer: _Answer, ended: str) -> Check:
    low, high = TENSORFLOW_RANGE
    requirement = f"tensorflow>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
    if answer.get("missing"):
        return bad("tensorflow", "error", f"not installed for {sys.executable}", _pip("podlift[tf]"))
    if "version" not in answer:
        fix = _pip("--force-reinstall", requirement)
        if "SIGILL" in ended:
            fix = "use a machine with AVX in its processor: TensorFlow's wheels need it"
        return _unusable("tensorflow", answer, ended, fix)
    if answer["sum"] != 4.0:
        message = f"{answer['version']} computes 1 + 1 + 1 + 1 = {answer['sum']}"
        return bad("tensorflow", "error", message, _pip("--force-reinstall", requirement))
    if not low <= _release(answer["version"]) <= high:
        message = (
            f"{answer['version']} is outside {low[0]}.{low[1]} to {high[0]}.{high[1]}, which podlift is tested with"
        )
        return bad("tensorflow", "warning", message, _pip(requirement))
    return fine("tensorflow", f"{answer['version']} computes")


def _keras(answer: _Answer, ended: str) -> Check:
    if not answer:
        return bad("keras", "note", "not tried without TensorFlow", "see tensorflow")
    if answer.get("missing"):
        return bad("keras", "error", "not installed", _pip("keras>=3"))
    if "version" not in answer:
        return _unusable("keras", answer, ended, _pip("--force-reinstall", "keras"))
    if _release(answer["version"]) < (3, 0):
        return bad("keras", "error", f"{answer['version']} is not Keras 3, which tf.keras is", _pip("keras>=3"))
    if answer["backend"] != "tensorflow":
        message = f"{answer['version']} computes with {answer['backend']!r}, not with TensorFlow"
        return bad("keras", "error", message, "export KERAS_BACKEND=tensorflow")
    return fine("keras", f"{answer['version']} on tensorflow")


def _tf_keras(answers: Mapping[str, _Answer]) -> list[Check]:
    version, tensorflow = answers.get("tf_keras", {}).get("version"), answers.get("tensorflow", {}).get("version")
    if tensorflow is None:
        return []
    major, minor = _release(tensorflow)
    fix = _pip(f"tf_keras=={major}.{minor}.*")
    if version is None:
        return [bad("tf_keras", "note", "not installed, so there is no --code-keras legacy", fix)]
    if _release(version) != (major, minor):
        return [bad("tf_keras", "warning", f"{version} is not made for TensorFlow {tensorflow}", fix)]
    return [fine("tf_keras", version)]


def _chosen(environ: Mapping[str, str], task_env: Mapping[str, str], config: Path) -> list[Check]:
    """Check the variable and the file that choose Keras's backend; the variable has precedence."""
    checks = []
    chosen = environ.get("KERAS_BACKEND") or "tensorflow"
    if chosen != "tensorflow":
        level: Level = "error" if "KERAS_BACKEND" in task_env else "warning"
        message = f"KERAS_BACKEND is {chosen!r}" + ("" if level == "error" else " here, but tasks do not see it")
        checks.append(bad("keras", level, message, "unset KERAS_BACKEND"))
    try:
        named = json.loads(config.read_bytes()).get("backend", "tensorflow")
    except FileNotFoundError:
        return checks
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        message = f"{config} cannot be read: {error}"
        return [*checks, bad("keras", "warning", message, f"repair or remove {config}")]
    if named != "tensorflow":
        message = f"{config} chooses the backend {named!r}"
        checks.append(bad("keras", "error", message, f'set "backend": "tensorflow" in {config}'))
    return checks


def _unusable(name: str, answer: _Answer, ended: str, fix: str) -> Check:
    if ended.startswith("not done") and "error" not in answer:
        message = f"the import was {ended}: this machine is busy, or reads the packages for the first time"
        return bad(name, "warning", message, "run podlift doctor again")
    return bad(name, "error", answer.get("error") or f"cannot be imported: {ended or 'unknown reason'}", fix)


def _release(version: str) -> tuple[int, int]:
    parts = re.match(r"(\d+)\.(\d+)", version)
    return (int(parts[1]), int(parts[2])) if parts else (0, 0)


def _pip(*words: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *words])
