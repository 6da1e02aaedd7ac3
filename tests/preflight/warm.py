"""Preflights of many programs by one process that has imported TensorFlow once: a fork of it inspects each program.

Usage: `python warm.py < ORDERS > ANSWERS`, a JSON object a line: {"entry": path, "cwd": folder, "given": settings} in, a
report out.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import keras  # noqa: F401
import tensorflow  # noqa: F401

from sdk.preflight import PreflightLimits, PreflightReport, preflight
from sdk.preflight.child import main as look
from sdk.process import spawn


def fork(command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str) -> spawn.Process:
    """Start an inspection as `processes.spawn` does, without a new interpreter."""
    pid = os.fork()
    if pid:
        return spawn.Adopted(pid)
    try:
        os.setsid()
        os.chdir(cwd)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(env)
        look(command[-1])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def report(order: dict[str, object]) -> PreflightReport:
    os.chdir(str(order["cwd"]))
    given = order.get("given")
    return preflight(
        str(order["entry"]), accelerator=str(order.get("accelerator", "v5e-8")), fresh=True, spawn=fork,
        given=given if isinstance(given, dict) else {}, strict=bool(order.get("strict")), limits=PreflightLimits(seconds=240),
    )  # fmt: skip


def main() -> None:
    # The output of programs and TensorFlow must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = report(json.loads(line)).to_json()
        except Exception:
            answer = json.dumps({"error": traceback.format_exc()})
        answers.write(json.dumps(json.loads(answer)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
