"""The second step of planning: what the settings ask for, as values, with every mistake found without reading the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import backends, ids
from ..checkpoint.catalog import warm_start
from ..checks import Finding
from ..errors import InputError, Problems
from ..job.capabilities import Capabilities
from ..job.job import Job
from ..job.plan import Plan
from ..job.policies import Code, Target
from ..job.targets import BACKENDS
from ..job.values import unchecked
from ..storage import cache, data
from ..storage.paths import usable
from . import references, remote
from .roots import check_root, check_writable, cloud_root, in_bucket, resolve_root
from .settings import table
from .settings.merge import Settings, missing_variables

# Stand in for what is wrong, so that the other checks can go on.
_ANY_JOB = unchecked(Job, {"entry": "none", "code": unchecked(Code, {"requirements": "none"})})
_ANY_BACKEND = "local"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a call asks for. If something is wrong with it, a default stands in, and no plan is made."""

    entry: str | Callable[..., Any] | None
    project: str | None  # the folder to package
    job: Job
    is_valid: bool  # False if a default stands in for the job
    backend: str
    capabilities: Capabilities
    target: Target
    root: str
    local: str  # this machine's copy of a root in a bucket, else ""
    cache: Path | None  # podlift's cache folder; None without a home directory
    inputs: dict[str, str]
    warm_start: str
    name: str | None
    notes: tuple[Finding, ...]


def validate(settings: Settings, environ: Mapping[str, str], problems: Problems, resumed: Plan | None) -> Wanted:
    """Return what the settings ask for; mistakes go to `problems`. A plan that resumes a run keeps the run's start."""
    job, entry = _ANY_JOB, settings.function or settings.job.get("entry")
    with problems.collect():
        job = table.job({**settings.job, "entry": settings.job.get("entry", "none")})
    backend = _ANY_BACKEND
    with problems.collect():
        backend = backends.check_name(settings.values.get("backend", backend))
    target = table.target(backend, {})
    with problems.collect():
        target = table.target(backend, settings.values)
    capabilities = backends.load(backend).capabilities
    problems.found += missing_variables(job, environ, here=capabilities.runs_here)
    root = _root(backend, target, settings, environ, problems)
    name = settings.target.name
    with problems.collect():
        name = name if name is None else ids.check_name(name)
    folder, local = _cache(environ), ""
    with problems.collect():
        local = _local(root, target, environ, ask=capabilities.supervised_here)
    inputs, notes = _inputs(job, capabilities, target, problems)
    warm = resumed.warm_start if resumed else ""
    with problems.collect():
        if job.checkpoints.resume_from is not None and job.warm_start is not None:
            raise InputError(
                "checkpoint_resume_from and warm_start: a run starts from the state of another run or from the weights of a "
                f"registered model. Received: {job.checkpoints.resume_from!r} and {job.warm_start!r}. Next: omit one."
            )
        if job.checkpoints.resume_from is not None and resumed is None:
            warm = warm_start(job.checkpoints.resume_from, lambda run: references.url_of(run, root, environ))
    return Wanted(
        entry=entry if isinstance(entry, str) or callable(entry) else None,
        project=settings.values.get("code_project"),
        job=job,
        is_valid=job is not _ANY_JOB,
        backend=backend,
        capabilities=capabilities,
        target=target,
        root=root,
        local=local,
        cache=folder,
        inputs=inputs,
        warm_start=warm,
        name=settings.target.name,
        notes=(*notes, *_ignored(settings, backend, target)),
    )


def _root(backend: str, target: Target, settings: Settings, environ: Mapping[str, str], problems: Problems) -> str:
    given, root, capabilities = settings.target.root, "/", backends.load(backend).capabilities
    with problems.collect():
        if capabilities.needs_bucket:
            explicit = given is not None and settings.origins.get("root") == "argument"
            return cloud_root(backend, target.bucket, None if given is None else str(given), explicit=explicit)
        root = resolve_root(given, environ)
        if capabilities.supervised_here and not in_bucket(root):
            with usable("The root", root):
                check_writable(root)
    return root


def _local(root: str, target: Target, environ: Mapping[str, str], *, ask: bool) -> str:
    """Return the folder on this machine for a root in a bucket, "" for a root that is a folder; `ask` checks the bucket."""
    if not in_bucket(root):
        return ""
    if target.isolated:
        raise InputError(
            f"local_network='isolated' cannot reach checkpoints in a bucket. Received: root={root!r}. Next: name a folder."
        )
    local = remote.local_folder(root, environ)
    if ask:
        check_root(root)
    return local


def _inputs(
    job: Job, capabilities: Capabilities, target: Target, problems: Problems
) -> tuple[dict[str, str], list[Finding]]:
    inputs, notes = dict[str, str](), list[Finding]()
    with problems.collect(), usable("The current folder", "."):
        inputs, notes = data.resolve(job.inputs, Path.cwd()) if job.inputs else (inputs, notes)
        notes += data.find_unreachable(
            inputs, disk=capabilities.runs_here or capabilities.shares_folders, network=not target.isolated
        )
    return inputs, notes


def _cache(environ: Mapping[str, str]) -> Path | None:
    try:
        return cache.cache_folder(environ)
    except RuntimeError:
        return None  # there is no home directory: nothing is cached


def _ignored(settings: Settings, backend: str, target: Target) -> list[Finding]:
    """Return which arguments are for another backend, and whether the cluster has another shape there."""
    groups = {name: table.SETTINGS[name].group for name in settings.values if name in table.SETTINGS}
    names = [name for name, group in groups.items() if group in BACKENDS and not isinstance(target, BACKENDS[group])]
    findings = []
    if "local_cluster" in names and settings.values["local_cluster"] == "workers":
        names.remove("local_cluster")
        findings.append(
            Finding("warning", f"local_cluster='workers': ignored by {backend}, which always creates a chief.")
        )
    given = ", ".join(name for name in names if settings.origins[name] == "argument")
    return [*findings, Finding("note", f"{given}: ignored by backend={backend!r}.")] if given else findings
