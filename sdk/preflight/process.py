"""Runs the process that inspects a program, within limits of time and memory."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..job.plan import Plan
from ..planning.preflight_findings import PreflightReport, StoppedBy, read
from ..process import spawn as processes
from ..process import task_environment
from ..text import duration
from .observations import PreflightRequest

_POLL_S = 0.1
_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_dump_hlo_module_re=(tpu|preflight)_step --xla_dump_hlo_as_text --xla_dump_to="
)
_LAST_LINES, _MAX_OUTPUT = 3, 500
# Stages in which the program itself runs, so that a crash is its own.
_PROGRAM_STAGES = ("code unpacked", "TensorFlow imported")


class Spawn(Protocol):
    """Starts a process, as `processes.spawn` does."""

    def __call__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str) -> processes.Process: ...


@dataclass(frozen=True, kw_only=True)
class PreflightLimits:
    seconds: float = 300.0
    bytes: int = 8_000_000_000  # of memory


def inspect(
    plan: Plan, accelerator: str, folder: str, *, strict: bool, limits: PreflightLimits, spawn: Spawn
) -> PreflightReport:
    """Inspect the program of a packaged plan; `folder` is an empty one for all files."""
    request = _write_request(plan, accelerator, folder, strict=strict)
    began = time.monotonic()
    command = [sys.executable, "-m", "sdk.preflight.child", f"{folder}/request.json"]
    process = spawn(command, env=_environment(plan, folder), cwd=folder, log=f"{folder}/log")
    try:
        why = _wait(process, began, limits)
    finally:
        processes.signal_group(process, signal.SIGKILL)
        process.wait()
    report = read(Path(request.report))
    if report is not None:
        return report
    stages = Path(request.progress).read_text().splitlines() if Path(request.progress).exists() else []
    output = " ".join(Path(f"{folder}/log").read_text(errors="replace").splitlines()[-_LAST_LINES:])
    reached = stages[-1] if stages else "nothing"
    crashed: StoppedBy = "program" if reached in _PROGRAM_STAGES else "podlift"
    return PreflightReport(
        accelerator=accelerator,
        reached=reached,
        stopped=why or f"The process ended with {process.returncode}: {output[-_MAX_OUTPUT:]}",
        stopped_by="limit" if why else crashed,
        seconds=round(time.monotonic() - began, 3),
    )


def _write_request(plan: Plan, accelerator: str, folder: str, *, strict: bool) -> PreflightRequest:
    paths = plan.paths
    scratch = task_environment.scratch(paths.temporary, 1, plan.members[0].name)
    folders = (paths.events, Path(paths.payload(1)).parent, scratch, f"{folder}/dumps")
    for path in (*folders, Path(paths.progress(1, "x")).parent):
        Path(path).mkdir(parents=True, exist_ok=True)
    Path(paths.payload(1)).write_text(plan.payload(1).to_json())
    request = PreflightRequest(
        payload=paths.payload(1),
        accelerator=accelerator,
        report=f"{folder}/report.json",
        progress=f"{folder}/progress",
        dumps=f"{folder}/dumps",
        strict=strict,
    )
    Path(f"{folder}/request.json").write_text(request.to_json())
    return request


def _environment(plan: Plan, folder: str) -> dict[str, str]:
    task = plan.members[0]
    return {
        **task_environment.callers_values(plan, os.environ),
        **task_environment.environment(plan, 1, task, {task.name: "localhost:1"}, plan.paths.temporary),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_FLAGS": f"{_FLAGS}{folder}/dumps",
        "PODLIFT_PARENT": str(os.getpid()),
        "PYTHONPATH": str(Path(__file__).parent.parent.parent),
    }


def _wait(process: processes.Process, began: float, limits: PreflightLimits) -> str:
    """Wait for the process to end; return which limit it exceeded, "" for none."""
    while process.poll() is None:
        if time.monotonic() - began > limits.seconds:
            return f"It took longer than {duration(limits.seconds)} (--time-limit)."
        if _memory(process.pid) > limits.bytes:
            return f"It used more than {limits.bytes / 1e9:.1f} GB of memory (--memory-limit-gb)."
        time.sleep(_POLL_S)
    return ""


def _memory(pid: int) -> int:
    import psutil

    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
