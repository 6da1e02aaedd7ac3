"""The report of a preflight, and its cache by the bytes of the code: plans of the same code show it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from .. import __version__
from ..checks import Finding
from ..hardware import accelerators
from ..job.job import Job
from ..job.plan import PackedCode, Plan
from ..job.wire import decode
from ..packaging.audit.installed import Installed
from ..storage import cache, small_files
from ..text import counted

VERSION = 1
Level = Literal["refused", "warning"]
# The causes of an early end: the program's own error, a program without a training step, a limit, or podlift itself.
StoppedBy = Literal["", "program", "no step", "limit", "podlift"]
Outcome = Literal["passed", "refused", "failed", "no step", "unfinished"]


@dataclass(frozen=True, order=True)
class PreflightFinding:
    """Something in the program that a TPU refuses, or that costs time or memory there."""

    path: str  # the program's file in the bundle, or a cell ("train.ipynb, cell 3"); "" if it is not about a line
    line: int  # from 1, in a notebook from the first line of its cell; 0 for none
    level: Level  # "refused" if a TPU would refuse the program
    rule: str  # short name, explained in docs/reference/preflight-rules.md
    what: str  # the operation of the program
    why: str  # its effect on a TPU
    instead: str  # the change to make

    def __str__(self) -> str:
        where = location(self.path, self.line)
        return f"{where}: {self.level}: {self.what}: {self.why}. Instead: {self.instead} [{self.rule}]"


def location(path: str, line: int) -> str:
    """Return a line of a file in the format of editors, and a line of a notebook's cell in words."""
    return f"{path}, line {line}" if ".ipynb, cell " in path else f"{path or '-'}:{line}"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One matrix product or convolution of the step."""

    name: str  # the compiler's name, which contains the layer's
    flops: int  # floating point operations of one step of one replica
    padded: float  # share of padding in the work of the matrix unit for it, from 0 to 1
    shape: tuple[int, int, int]  # rows, depth and columns of the product


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """The result of a preflight."""

    accelerator: str
    findings: tuple[PreflightFinding, ...] = ()  # in the order of the program's lines
    reached: str = "nothing"  # the last stage that the program reached
    stopped: str = ""  # why the inspection ended early, in one sentence; "" if it is complete
    stopped_by: StoppedBy = ""
    replicas: int = 1
    programs: int = 0  # number of programs that the training steps were compiled to
    batch: int | None = None  # examples in one step of one replica; None if unknown
    state_bytes: int = 0  # variables of one replica: parameters, optimizer slots, metrics
    step_bytes: int | None = None  # peak memory of the compiled step, including the state; None if it was not compiled
    memory_bytes: int | None = None  # memory of one core of the accelerator; None if unknown
    largest_batch: int | None = None  # largest batch of one replica that would fit; None if unknown
    layers: tuple[Layer, ...] = field(default=())  # matrix products and convolutions, the most expensive first
    seconds: float = 0.0  # duration of the preflight

    @property
    def refused(self) -> bool:
        return any(finding.level == "refused" for finding in self.findings)

    @property
    def outcome(self) -> Outcome:
        """The verdict in one word. "passed" means that every step was inspected and nothing was refused."""
        if self.refused:
            return "refused"
        if self.stopped_by == "program":
            return "failed"
        if self.stopped_by == "no step":
            return "no step"
        return "unfinished" if self.stopped or self.stopped_by else "passed"

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, "outcome": self.outcome, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str | bytes) -> PreflightReport:
        """Read the output of `to_json`; ValueError if it is not a report of this version."""
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise ValueError("another version")
            return decode(PreflightReport, data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"This is not a report of a preflight: {error!r}") from None


def tidy(findings: Iterable[PreflightFinding]) -> tuple[PreflightFinding, ...]:
    """Return the findings in the order of the program's lines, one per line and rule."""
    first: dict[tuple[str, int, str], PreflightFinding] = {}
    for finding in findings:
        first.setdefault((finding.path, finding.line, finding.rule), finding)
    return tuple(sorted(first.values()))


def read(path: Path) -> PreflightReport | None:
    """Return a stored report; None if there is none, or only one of another version."""
    try:
        return PreflightReport.from_json(small_files.read(path))
    except (OSError, ValueError, RecursionError):
        return None


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
