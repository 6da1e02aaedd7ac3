"""Has a process of its own look at a program, within limits."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..backends.local import render
from ..planning.preflight_findings import Report, read
from ..process import spawn as processes
from ..spec.plan import Plan
from .order import Order

_POLL_S = 0.1
_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_dump_hlo_module_re=(tpu|preflight)_step --xla_dump_hlo_as_text --xla_dump_to="
)
_LAST_LINES, _SAID = 3, 500
# Stages in which the program itself runs: what ends the process there is its own.
_THE_PROGRAMS = ("code unpacked", "TensorFlow imported")


class Spawn(Protocol):
    """Starts a process, as `processes.spawn` does."""

    def __call__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str) -> processes.Process: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a look may take.

    Args:
        seconds: of time.
        bytes: of memory.
    """

    seconds: float = 300.0
    bytes: int = 8_000_000_000


def look(plan: Plan, accelerator: str, folder: str, *, strict: bool, limits: Limits, spawn: Spawn) -> Report:
    """Have a process of its own look at a plan's program.

    Args:
        plan: what would run; its code is packaged.
        accelerator: name of a TPU row.
        folder: an empty one, for all that is written.
        strict: refuse dynamic shapes.
        limits: what it may take.
        spawn: starts the process.
    """
    order = _order(plan, accelerator, folder, strict=strict)
    began = time.monotonic()
    command = [sys.executable, "-m", "sdk.preflight.child", f"{folder}/order.json"]
    process = spawn(command, env=_environment(plan, order, folder), cwd=folder, log=f"{folder}/log")
    try:
        why = _wait(process, began, limits)
    finally:
        processes.signal_group(process, signal.SIGKILL)
        process.wait()
    report = read(Path(order.report))
    if report is not None:
        return report
    stages = Path(order.progress).read_text().splitlines() if Path(order.progress).exists() else []
    said = " ".join(Path(f"{folder}/log").read_text(errors="replace").splitlines()[-_LAST_LINES:])
    reached = stages[-1] if stages else "nothing"
    return Report(
        accelerator=accelerator,
        reached=reached,
        stopped=why or f"The process ended with {process.returncode}: {said[-_SAID:]}",
        stopped_by="limit" if why else "program" if reached in _THE_PROGRAMS else "podlift",
        seconds=round(time.monotonic() - began, 3),
    )


def _order(plan: Plan, accelerator: str, folder: str, *, strict: bool) -> Order:
    """Write all that the process needs."""
    paths = plan.paths
    scratch = render.scratch(paths.temporary, 1, plan.members[0].name)
    places = (paths.events, Path(paths.payload(1)).parent, scratch, f"{folder}/dumps")
    for place in (*places, Path(paths.progress(1, "x")).parent):
        Path(place).mkdir(parents=True, exist_ok=True)
    Path(paths.payload(1)).write_text(plan.payload(1).to_json())
    order = Order(
        payload=paths.payload(1),
        accelerator=accelerator,
        report=f"{folder}/report.json",
        progress=f"{folder}/progress",
        dumps=f"{folder}/dumps",
        strict=strict,
        home=str(Path(__file__).parent.parent.parent),
    )
    Path(f"{folder}/order.json").write_text(order.to_json())
    return order


def _environment(plan: Plan, order: Order, folder: str) -> dict[str, str]:
    task = plan.members[0]
    return {
        **render.inherited(os.environ, plan.job["env"]),
        **render.environment(plan, 1, task, {task.name: "localhost:1"}, plan.paths.temporary),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": f"{_FLAGS}{folder}/dumps",
        "PODLIFT_PARENT": str(os.getpid()),
        "PYTHONPATH": order.home,
    }


def _wait(process: processes.Process, began: float, limits: Limits) -> str:
    """Wait for the end of a process; return which limit it has met, "" for none."""
    while process.poll() is None:
        if time.monotonic() - began > limits.seconds:
            return f"It took longer than {limits.seconds:g} s (--limit-s)."
        if _memory(process.pid) > limits.bytes:
            return f"It took more than {limits.bytes / 1e9:.1f} GB of memory (--limit-gb)."
        time.sleep(_POLL_S)
    return ""


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
