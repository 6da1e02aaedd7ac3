"""Whether a program would run on a TPU, and how well: found out on this machine, before anything is paid for.

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
from ..planning.preflight_findings import Finding, Layer, Report
from ..planning.settings.merge import Entry, Target
from ..process import spawn as processes
from ..spec.job import Job
from ..spec.policies import Resources
from .process import Limits, Spawn, look
from .words import describe

__all__ = ["Finding", "Layer", "Limits", "Report", "describe", "preflight"]


def preflight(
    what: Entry | Job,
    *,
    accelerator: str,
    given: Mapping[str, Any] | None = None,
    strict: bool = False,
    limits: Limits | None = None,
    fresh: bool = False,
    spawn: Spawn = processes.spawn,
) -> Report:
    """Return what a TPU would make of a program: `preflight("train.py", accelerator="v5e-8").refused`.

    The program runs on this machine up to its first training steps, none of which is computed.

    Args:
        what: as for `sdk.plan`.
        accelerator: a TPU of the hardware table, in one machine.
        given: flat settings of the job, as `sdk.plan` takes them.
        strict: refuse dynamic shapes, which the compiler pads.
        limits: what it may take; None for 300 s and 8 GB.
        fresh: look again where the same code was looked at before.
        spawn: starts the process that looks.

    Raises:
        InputError: it is no such accelerator, or the program cannot be packaged.
    """
    from ..planning.prepare import make_plan, packaged  # which tells of earlier preflights

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
        if not fresh and (known := preflight_cache.verdict(plan, os.environ, strict=strict)) is not None:
            return known
        plan = packaged(plan)
        report = look(plan, row.name, folder, strict=strict, limits=limits or Limits(), spawn=spawn)
    if report.reached == "done" and not report.stopped:
        preflight_cache.keep(plan, report, os.environ, strict=strict)
    return report
