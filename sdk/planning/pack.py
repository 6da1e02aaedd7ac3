"""The fourth step of planning reads the project: its requirements, its files and their imports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..checks import Finding
from ..errors import InputError, Problems
from ..job.findings import note
from ..job.layout import RootPaths
from ..job.plan import PackedCode, PackedRequirements, Plan
from ..packaging import bundle, never_packaged
from ..packaging.audit import check as audit
from ..packaging.audit.environment import Preload
from ..packaging.audit.import_sources import TaskEnvironment
from ..packaging.audit.installed import Installed
from ..packaging.bundle import Bundle
from ..packaging.entry import LocatedEntry, widen
from ..packaging.requirements import read
from ..packaging.requirements.read import Requirements
from . import preflight_findings, secrets
from .look import World
from .validate import RunRequest


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The code that a plan runs, and the findings about it."""

    code: PackedCode
    preload: Preload
    notes: tuple[Finding, ...]


def pack(
    request: RunRequest, world: World, environ: Mapping[str, str], own_files: Mapping[never_packaged.FileIdentity, str]
) -> Packed:
    """Choose the files of the program; `own_files` are written by this process and left out."""
    problems, options, source = Problems(), request.job.code, world.source
    if source is None:
        raise InputError([])
    needed, preload, audited = Requirements(), Preload(), list[Finding]()
    with problems.collect():
        needed = read.gather(options.requirements, source.home)
    with problems.collect():
        source = widen(source, [*options.include, *needed.folders])
    packed = bundle.build(
        source,
        never=_own_folders(Path(world.local or world.root), source.home, world.cache),
        exclude=options.exclude,
        cache=world.cache,
        own_files=own_files,
    )
    bundle.check_entry(source, packed)
    with problems.collect():
        audited, preload = _audited(request, world, source, packed, needed)
    files = [member.path for member in packed.members]
    problems.messages += secrets.problems(request.job, source.project, files, here=request.capabilities.runs_here)
    problems.raise_if_any()
    # The content of an image is unknown here.
    differences = _compared(needed, isolated=options.isolated) if request.capabilities.runs_here else []
    only_script = f"Only the script is packaged: {str(source.project)!r} is shared with other things"
    shared = [note(f"{only_script}. Set code_project= to change that")] if source.is_single_file else []
    code = _code(request, source, packed, needed)
    preflight = preflight_findings.plan_findings(request.job, code, environ)
    notes = (*preflight, *shared, *source.notes, *needed.notes, *packed.notes, *differences, *audited)
    return Packed(code=code, preload=preload, notes=notes)


def _audited(
    request: RunRequest, world: World, source: LocatedEntry, packed: Bundle, needed: Requirements
) -> tuple[list[Finding], Preload]:
    job = request.job
    return audit.check(
        source,
        [member.path for member in packed.members],
        TaskEnvironment(
            requirements=needed,
            isolated=job.code.isolated,
            in_image=not request.capabilities.runs_here,
            legacy=job.code.keras == "legacy" or job.env.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"),
            pythonpath="PYTHONPATH" in job.env and not job.code.isolated,
            dropped=world.facts.dropped,
        ),
        kwargs=None if not request.is_valid else job.args if isinstance(job.args, dict) else {},
        args=job.args if isinstance(job.args, list) else (),
        chief=request.target.shape != "workers" and job.resources.workers + job.resources.ps > 1,
        left_out=packed.left_out,
        evaluate=job.gate.evaluate or "",
        allowed=job.code.allow_secret,
    )


def _code(request: RunRequest, source: LocatedEntry, packed: Bundle, needed: Requirements) -> PackedCode:
    job = request.job
    outside = {source.project / part for part in (source.base, *source.parts)}
    return PackedCode(
        kind=source.kind,
        program=source.target,
        function=source.function,
        argv=[] if source.function and isinstance(job.args, dict) else job.argv(),
        kwargs=job.args if isinstance(job.args, dict) else {},
        project=str(source.project),
        roots=list(source.roots),
        only=source.file if source.is_single_file else "",
        cwd=source.cwd,
        outside=[] if source.is_single_file else sorted(map(str, outside)),
        digest=packed.digest,
        files=packed.members,
        left_out=list(packed.left_out),
        generated=dict(packed.generated),
        requirements=PackedRequirements(
            source=needed.source,
            lines=list(needed.lines),
            options=list(needed.options),
            constraints=list(needed.constraints),
        ),
    )


def _compared(needed: Requirements, *, isolated: bool) -> Sequence[Finding]:
    """Return the differences between the requirements and the environment of the tasks."""
    if isolated:
        bare = "The fresh environment will hold nothing but Python: no requirements were found (code_requirements=)."
        return [] if needed.lines else [Finding("warning", bare)]
    if not needed.source:
        return []
    here = Installed().versions
    return [*read.pins(needed, here), *read.differences(needed, here)]


def _own_folders(root: Path, home: Path, cache_folder: Path | None) -> dict[Path, str]:
    """Return podlift's own folders, which are never packaged."""
    own = {} if cache_folder is None else {Path(os.path.realpath(cache_folder)): "podlift's cache"}
    paths = RootPaths(str(root))
    folders = [Path(paths.runs), Path(paths.bundle("")).parent] if root == home else [root]
    return {**own, **dict.fromkeys(folders, "the root of runs")}


def packaged(plan: Plan) -> Plan:
    """Write the archive of a plan that was just made, and return the plan of its content.

    Files that changed meanwhile, as logs do, are packaged as they are now. A plan from a file is executed exactly instead:
    see `bundle.write`.
    """
    before = bundle.of(plan)
    archive_path = RootPaths(plan.local or plan.root).bundle
    entry = plan.code.program if plan.code.kind == "script" else ""
    after = bundle.take(before, Path(plan.code.project), archive_path, entry=entry)
    if after.digest == plan.code.digest:
        return plan
    now = {member.path: member for member in after.members}
    changed = ", ".join(member.path for member in before.members if now.get(member.path) != member)
    later = note(f"Changed while the plan was made, and packaged with the later content: {changed}")
    code = replace(plan.code, digest=after.digest, files=after.members, left_out=[*plan.code.left_out, *after.left_out])
    return replace(plan, code=code, findings=(*plan.findings, later))
