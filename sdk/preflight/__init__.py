"""Checks on this machine, before anything is paid for, whether a program would run on a TPU, and how well.

Usage: `report = preflight("train.py", accelerator="v5e-8")`, then `print(describe(report))`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

from ..errors import InputError
from ..hardware import accelerators
from ..job.job import Job
from ..job.policies import Resources
from ..job.values import given_fields
from ..planning.preflight_findings import Layer, PreflightFinding, PreflightReport, cached_report, store_report
from ..planning.settings.merge import Destination, Entry
from ..process import spawn as processes
from ..text import counted
from . import sizes
from .process import PreflightLimits, Spawn, inspect

__all__ = ["Layer", "PreflightFinding", "PreflightLimits", "PreflightReport", "describe", "preflight"]

_LAYERS = 10
_VERDICTS = {
    "passed": "found nothing that a TPU refuses",
    "failed": "no verdict: the program failed before its first training step, so no step was inspected",
    "no step": "no verdict: the program has no training step, so no step was inspected",
    "unfinished": "no verdict: the inspection is incomplete",
}


def preflight(
    what: Entry | Job,
    *,
    accelerator: str,
    given: Mapping[str, object] | None = None,
    strict: bool = False,
    limits: PreflightLimits | None = None,
    fresh: bool = False,
    spawn: Spawn = processes.spawn,
) -> PreflightReport:
    """Check a program for a TPU: `preflight("train.py", accelerator="v5e-8").refused`.

    The program runs on this machine up to its first training steps, which are traced but not computed.

    Args:
        what: as for `sdk.plan`.
        accelerator: a TPU in one machine, such as "v5e-8".
        given: flat settings of the job, as for `sdk.plan`.
        strict: refuse dynamic shapes, which the compiler otherwise pads.
        limits: time and memory of the inspection; None for 300 s and 8 GB.
        fresh: ignore the cached report of the same code.
        spawn: starts the inspecting process.

    Raises:
        InputError: the accelerator is not a supported TPU, or the program cannot be packaged.
    """
    from ..planning.pack import packaged
    from ..planning.prepare import make_plan  # which shows cached preflights

    row = accelerators.lookup(accelerator)
    if row.family != "tpu" or row.refused:
        why = f" ({row.name}: {row.refused}; nearest: {row.instead})" if row.refused else ", v5e-8 for one"
        raise InputError(f"A preflight is for TPUs on which TensorFlow runs{why}. Received: {accelerator!r}.")
    with tempfile.TemporaryDirectory(prefix="podlift-preflight-") as folder:
        settings = dict(given or {})
        if isinstance(what, Job):
            what = Job(**{**given_fields(what), "resources": Resources(accelerator=row.name)})
        else:
            settings |= {"accelerator": row.name, "workers": 1}
        plan = make_plan(
            what, settings, Destination(backend="local", root=folder, name=None), os.environ, verb="preflight"
        )
        cached = None if fresh else cached_report(plan.job, plan.code, os.environ, strict=strict)
        if cached is not None:
            return cached
        plan = packaged(plan)
        report = inspect(plan, row.name, folder, strict=strict, limits=limits or PreflightLimits(), spawn=spawn)
    if report.reached == "done" and not report.stopped:
        store_report(plan, report, os.environ, strict=strict)
    return report


def describe(report: PreflightReport) -> str:
    """Return a report as text, with one line per finding."""
    lines = [str(finding) for finding in report.findings]
    if report.stopped:
        lines.append(f"- stopped after: {report.reached}. {report.stopped}")
    lines += _sizes(report)
    lines.append(f"{report.accelerator}: {_verdict(report)}, in {report.seconds:.1f} s")
    return "\n".join(lines)


def _verdict(report: PreflightReport) -> str:
    refused = counted(sum(finding.level == "refused" for finding in report.findings), "finding")
    return _VERDICTS.get(report.outcome, f"refused: {refused}")


def _sizes(report: PreflightReport) -> list[str]:
    lines = []
    if report.batch is not None:
        programs = counted(report.programs, "program")
        lines.append(f"step: {report.batch} examples on each of {report.replicas} replicas, compiled to {programs}")
        if report.step_bytes is None:
            lines.append("memory: unknown, as the step was not compiled")
    if report.step_bytes is not None and report.memory_bytes is not None:
        fits = f"; {report.largest_batch} examples would fit" if report.largest_batch is not None else ""
        lines.append(
            f"memory: {report.step_bytes / 2**20:.0f} MiB of {report.memory_bytes / 2**30:.0f} GiB on each core, "
            f"{report.state_bytes / 2**20:.0f} MiB of it variables{fits}"
        )
    for layer in report.layers[:_LAYERS]:
        if layer.padded > 0:
            lines.append(f"layer: {layer.name}: {sizes.shape_text(layer)}, {layer.padded:.0%} of it padding")
    return lines
