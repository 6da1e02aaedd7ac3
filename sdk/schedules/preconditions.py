"""Preconditions of a firing: whether there is anything to do. A slot with an unmet precondition is SKIPPED.

They are texts: `min_new_examples(INPUT, N)`, `data_changed(INPUT)`, `older_than(DURATION)`, or `module:function` of the
schedule's own code, which is called in a separate process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, PodliftError, Problems, nearest
from ..job.plan import Plan
from ..packaging.source.functions import import_name
from ..runtime.unpack import unpack
from ..storage import fingerprints
from ..storage.fingerprints import DataState
from ..text import compact_duration, duration, parse_duration
from .records import TOLERANCE_S

KNOWN = {"min_new_examples": "(INPUT, N)", "data_changed": "(INPUT)", "older_than": "(DURATION)"}
_CALL = re.compile(r"(\w+)\(([^()]*)\)")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FUNCTION_LIMIT_S = 60.0
_PROGRAM = """
import importlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
module, _, name = sys.argv[2].partition(":")
result = getattr(importlib.import_module(module), name)(json.loads(sys.stdin.read()))
print("\\n" + json.dumps(result if isinstance(result, str) else bool(result)))
"""


class PreconditionError(PodliftError):
    """A precondition could not be checked."""


@dataclass(frozen=True)
class Precondition:
    """One precondition: `kind` is a name of KNOWN, or "function"."""

    kind: str
    input: str = ""
    number: float = 0.0  # examples, or seconds
    function: str = ""

    def __str__(self) -> str:
        arguments = {
            "min_new_examples": f"({self.input}, {self.number:g})",
            "data_changed": f"({self.input})",
            "older_than": f"({compact_duration(self.number)})",
        }
        return self.function or self.kind + arguments[self.kind]


@dataclass(frozen=True, kw_only=True)
class Firing:
    """The facts that a precondition may use."""

    plan: Plan  # of this firing
    schedule: str
    slot: str
    now: float
    success: str = ""  # slot of the previous success, "" if there was none
    success_ended: float | None = None
    success_data: Mapping[str, DataState]  # the inputs of that success


def parse(condition: str | Callable[..., Any]) -> Precondition:
    """Return a precondition from its text, or from a function that other processes can import."""
    if callable(condition):
        name = import_name(condition)
        if name is None or name.startswith("__main__"):
            name = getattr(condition, "__qualname__", repr(condition))
            raise InputError(
                f"when: {name!r} cannot be imported by name. Next: move it into a module: 'module:function'."
            )
        return Precondition("function", function=name)
    text = condition.strip()
    if _FUNCTION.fullmatch(text):
        return Precondition("function", function=text)
    call = _CALL.fullmatch(text)
    forms = [f"{name}{arguments}" for name, arguments in KNOWN.items()] + ["module:function"]
    if call is None or call[1] not in KNOWN:
        near = nearest(call[1], list(KNOWN)) if call else f"Known: {', '.join(forms)}."
        raise InputError(f"when: unknown precondition. Received: {text!r}. {near}")
    words = [word.strip() for word in call[2].split(",")]
    expected = f"Expected: {call[1]}{KNOWN[call[1]]}. Received: {text!r}."
    try:
        if len(words) != KNOWN[call[1]].count(",") + 1 or not all(words):
            raise ValueError
        if call[1] == "older_than":
            return Precondition("older_than", number=parse_duration(words[0], unit_required=True))
        return Precondition(call[1], words[0], float(int(words[1])) if len(words) > 1 else 0.0)
    except ValueError:
        raise InputError(f"when: {expected}") from None


def check(texts: Sequence[str], plan: Plan, inputs: Mapping[str, str]) -> None:
    """Raise InputError for preconditions that name no input, or no module of the program."""
    problems = Problems()
    for rule in map(parse, texts):
        with problems.collect():
            if rule.input and rule.input not in inputs:
                hint = nearest(rule.input, list(inputs)) if inputs else "The job has no inputs. Next: --input NAME=URL."
                raise InputError(f"when: {rule}: no such input. {hint}")
            if rule.function:
                _check_module(rule.function, plan)
    problems.raise_if_any()


def _check_module(function: str, plan: Plan) -> None:
    module = function.partition(":")[0].replace(".", "/")
    paths = {file.path for file in plan.code.files}
    module_paths = {
        os.path.normpath(os.path.join(root, name))
        for root in plan.code.roots or ["."]
        for name in (f"{module}.py", f"{module}/__init__.py")
    }
    if not module_paths & paths:
        modules = [path.removesuffix(".py").replace("/", ".") for path in sorted(paths) if path.endswith(".py")]
        raise InputError(
            f"when: {function!r}: the packaged code has no such module. {nearest(module.replace('/', '.'), modules)}"
        )


def unmet(texts: Sequence[str], firing: Firing) -> tuple[str, dict[str, DataState]]:
    """Return why a firing is skipped ("" if it is not), and the state of the inputs that were read."""
    data_states: dict[str, DataState] = {}
    for rule in map(parse, texts):
        if rule.input:
            data_states[rule.input] = state_of(firing.plan.inputs[rule.input])
        reason = _unmet(rule, firing, data_states.get(rule.input))
        if reason:
            return f"{rule}: {reason}", data_states
    return "", data_states


def _unmet(rule: Precondition, firing: Firing, state: DataState | None) -> str:
    before = firing.success_data.get(rule.input)
    if rule.kind == "data_changed" and state is not None:
        return f"{rule.input} is unchanged since {firing.success}" if before and before.digest == state.digest else ""
    if rule.kind == "min_new_examples" and state is not None:
        new = state.examples - (before.examples if before else 0)
        return f"{new} new examples since {firing.success or 'the beginning'}" if new < rule.number else ""
    if rule.kind == "older_than":
        age_s = None if firing.success_ended is None else firing.now - firing.success_ended
        # A success in the future was recorded by a clock that was ahead: its age is unknown.
        young = age_s is not None and -TOLERANCE_S <= age_s <= rule.number
        return f"the last success is {duration(age_s)} old" if age_s is not None and young else ""
    return _call(rule.function, firing)


def _call(function: str, firing: Firing) -> str:
    """Call a function of the schedule's code in a separate process; return its reason to skip, "" if it has none."""
    plan, about = firing.plan, {"schedule": firing.schedule, "slot": firing.slot, "previous_success": firing.success}
    with tempfile.TemporaryDirectory(prefix="podlift-") as folder:
        code = Path(folder, "code")
        unpack(Path(plan.bundle), plan.code.digest, code)
        roots = [os.path.normpath(code / root) for root in plan.code.roots or ["."]]
        python = plan.facts.executable if plan.capabilities.runs_here else sys.executable
        command = [python, "-c", _PROGRAM, json.dumps(roots), function]
        text = json.dumps({**about, "inputs": plan.inputs})
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=_FUNCTION_LIMIT_S,
                cwd=code, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise PreconditionError(f"{function} took longer than {duration(_FUNCTION_LIMIT_S)}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PreconditionError(f"{function} failed: {last}")
    try:
        answer = json.loads(done.stdout.rstrip().splitlines()[-1])
    except (ValueError, IndexError):
        raise PreconditionError(f"{function} gave no answer: its process printed at its end, or ended early") from None
    return answer if isinstance(answer, str) else "" if answer else "it returned a false value"


def state_of(location: str) -> DataState:
    """Return the digest and the number of examples of an input; PreconditionError if it cannot be read."""
    try:
        return fingerprints.state_of(location)
    except fingerprints.UnreadableInputError as error:
        raise PreconditionError(str(error)) from error
