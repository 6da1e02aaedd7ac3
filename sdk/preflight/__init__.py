"""Checks on this machine, before anything is paid for, whether a program would run on a TPU, and how well.

Usage: `report = preflight("train.py", accelerator="v5e-8")`, then `print(describe(report))`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..hardware import accelerators
from ..planning import preflight_cache
from ..planning.preflight_findings import Layer, PreflightFinding, PreflightReport
from ..planning.settings.merge import Entry, Target
from ..process import spawn as processes
from ..spec.job import Job
from ..spec.policies import Resources
from .process import PreflightLimits, Spawn, inspect
from .words import describe

__all__ = ["Layer", "PreflightFinding", "PreflightLimits", "PreflightReport", "describe", "preflight"]


def preflight(
    what: Entry | Job,
    *,
    accelerator: str,
    given: Mapping[str, Any] | None = None,
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
    from ..planning.prepare import make_plan, packaged  # which shows cached preflights

    row = accelerators.lookup(accelerator)
    if row.family != "tpu" or row.refused:
        why = f" ({row.name}: {row.refused}; nearest: {row.instead})" if row.refused else ", v5e-8 for one"
        raise InputError(f"A preflight is for TPUs on which TensorFlow runs{why}. Received: {accelerator!r}.")
    with tempfile.TemporaryDirectory(prefix="podlift-preflight-") as folder:
        settings = dict(given or {})
        if isinstance(what, Job):
            what = what.model_copy(update={"resources": Resources(accelerator=row.name)})
        else:
            settings |= {"accelerator": row.name, "workers": 1}
        plan = make_plan(what, settings, Target(backend="local", root=folder, name=None), os.environ, verb="preflight")
        if not fresh and (known := preflight_cache.cached_report(plan, os.environ, strict=strict)) is not None:
            return known
        plan = packaged(plan)
        report = inspect(plan, row.name, folder, strict=strict, limits=limits or PreflightLimits(), spawn=spawn)
    if report.reached == "done" and not report.stopped:
        preflight_cache.store_report(plan, report, os.environ, strict=strict)
    return report
