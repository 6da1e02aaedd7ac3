"""What earlier preflights have found: kept by the bytes of the code, and shown by the plans of the same code."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
from collections.abc import Mapping
from pathlib import Path

from .. import __version__
from ..checks import Finding
from ..hardware import accelerators
from ..packaging.audit.installed import Installed
from ..spec.plan import Plan
from ..storage import cache
from .preflight_findings import Report, read


def verdict(plan: Plan, environ: Mapping[str, str], *, strict: bool = False) -> Report | None:
    """Return what is known of a plan's code on its accelerator; None where nobody has looked.

    Args:
        plan: for a TPU, of any backend.
        environ: where the cache folder is looked for.
        strict: whether dynamic shapes were to be refused.
    """
    place = _place(plan, environ, strict=strict)
    return None if place is None else read(place)


def keep(plan: Plan, report: Report, environ: Mapping[str, str], *, strict: bool) -> None:
    """Keep a report for those who ask about the same code."""
    place = _place(plan, environ, strict=strict)
    if place is None:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(f".{os.getpid()}.part")
    part.write_text(report.to_json())
    part.rename(place)


def note(plan: Plan, environ: Mapping[str, str], verb: str) -> list[Finding]:
    """Return what a plan for a TPU says about its preflight; nothing for others. It stands in nobody's way.

    Args:
        plan: what was decided.
        environ: where the cache folder is looked for.
        verb: who plans; a preflight itself is told nothing.
    """
    row = accelerators.row(plan.job["resources"]["accelerator"])
    if row.family != "tpu" or verb == "preflight":
        return []
    command = f"podlift preflight {shlex.quote(_entry(plan))} --accelerator {row.name}"
    report = verdict(plan, environ)
    if report is None:
        return [Finding("note", f"Nobody has looked whether a TPU would refuse this program. Next: {command}")]
    refused = sum(found.level == "refused" for found in report.findings)
    warned = len(report.findings) - refused
    if refused:
        things = "1 thing" if refused == 1 else f"{refused} things"
        return [Finding("warning", f"A preflight found {things} that a TPU refuses. Next: {command}")]
    again = f", and {warned} that cost time: {command}" if warned else ""
    return [Finding("note", f"A preflight found nothing that a TPU refuses{again}.")]


def _entry(plan: Plan) -> str:
    return f"{plan.target}:{plan.function}" if plan.function else plan.target


def _place(plan: Plan, environ: Mapping[str, str], *, strict: bool) -> Path | None:
    asked = {
        "podlift": __version__,
        "python": platform.python_version(),
        "versions": {name: Installed().versions.get(name) for name in ("tensorflow", "keras")},
        "program": [plan.digest, plan.target, plan.function, plan.argv, plan.kwargs],
        "keras": plan.job["code"]["keras"],
        "env": plan.job["env"],
        "accelerator": plan.job["resources"]["accelerator"],
        "strict": strict,
    }
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    try:
        return cache.cache_folder(environ) / "preflight" / f"{key}.json"
    except RuntimeError:
        return None  # nobody's home is known: nothing is remembered
