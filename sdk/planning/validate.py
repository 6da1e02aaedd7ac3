"""The second step of planning: the settings as checked values. Pure: it reads no file, no clock and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import backends, ids
from ..checks import Finding, gates
from ..errors import InputError, Problems
from ..job import option_classes
from ..job.capabilities import Capabilities
from ..job.job import Job
from ..job.policies import Code
from ..job.targets import Target
from ..job.values import unchecked
from . import secrets
from .roots import cloud_root
from .settings import table
from .settings.merge import Settings

# Defaults in place of mistakes, so that the other checks can run.
_ANY_JOB = unchecked(Job, {"entry": "none", "code": unchecked(Code, {"requirements": "none"})})
_ANY_BACKEND = "local"
_NAMELESS = {"entry": "none"}


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The checked settings of a call: the input of the readings. After a mistake they hold a default, and no plan is made.

    Args:
        entry: the program, as it was named.
        project: the folder to package, as it was named.
        job: the job, with every default.
        is_valid: False if a default stands in for a setting of the job.
        backend: the name of the backend.
        capabilities: its properties.
        target: its options.
        root: the root as it was named: a folder, which may be relative, or a URL; None for the default.
        name: the name of the run, None for one after the program.
        online: whether to ask the services that the job needs.
        notes: findings about the settings.
    """

    entry: str | Callable[..., Any] | None
    project: str | None
    job: Job
    is_valid: bool
    backend: str
    capabilities: Capabilities
    target: Target
    root: str | None
    name: str | None
    online: bool
    notes: tuple[Finding, ...]


def validate(settings: Settings, environ: Mapping[str, str], problems: Problems) -> RunRequest:
    """Return the checked settings; mistakes go to `problems`."""
    entry, is_valid = settings.function or settings.job.get("entry"), False
    with problems.collect():
        job = table.job({**_NAMELESS, **settings.job})
        is_valid = True
    if not is_valid:
        job = _job_of_valid(settings.job)
    backend = _ANY_BACKEND
    with problems.collect():
        backend = backends.check_name(settings.values.get("backend", backend))
    target = table.target(backend, {})
    with problems.collect():
        target = table.target(backend, settings.values)
    capabilities, name, root = backends.load(backend).capabilities, settings.target.name, None
    problems.messages += secrets.missing_variables(job, environ, here=capabilities.runs_here)
    with problems.collect():
        root = _root(backend, target, capabilities, settings)
    with problems.collect():
        name = name if name is None else ids.check_name(name)
    with problems.collect():
        _check_start(job)
    problems.messages += gates.mistakes(job, {*job.inputs, *settings.slot_inputs}, capabilities)
    problems.messages += secrets.stored(job, environ, here=capabilities.runs_here)
    return RunRequest(
        entry=entry if isinstance(entry, str) or callable(entry) else None,
        project=settings.values.get("code_project"),
        job=job,
        is_valid=is_valid,
        backend=backend,
        capabilities=capabilities,
        target=target,
        root=root,
        name=settings.target.name,
        online=bool(settings.target.online),
        notes=tuple(_ignored(settings, backend, target)),
    )


def _job_of_valid(settings: Mapping[str, object]) -> Job:
    """Return the job of the settings that are valid each by itself, so that the other steps check them too."""
    valid: dict[str, object] = {**_NAMELESS}
    for name, value in settings.items():
        with suppress(InputError):
            table.job({**_NAMELESS, name: value})
            valid[name] = value
    with suppress(InputError):
        return table.job(valid)
    return _ANY_JOB


def _root(backend: str, target: Target, capabilities: Capabilities, settings: Settings) -> str | None:
    named_root = None if settings.target.root is None else str(settings.target.root)
    if not capabilities.needs_bucket:
        return named_root
    return cloud_root(backend, target.bucket, named_root, explicit=settings.origins.get("root") == "argument")


def _check_start(job: Job) -> None:
    if job.checkpoints.resume_from is not None and job.warm_start is not None:
        raise InputError(
            "checkpoint_resume_from and warm_start: a run starts from the state of another run or from the weights of a "
            f"registered model. Received: {job.checkpoints.resume_from!r} and {job.warm_start!r}. Next: omit one."
        )


def _ignored(settings: Settings, backend: str, target: Target) -> list[Finding]:
    """Return findings about arguments for another backend, and about a cluster with another shape there."""
    options = option_classes.every()
    groups = {name: table.settings()[name].group for name in settings.values if name in table.settings()}
    names = [name for name, group in groups.items() if group in options and not isinstance(target, options[group])]
    findings = []
    if "local_cluster" in names and settings.values["local_cluster"] == "workers":
        names.remove("local_cluster")
        findings.append(
            Finding("warning", f"local_cluster='workers': ignored by {backend}, which always creates a chief.")
        )
    ignored = ", ".join(name for name in names if settings.origins[name] == "argument")
    return [*findings, Finding("warning", f"{ignored}: ignored by backend={backend!r}.")] if ignored else findings
