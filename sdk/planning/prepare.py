"""From settings to a plan: gathers the settings, runs every check, and reports all mistakes in one error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import backends, checks, ids
from ..checkpoint.catalog import warm_start
from ..checks import Facts, Finding
from ..errors import InputError, InsideTaskError, Problems
from ..packaging import bundle, never_packaged
from ..packaging.audit import check as audit
from ..packaging.audit.environment import Preload
from ..packaging.audit.import_sources import TaskEnvironment
from ..packaging.audit.installed import Installed
from ..packaging.bundle import Bundle
from ..packaging.entry import LocatedEntry, locate, widen
from ..packaging.paths import usable
from ..packaging.requirements import read
from ..packaging.requirements.read import Requirements
from ..runtime.context import inside_task
from ..spec.capabilities import Capabilities
from ..spec.code import PackedCode, PackedRequirements
from ..spec.job import Job
from ..spec.layout import RootPaths
from ..spec.plan import Plan
from ..spec.policies import BACKENDS, Target
from ..storage import cache, data
from ..storage.gcs import files as gcs_files
from . import decide, preflight_cache, references
from .roots import check_writable, cloud_root, in_bucket, resolve_root
from .settings import merge, table
from .settings.merge import Entry, Settings, gather, missing_variables


@dataclass(frozen=True, kw_only=True)
class _PackedCode:
    source: LocatedEntry
    needed: Requirements
    bundle: Bundle
    notes: tuple[Finding, ...]
    preload: Preload


@dataclass(frozen=True)
class _Excluded:
    """What is never packaged: the root of runs, podlift's cache, the files that this process writes."""

    root: str
    cache: Path | None
    files: Mapping[never_packaged.FileIdentity, str]


def make_plan(
    what: Entry | Job,
    given: Mapping[str, Any],
    target: merge.Target,
    environ: Mapping[str, str],
    *,
    verb: str = "plan",
    output: Path | None = None,
) -> Plan:
    """Return the plan for flat settings, or raise InputError with every mistake: for `plan`, `submit` and the command.

    `what` is an entry or a Job, or UNNAMED if `PODLIFT_ENTRY` or the project's file names the entry. `output` is the file that
    the plan will be written to: it is not packaged.
    """
    refuse_inside_task(verb)
    problems = Problems()
    settings = gather(what, given, target, environ, problems)
    job = _job(settings, problems)
    backend, options, capabilities = _backend(settings, problems)
    root = _root(backend, options, capabilities, settings, environ, problems)
    with problems.collect():
        if settings.target.name is not None:
            ids.check_name(settings.target.name)
    local = warm = ""
    with problems.collect():
        local = _local(root, options, environ, ask=capabilities.supervised_here)
    online, starting = bool(settings.target.online), verb in ("submit", "resume")
    facts = _facts(backend, job, environ, problems, (options, root), online=online, starting=starting)
    packed = None
    with problems.collect():
        excluded = _Excluded(local or root, _cache(environ), never_packaged.files_being_written(output))
        packed = _package(settings, job, excluded, facts, options, elsewhere=not capabilities.runs_here)
    inputs: dict[str, str] = {}
    notes: list[Finding] = []
    with problems.collect(), usable("The current folder", "."):
        if job is not None and job.inputs:
            inputs, notes = data.resolve(job.inputs, Path.cwd())
            notes += data.find_unreachable(inputs, disk=facts is None or facts.disk, network=not options.isolated)
    with problems.collect():
        if job is not None and job.checkpoints.resume_from is not None:
            warm = warm_start(job.checkpoints.resume_from, lambda run: references.url_of(run, root, environ))
    problems.found = settings.sourced(problems.found)
    problems.raise_if_any()
    if job is None or packed is None or facts is None:
        raise AssertionError("a check failed without a problem")
    label = settings.target.name or ids.default_name(_named(packed.source), packed.source.home.name)
    made = _decide(job, backend, options, packed, facts, inputs, label, root, starting=verb != "plan")
    made = replace(made, warm_start=warm, local=local)
    notes += _ignored(settings, backend, options)
    notes += preflight_cache.plan_findings(made, environ, verb)
    made = replace(made, findings=(*notes, *made.findings))
    bad = checks.errors(made.findings)
    if bad:
        raise InputError(settings.sourced(bad))
    return made


def _job(settings: Settings, problems: Problems) -> Job | None:
    if settings.function is None and settings.job.get("entry") is None:
        problems.found.append("No entry. Name a script, a notebook, package.module or package.module:function.")
    with problems.collect():
        return table.job({**settings.job, "entry": settings.job.get("entry", "none")})
    return None


def _ignored(settings: Settings, backend: str, target: Target) -> list[Finding]:
    """Return which arguments are for another backend, and whether the cluster has another shape there."""
    groups = {name: table.SETTINGS[name].group for name in settings.values if name in table.SETTINGS}
    names = [name for name, group in groups.items() if group in BACKENDS and group != backend]
    found = []
    if settings.values.get("local_cluster") == "workers" != target.shape:
        names.remove("local_cluster")
        found.append(
            Finding("warning", f"local_cluster='workers': ignored by {backend}, which always creates a chief.")
        )
    given = ", ".join(name for name in names if settings.origins[name] == "argument")
    return [*found, Finding("note", f"{given}: ignored by backend={backend!r}.")] if given else found


def _facts(
    backend: str,
    job: Job | None,
    environ: Mapping[str, str],
    problems: Problems,
    place: tuple[Target, str],
    *,
    online: bool,
    starting: bool,
) -> Facts | None:
    """Probe this machine and, if `online`, the cloud about a `place`: the backend's own options and the root."""
    if job is None:
        return None
    problems.found += missing_variables(job, environ)
    if problems.found:
        return None
    return backends.load(backend).probe(job, place[0], root=place[1], online=online, starting=starting)


def _package(
    settings: Settings,
    job: Job | None,
    excluded: _Excluded,
    facts: Facts | None,
    options: Target,
    *,
    elsewhere: bool,
) -> _PackedCode | None:
    """Find the code, read its requirements, choose its files, and check its modules for what would fail."""
    entry = settings.function or settings.job.get("entry")
    if not isinstance(entry, str) and not callable(entry):
        return None
    problems = Problems()
    source = locate(entry, settings.job.get("code_project"))
    code = None if job is None else job.code
    needed = Requirements()
    with problems.collect():
        needed = Requirements() if code is None else read.gather(code.requirements, source.home)
    with problems.collect():
        source = widen(source, [*(() if code is None else code.include), *needed.folders])
    packed = bundle.build(
        source,
        never=_own_folders(Path(excluded.root), source.home, excluded.cache),
        exclude=() if code is None else code.exclude,
        cache=excluded.cache,
        own_files=excluded.files,
    )
    bundle.check_entry(source, packed)
    kwargs = None if job is None else job.args if isinstance(job.args, dict) else {}
    isolated = code is not None and code.isolated
    notes = [*_alone(source), *source.notes, *needed.notes, *packed.notes]
    # The content of an image is unknown here.
    notes += [] if elsewhere else _compared(needed, isolated=isolated)
    shared = Preload()
    with problems.collect():
        found, shared = audit.check(
            source,
            [member.path for member in packed.members],
            TaskEnvironment(
                requirements=needed,
                isolated=isolated,
                in_image=elsewhere,
                legacy=code is not None and code.keras == "legacy",
                pythonpath=job is not None and "PYTHONPATH" in job.env and not isolated,
                dropped=() if facts is None else facts.dropped,
            ),
            kwargs=kwargs,
            args=() if job is None or isinstance(job.args, dict) else job.args or (),
            chief=options.shape != "workers" and job is not None and job.resources.workers + job.resources.ps > 1,
            servers=job is not None and job.resources.ps > 0,
            left_out=packed.left_out,
        )
        notes += found
    problems.raise_if_any()
    return _PackedCode(source=source, needed=needed, bundle=packed, notes=tuple(notes), preload=shared)


def _compared(needed: Requirements, *, isolated: bool) -> list[Finding]:
    """Return the differences between the requirements and the environment of the tasks."""
    if isolated:
        bare = "The fresh environment will hold nothing but Python: no requirements were found (code_requirements=)."
        return [] if needed.lines else [Finding("warning", bare)]
    if not needed.source:
        return []
    here = Installed().versions
    return [*read.pins(needed, here), *read.differences(needed, here)]


def _named(source: LocatedEntry) -> str:
    return f"{source.notebook.removesuffix('.ipynb')}.py" if source.notebook else source.target


def _decide(
    job: Job,
    backend: str,
    target: Target,
    packed: _PackedCode,
    facts: Facts,
    inputs: dict[str, str],
    label: str,
    root: str,
    *,
    starting: bool,
) -> Plan:
    return decide.make_plan(
        job=job,
        argv=[] if packed.source.function and isinstance(job.args, dict) else job.argv(),
        kwargs=job.args if isinstance(job.args, dict) else {},
        run_id=ids.new_run_id(label),
        root=root,
        backend=backend,
        starting=starting,
        target=target,
        code=_code(packed),
        facts=facts,
        inputs=inputs,
        notes=packed.notes,
        preload=packed.preload,
    )


def _code(packed: _PackedCode) -> PackedCode:
    source, made, needed = packed.source, packed.bundle, packed.needed
    outside = {source.project / part for part in (source.base, *source.parts)}
    return PackedCode(
        kind=source.kind,
        program=source.target,
        function=source.function,
        project=str(source.project),
        roots=list(source.roots),
        only=source.file if source.alone else "",
        cwd=source.cwd,
        outside=[] if source.alone else sorted(map(str, outside)),
        digest=made.digest,
        files=made.members,
        left_out=list(made.left_out),
        generated=dict(made.generated),
        requirements=PackedRequirements(
            source=needed.source,
            lines=list(needed.lines),
            options=list(needed.options),
            constraints=list(needed.constraints),
        ),
    )


def bundle_of(plan: Plan) -> Bundle:
    return Bundle(plan.code.digest, plan.code.files, generated=plan.code.generated)


def packaged(plan: Plan) -> Plan:
    """Write the archive of a plan that was just made, and return the plan updated to its content.

    Files that changed meanwhile, as logs do, are packaged as they are now. A plan from a file is executed exactly instead:
    see `bundle.write`.
    """
    before = bundle_of(plan)
    place = RootPaths(plan.local or plan.root).bundle
    entry = plan.code.program if plan.code.kind == "script" else ""
    made = bundle.take(before, Path(plan.code.project), place, entry=entry)
    if made.digest == plan.code.digest:
        return plan
    now = {member.path: member for member in made.members}
    changed = ", ".join(member.path for member in before.members if now.get(member.path) != member)
    note = Finding("note", f"Changed while the plan was made, and packaged with the later content: {changed}.")
    code = replace(plan.code, digest=made.digest, files=made.members, left_out=[*plan.code.left_out, *made.left_out])
    return replace(plan, code=code, findings=(*plan.findings, note))


def refuse_keywords(given: Mapping[str, Any], other: str) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise InputError(f"{', '.join(names)}: cannot be combined with {other}.")


def refuse_inside_task(verb: str) -> None:
    """Raise InsideTaskError if this process is a task of a run."""
    task = inside_task()
    if task is not None:
        raise InsideTaskError(
            f"sdk.{verb} was called inside the task {task}: the program would start itself again. Put the training into a "
            "function and submit it by name, under a guard that is false in a task:\n"
            "    if __name__ == '__main__':\n"
            "        sdk.submit('train:main')"
        )


def _backend(settings: Settings, problems: Problems) -> tuple[str, Target, Capabilities]:
    """Return the backend's name, its target and what it is like; mistakes go to `problems`."""
    name = settings.values.get("backend", "local")
    capabilities = Capabilities(supervised_here=False)
    with problems.collect():
        capabilities = backends.load(name).capabilities
        return name, table.target(name, settings.values), capabilities
    return name, Target(), capabilities


def _root(
    backend: str,
    options: Target,
    capabilities: Capabilities,
    settings: Settings,
    environ: Mapping[str, str],
    problems: Problems,
) -> str:
    given, root = settings.target.root, "/"
    with problems.collect():
        if capabilities.needs_bucket:
            explicit = given is not None and settings.origins.get("root") == "argument"
            text = None if given is None else str(given)
            return cloud_root(backend, options.bucket, text, explicit=explicit)
        root = resolve_root(given, environ)
        if capabilities.supervised_here and not in_bucket(root):
            with usable("The root", root):
                check_writable(root)
    return root


def _local(root: str, options: Target, environ: Mapping[str, str], *, ask: bool) -> str:
    """Return the folder on this machine for a root in a bucket, "" for a root that is a folder; `ask` checks the bucket."""
    if not in_bucket(root):
        return ""
    if options.isolated:
        raise InputError(
            f"local_network='isolated' cannot reach checkpoints in a bucket. Received: root={root!r}. Next: name a folder."
        )
    cache_folder = _cache(environ)
    if cache_folder is None:
        raise InputError(
            "A root in a bucket needs a cache folder here, but there is no home directory. Set XDG_CACHE_HOME."
        )
    if ask:
        gcs_files.check_root(root, retry=gcs_files.INTERACTIVE)
    return cache.bucket_folder(cache_folder, root)


def _cache(environ: Mapping[str, str]) -> Path | None:
    try:
        return cache.cache_folder(environ)
    except RuntimeError:
        return None  # there is no home directory: nothing is cached


def _own_folders(root: Path, home: Path, cache_folder: Path | None) -> dict[Path, str]:
    """Return podlift's own folders, which are never packaged."""
    own = {} if cache_folder is None else {Path(os.path.realpath(cache_folder)): "podlift's cache"}
    if root != home:
        return {**own, root: "the root of runs"}
    paths = RootPaths(str(root))
    return {**own, Path(paths.runs): "the root of runs", Path(paths.bundle("")).parent: "the root of runs"}


def _alone(source: LocatedEntry) -> list[Finding]:
    if not source.alone:
        return []
    folder = str(source.project)
    reason = f"Only the script is packaged: {folder!r} is shared with other things. Set code_project= to change that."
    return [Finding("note", reason)]
