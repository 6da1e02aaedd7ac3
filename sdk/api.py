"""The whole story on one screen: plan, submit, attach, runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import backends, checks, config, ids, planner
from .checks import Finding
from .clock import SystemClock
from .errors import CorruptRunError, InputError, InsideTaskError, Problems, RunNotFoundError
from .job import Job, JsonArgs
from .layout import RootPaths, RunPaths
from .packaging import bundle, imports
from .packaging.entry import Source, locate
from .planner import Plan
from .run import Run, RunInfo
from .runtime.context import inside_task
from .storage import posix
from .storage.records import Recorder

_DEFAULT_ROOT = "~/.podlift"


def plan(
    what: str | Path | Job,
    *,
    args: JsonArgs = None,
    workers: int | None = None,
    accelerator: str | None = None,
    backend: str | None = None,
    root: str | Path | None = None,
    name: str | None = None,
) -> Plan:
    """Decide everything about a run, and change nothing: `print(sdk.plan("train.py", workers=2))`.

    Args:
        what: a script, `package.module`, `package.module:function`, or a Job.
        args: a list is argv; a dict is keyword arguments of a function, or `--key value` of a script. JSON only.
        workers: tasks in all, the chief included; 1 by default.
        accelerator: a name of the hardware table; "cpu" by default.
        backend: who runs it; "local" by default.
        root: the folder below which runs live; `PODLIFT_ROOT`, else `~/.podlift`.
        name: a label; the run's id is the name and six random characters.

    Raises:
        InputError: with every mistake that was found.
    """
    given = {"args": args, "workers": workers, "accelerator": accelerator}
    target = {"backend": backend, "root": root, "name": name}
    return make(what, {k: v for k, v in given.items() if v is not None}, target, os.environ)


def submit(
    what: str | Path | Job | Plan,
    *,
    args: JsonArgs = None,
    workers: int | None = None,
    accelerator: str | None = None,
    backend: str | None = None,
    root: str | Path | None = None,
    name: str | None = None,
) -> Run:
    """Start a run and return its handle; never waits for the training: `sdk.submit("train.py", workers=2).result()`.

    Args:
        what: what `plan` takes, or a Plan, which is executed exactly.
        args: as for `plan`; so are the others.
        workers: as for `plan`.
        accelerator: as for `plan`.
        backend: as for `plan`.
        root: as for `plan`.
        name: as for `plan`.

    Raises:
        InputError: with every mistake that was found, before anything was written or started.
    """
    keywords = {"args": args, "workers": workers, "accelerator": accelerator}
    target = {"backend": backend, "root": root, "name": name}
    if isinstance(what, Plan):
        _refuse_inside_task("submit")
        _refuse_keywords({**keywords, **target}, "a Plan, which has decided them")
        return execute(what)
    return execute(make(what, {k: v for k, v in keywords.items() if v is not None}, target, os.environ, verb="submit"))


def attach(url_or_id: str | Path, *, root: str | Path | None = None) -> Run:
    """Return the handle of a run that exists: `sdk.attach("digits-k3f9aa")`.

    Args:
        url_or_id: its directory, or its id below `root`.
        root: as for `plan`.

    Raises:
        RunNotFoundError: there is none.
        CorruptRunError: the directory is not podlift's, or it is damaged.
    """
    text = str(url_or_id)
    if ids.is_run_id(text) and not Path(text).is_dir():
        paths = RootPaths(resolve_root(root, os.environ)).run(text)
    else:
        paths = RunPaths(str(Path(text).expanduser().resolve()))
    if not Path(paths.url).is_dir():
        raise RunNotFoundError(f"No run is there. Received: {text!r}. Looked at {paths.url!r}. Next: podlift runs.")
    try:
        found = Plan.from_json(Path(paths.plan).read_bytes(), paths.plan)
    except OSError as error:
        raise CorruptRunError(f"{paths.url!r} is no run of podlift: {error.strerror}: plan.json.") from None
    if found.url != paths.url:
        moved = found.paths.url
        raise CorruptRunError(f"The run {found.run_id} was moved: it belongs to {moved!r}, found at {paths.url!r}.")
    return Run(found)


def runs(*, root: str | Path | None = None, limit: int | None = 20) -> list[RunInfo]:
    """Return the newest runs below a root, newest first; damaged ones too, with what is wrong with them.

    Args:
        root: as for `plan`.
        limit: at most this many; None for all.
    """
    folder = Path(RootPaths(resolve_root(root, os.environ)).runs)
    found = [entry for entry in os.scandir(folder) if entry.is_dir()] if folder.is_dir() else []
    found.sort(key=lambda entry: (entry.stat().st_mtime, entry.name), reverse=True)
    return [_info(entry.path) for entry in found[:limit]]


def _info(url: str) -> RunInfo:
    try:
        return RunInfo(id=Path(url).name, url=url, status=attach(url).status())
    except InputError as error:
        return RunInfo(id=Path(url).name, url=url, status=None, problem=str(error))


def make(
    what: str | Path | Job | Any,
    given: Mapping[str, Any],
    target: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "plan",
) -> Plan:
    """Return the plan for flat settings: what `plan`, `submit` and the command have in common.

    Args:
        what: an entry or a Job.
        given: flat settings that were given as arguments.
        target: backend, root and name, None where not given.
        environ: where `PODLIFT_*` variables are looked for.
        verb: who asks, for the errors.
    """
    _refuse_inside_task(verb)
    problems = Problems()
    settings: dict[str, Any] = {}
    with problems.collect():
        settings = config.from_environment(environ)
    where = {key: target.get(key) if target.get(key) is not None else settings.pop(key, None) for key in config.TARGET}
    if isinstance(what, Job):
        with problems.collect():
            _refuse_keywords(given, "a Job, which has fields for them")
        settings = {**settings, **config.flat(what)}
    elif isinstance(what, (str, Path)):
        settings = {**settings, **given, "entry": str(what)}
    else:
        said = f"{type(what).__module__}.{type(what).__qualname__}"
        hint = "Name a function as 'package.module:function'." if callable(what) else "Expected a string, a path or a Job."
        raise InputError([*problems.found, f"This cannot be run: {what!r} (a {said}). {hint}"])
    job = None
    with problems.collect():
        job = Job(**config.nested(settings))
    root, backend, name = "", where["backend"] or "local", where["name"]
    with problems.collect():
        backends.check_name(backend, str(where["root"]) if where["root"] else None)
    with problems.collect():
        root = resolve_root(where["root"], environ)
        _check_writable(root)
    with problems.collect():
        name = None if name is None else ids.check_name(name)
    source, packed, notes = None, None, []
    with problems.collect():
        source = locate(settings["entry"], settings.get("project"))
        packed = _pack(source, Path(root or "/nonexistent"))
        notes = _notes(source)
    problems.raise_if_any()
    if job is None or source is None or packed is None:
        raise AssertionError("a check failed without a problem")
    made = planner.make_plan(
        job=job.model_dump(mode="json"),
        argv=[] if source.function and isinstance(job.args, dict) else job.argv(),
        kwargs=job.args if isinstance(job.args, dict) else {},
        run_id=ids.new_run_id(name or ids.default_name(source.target, source.project.name)),
        root=root,
        backend=backend,
        source={
            "kind": source.kind,
            "target": source.target,
            "function": source.function,
            "project": str(source.project),
            "roots": list(source.roots),
            "only": source.file if source.alone else "",
        },
        bundle={
            "digest": packed.digest,
            "files": [[m.path, m.size, m.sha256, m.executable] for m in packed.members],
            "left_out": list(packed.left_out),
        },
        facts=backends.load(backend).probe(),
        notes=notes,
    )
    bad = [message for level, message in made.findings if level == "error"]
    if bad:
        raise InputError(bad)
    return made


def execute(made: Plan) -> Run:
    """Do what a plan says.

    Raises:
        InputError: the files changed since, or the plan was executed before.
    """
    members = tuple(bundle.Member(*file) for file in made.files)
    backend = backends.load(made.backend)
    request = backend.render(made)
    Path(RootPaths(made.root).runs).mkdir(parents=True, exist_ok=True)
    bundle.write(bundle.Bundle(made.digest, members, ()), Path(made.project), Path(made.bundle))
    try:
        posix.put_new(made.paths.plan, made.to_json().encode())
    except FileExistsError:
        raise InputError(f"This plan was submitted before. Next: podlift status {made.run_id}.") from None
    Recorder(made.paths, "client", 0, SystemClock()).record("submitted", argv=sys.argv[:1])
    backend.start(request)
    return Run(made)


def resolve_root(root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the absolute path of the root.

    Raises:
        InputError: it is a URL; this version keeps runs on disk.
    """
    text = str(root or environ.get("PODLIFT_ROOT") or _DEFAULT_ROOT)
    if "://" in text:
        raise InputError(f"This version keeps runs on disk only. Received: root={text!r}. Use a folder.")
    return str(Path(text).expanduser().resolve())


def _check_writable(root: str) -> None:
    place = Path(root)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise InputError(f"The root cannot be made: {str(place)!r} is a file. Received: {root!r}.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"The root cannot be written: no permission for {str(place)!r}. Received: {root!r}.")


def _pack(source: Source, root: Path) -> bundle.Bundle:
    packed = bundle.build(source.project, never=root, only=source.file if source.alone else None)
    imports.check(source, {member.path for member in packed.members})
    return packed


def _notes(source: Source) -> list[Finding]:
    if not source.alone:
        return []
    reason = f"Only the script is packaged: {str(source.project)!r} is shared with other things. Name project= to change that."
    return [Finding("note", reason)]


def _refuse_keywords(given: Mapping[str, Any], beside: str) -> None:
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise InputError(f"{', '.join(names)}: not beside {beside}.")


def _refuse_inside_task(verb: str) -> None:
    task = inside_task()
    if task is not None:
        raise InsideTaskError(
            f"sdk.{verb} was called inside the task {task}: the program that is being run would start itself again. Put the "
            "training into a function and submit that by name, under a guard that no task passes:\n"
            "    if __name__ == '__main__':\n"
            "        sdk.submit('train:main')"
        )
