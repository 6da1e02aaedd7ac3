"""The cache of preflight reports by the bytes of the code. Plans of the same code show them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from .. import __version__
from ..checks import Finding
from ..hardware import accelerators
from ..job.job import Job
from ..job.plan import PackedCode, Plan
from ..packaging.audit.installed import Installed
from ..storage import cache
from ..text import counted
from .preflight_findings import PreflightReport, read


def cached_report(
    job: Job, code: PackedCode, environ: Mapping[str, str], *, strict: bool = False
) -> PreflightReport | None:
    """Return the report on some code and an accelerator; None if there is none."""
    path = _path(job, code, environ, strict=strict)
    return None if path is None else read(path)


def store_report(plan: Plan, report: PreflightReport, environ: Mapping[str, str], *, strict: bool) -> None:
    path = _path(plan.job, plan.code, environ, strict=strict)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(report.to_json())
    part.rename(path)


def plan_findings(job: Job, code: PackedCode, environ: Mapping[str, str]) -> list[Finding]:
    """Return the findings of a plan for a TPU about its preflight, which never prevents a submit."""
    row = accelerators.row(job.resources.accelerator)
    if row.family != "tpu":
        return []
    entry = f"{code.program}:{code.function}" if code.function else code.program
    command = f"podlift preflight {shlex.quote(entry)} --accelerator {row.name}"
    report = cached_report(job, code, environ)
    if report is None:
        return [Finding("note", f"This program has not been checked for TPUs. Next: {command}")]
    refused = sum(finding.level == "refused" for finding in report.findings)
    if refused:
        return [
            Finding("warning", f"A preflight found {counted(refused, 'problem')} that a TPU refuses. Next: {command}")
        ]
    warned = len(report.findings)
    warnings = f", and {counted(warned, 'warning')}: {command}" if warned else ""
    return [Finding("note", f"A preflight found nothing that a TPU refuses{warnings}.")]


def _path(job: Job, code: PackedCode, environ: Mapping[str, str], *, strict: bool) -> Path | None:
    inputs = {
        "podlift": __version__,
        "python": platform.python_version(),
        "versions": {name: Installed().versions.get(name) for name in ("tensorflow", "keras")},
        "program": [code.digest, code.program, code.function, code.argv, code.kwargs],
        "keras": job.code.keras,
        "env": asdict(job)["env"],
        "accelerator": job.resources.accelerator,
        "strict": strict,
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    try:
        return cache.cache_folder(environ) / "preflight" / f"{key}.json"
    except RuntimeError:
        return None  # no home folder: nothing is cached
