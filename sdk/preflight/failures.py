"""Recognizes errors of a program that come from Python using values which exist only when a step runs. Pure."""

from __future__ import annotations

import re

from ..planning.preflight_findings import PreflightFinding

_CONTROL = re.compile(r"Iterating over a symbolic|as a Python `?bool`?|cannot be iterated over in")
_NUMBER = re.compile(
    r"numpy\(\) is only available|to a numpy array|has no attribute 'numpy'|(float|int)\(\) argument|"
    r"converted to a Python|KerasTensor cannot be used|__(float|int|array|index)__"
)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r"(Exception encountered when calling|Arguments received by|in user code:|File \"|•|\^+$|~)")


def cause(message: str) -> str:
    """Return the line of an error's message that names the cause.

    Keras puts the failed call above that line, and the arguments of the call below it; TensorFlow puts a traceback there.
    """
    lines = [line.strip() for line in _COLOUR.sub("", message).splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].startswith("in user code:"):
        raised = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception)\b.*:", line)]
        return raised[-1] if raised else lines[-1]
    return next((line for line in lines if not _FRAME.match(line)), lines[0])


def failure(kind: str, message: str, path: str, line: int) -> PreflightFinding | None:
    """Return the finding for such an error; None for any other."""
    if kind == "OperatorNotAllowedInGraphError" or (kind == "TypeError" and _CONTROL.search(message)):
        return PreflightFinding(
            path, line, "refused", "python-control", "Python's if, for or while depends on a tensor of the step",
            "a compiled step is the same for all data, on any hardware",
            "tf.where, tf.cond and tf.while_loop (keras.ops has them too), or a loop over a Python number",
        )  # fmt: skip
    if kind in ("TypeError", "AttributeError", "NotImplementedError", "ValueError") and _NUMBER.search(message):
        return PreflightFinding(
            path, line, "refused", "python-value", "the step needs a number in Python (.numpy(), float(), NumPy)",
            "tensors have no values while a step is compiled, on any hardware",
            "TensorFlow operations on the tensor; return it from the step to see it in Python",
        )  # fmt: skip
    return None
