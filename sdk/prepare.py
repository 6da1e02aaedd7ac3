"""From settings to a plan: gathers what was given, runs every check, and says all that is wrong in one error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from . import backends, checks, config, ids, planner
from .checks import Finding
from .errors import InputError, InsideTaskError, Problems
from .job import Job
from .packaging import bundle, imports
from .packaging.entry import Source, locate
from .packaging.paths import usable
from .planner import Plan
from .runtime.context import inside_task

_DEFAULT_ROOT = "~/.podlift"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a run goes: None where nothing was said."""

    backend: str | None = None
    root: str | Path | None = None
    name: str | None = None


def make_plan(
    what: str | Path | Job, given: Mapping[str, Any], target: Target, environ: Mapping[str, str], *, verb: str = "plan"
) -> Plan:
    """Return the plan for flat settings: what `plan`, `submit` and the command have in common.

    Args:
        what: an entry or a Job.
        given: flat settings that were given as arguments.
        target: where the run goes.
        environ: where `PODLIFT_*` variables are looked for.
        verb: who asks, for the errors.

    Raises:
        InputError: with every mistake that was found.
    """
    refuse_inside_task(verb)
    problems = Problems()
    found = config.from_environment(environ, problems)
    target = _target(target, found, problems)
    settings = _settings(what, given, {k: v for k, v in found.items() if k not in config.TARGET}, problems)
    job = None
    with problems.collect():
        job = Job(**config.nested(settings))
    backend, root, name = _place(target, environ, problems)
    source, packed, notes = None, None, []
    with problems.collect():
        source = locate(settings["entry"], settings.get("project"))
        packed = bundle.build(source.project, never=Path(root), only=source.file if source.alone else None)
        kwargs = None if job is None else job.args if isinstance(job.args, dict) else {}
        chief = job is not None and job.resources.workers > 1 and job.resources.cluster == "chief"
        notes = _notes(source) + imports.check(source, [m.path for m in packed.members], kwargs, chief=chief)
    problems.raise_if_any()
    if job is None or source is None or packed is None:
        raise AssertionError("a check failed without a problem")
    made = planner.make_plan(
        job=job.model_dump(mode="json"),
        argv=[] if source.function and isinstance(job.args, dict) else job.argv(),
        kwargs=job.args if isinstance(job.args, dict) else {},
        run_id=ids.new_run_id(ids.default_name(source.target, source.project.name) if name is None else name),
        root=root,
        backend=backend,
        source=_source_data(source),
        bundle=_bundle_data(packed),
        facts=backends.load(backend).probe(job.model_dump(mode="json")),
        notes=notes,
    )
    bad = checks.errors(made.findings)
    if bad:
        raise InputError(bad)
    return made


def resolve_root(root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the absolute path of the root.

    Raises:
        InputError: it is no path, or a URL: this version keeps runs on disk.
    """
    if root is None:
        root = environ.get("PODLIFT_ROOT") or _DEFAULT_ROOT
    text = str(root)
    if not isinstance(root, (str, PurePath)) or not text:
        raise InputError(f"The root is no folder. Received: {root!r}. Leave it out for {_DEFAULT_ROOT!r}.")
    if "://" in text:
        raise InputError(f"This version keeps runs on disk only. Received: root={text!r}. Use a folder.")
    with usable("The root", text):
        return str(Path(text).expanduser().resolve())


def refuse_keywords(given: Mapping[str, Any], beside: str) -> None:
    """Raise if any of the keywords was given.

    Raises:
        InputError: names them.
    """
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise InputError(f"{', '.join(names)}: not beside {beside}.")


def refuse_inside_task(verb: str) -> None:
    """Raise if this process belongs to a run.

    Raises:
        InsideTaskError: with the way out.
    """
    task = inside_task()
    if task is not None:
        raise InsideTaskError(
            f"sdk.{verb} was called inside the task {task}: the program that is being run would start itself again. "
            "Put the training into a function and submit that by name, under a guard that no task passes:\n"
            "    if __name__ == '__main__':\n"
            "        sdk.submit('train:main')"
        )


def _settings(what: object, given: Mapping[str, Any], found: dict[str, Any], problems: Problems) -> dict[str, Any]:
    if isinstance(what, Job):
        with problems.collect():
            refuse_keywords(given, "a Job, which has fields for them")
        return {**found, **config.flat(what)}
    if isinstance(what, (str, Path)):
        return {**found, **given, "entry": str(what)}
    said = f"{type(what).__module__}.{type(what).__qualname__}"
    hint = "Name a function as 'package.module:function'." if callable(what) else "Expected a string, a path or a Job."
    raise InputError([*problems.found, f"This cannot be run: {what!r} (a {said}). {hint}"])


def _target(given: Target, found: Mapping[str, Any], problems: Problems) -> Target:
    """Return where the run goes; an empty variable counts as one that is not set, an empty argument is a mistake."""
    values = {}
    for name in config.TARGET:
        value = getattr(given, name)
        if value is None:
            value = found.get(name) or None
        elif not isinstance(value, str) and not (name == "root" and isinstance(value, PurePath)):
            problems.found.append(f"The {name} is no text. Received: {value!r}.")
            value = None
        values[name] = value
    return Target(**values)


def _place(target: Target, environ: Mapping[str, str], problems: Problems) -> tuple[str, str, str | None]:
    """Return backend, root and name; what is wrong with them goes to `problems`."""
    backend, root = "local" if target.backend is None else target.backend, "/"
    with problems.collect():
        backends.check_name(backend, None if target.root is None else str(target.root))
    # A gs:// root is right for a backend of a cloud: what is wrong there was said above.
    if backend == "local" or "://" not in str(target.root):
        with problems.collect():
            root = resolve_root(target.root, environ)
            with usable("The root", root):
                _check_writable(root)
    if target.name is not None:
        with problems.collect():
            ids.check_name(target.name)
    return backend, root, target.name


def _check_writable(root: str) -> None:
    # The only call that says of a name that it is too long.
    with suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(root)
    place = Path(root)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise InputError(f"The root cannot be made: {str(place)!r} is a file. Received: {root!r}.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"The root cannot be written: no permission for {str(place)!r}. Received: {root!r}.")


def _source_data(source: Source) -> dict[str, Any]:
    return {
        "kind": source.kind,
        "target": source.target,
        "function": source.function,
        "project": str(source.project),
        "roots": list(source.roots),
        "only": source.file if source.alone else "",
    }


def _bundle_data(packed: bundle.Bundle) -> dict[str, Any]:
    return {
        "digest": packed.digest,
        "files": [[m.path, m.size, m.sha256, m.executable] for m in packed.members],
        "left_out": list(packed.left_out),
    }


def _notes(source: Source) -> list[Finding]:
    if not source.alone:
        return []
    folder = str(source.project)
    reason = f"Only the script is packaged: {folder!r} is shared with other things. Name project= to change that."
    return [Finding("note", reason)]
