"""plan, submit, attach, runs, models: the entry points of the package."""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from . import backends, ids, launch
from .errors import InputError, nearest
from .job.job import Job
from .job.layout import RunPaths
from .job.plan import Plan
from .job.values import UNSET, Unset
from .logs import logger
from .model_registry.evidence import Evidence
from .model_registry.models import ModelVersion
from .model_registry.registry import Registry
from .planning import references
from .planning.prepare import make_plan, refuse_inside_task, refuse_keywords
from .planning.roots import configured_root, configured_roots, in_bucket, resolve_root
from .planning.settings.merge import from_keywords, keywords_of
from .process import garbage
from .records import summaries
from .records.events import DAMAGE
from .run import Run, RunInfo, listed_status
from .status import State, steps_left
from .storage.parallel import in_parallel
from .ui.rows import RunRows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .job.job import JsonArgs
    from .planning.settings.keywords import Env, Kubernetes, Local, MoreKeywords, Ray, Vertex

_log = logger("api")


def plan(
    what: str | Path | Callable[..., Any] | Job,
    *,
    args: JsonArgs | None = None,
    workers: int | None = None,
    accelerator: str | None = None,
    backend: str | Kubernetes | Local | Ray | Vertex | None = None,
    name: str | None = None,
    root: str | Path | None = None,
    env: Env | None = None,
    model: str | Unset | None = UNSET,
    checkpoint_every: str | float | Unset | None = UNSET,
    max_steps: int | Unset | None = UNSET,
    timeout: str | float | Unset | None = UNSET,
    max_cost_usd: float | Unset | None = UNSET,
    **more: Unpack[MoreKeywords],
) -> Plan:
    """Decide everything about a run without changing anything: `print(sdk.plan("train.py", workers=2))`.

    Args:
        what: the path of a script, of a notebook, or of a folder with a `__main__.py`; `package.module`,
            `package.module:function`, a function, or a Job. A function from a notebook or from `__main__` is sent as source
            code, with the values that it uses as JSON.
        args: arguments of the program, as JSON. A list is argv; a dict is keyword arguments of a function, or `--key value` of
            a script.
        workers: training tasks, including the chief. At least 1.
        accelerator: hardware of each task: a name from `podlift accelerators`.
        backend: where the run executes: "local", "vertex", "ray", "kubernetes", or a Kubernetes, Local, Ray or Vertex value.
        name: a label; the run's id is the name and six random characters.
        root: the folder, or gs://BUCKET/PREFIX, below which runs live; `PODLIFT_ROOT`, else `~/.podlift`.
        env: environment variables of every task. Texts are stored with the run: for a secret give `FromCaller()`, which stores
            the name only, or a `Secret`.
        model: name of the model in the registry.
        checkpoint_every: how often to save: auto, 5m, 500steps, 500steps,5m or none.
        max_steps: training steps after which the run ends as a success.
        timeout: time limit of the whole run.
        max_cost_usd: limit on the cost of all jobs of a run together, in US dollars, jobs before a resume included.
        **more: every other setting is a keyword too: `vertex_project="mine"`, `code_requirements="none"`. See
            docs/reference/settings.md.

    Raises:
        InputError: with every mistake that was found.
    """
    # The first line: the parameters are its only variables.
    settings, target = from_keywords(keywords_of(locals()))
    return make_plan(what, settings, target, os.environ)


def submit(
    what: str | Path | Callable[..., Any] | Job | Plan,
    *,
    args: JsonArgs | None = None,
    workers: int | None = None,
    accelerator: str | None = None,
    backend: str | Kubernetes | Local | Ray | Vertex | None = None,
    name: str | None = None,
    root: str | Path | None = None,
    env: Env | None = None,
    model: str | Unset | None = UNSET,
    checkpoint_every: str | float | Unset | None = UNSET,
    max_steps: int | Unset | None = UNSET,
    timeout: str | float | Unset | None = UNSET,
    max_cost_usd: float | Unset | None = UNSET,
    **more: Unpack[MoreKeywords],
) -> Run:
    """Start a run and return its handle without waiting for the training: `sdk.submit("train.py", workers=2).result()`.

    Args:
        what: what `plan` accepts, or a Plan, which is executed exactly and takes no settings.
        args: arguments of the program, as JSON. A list is argv; a dict is keyword arguments of a function, or `--key value` of
            a script.
        workers: training tasks, including the chief. At least 1.
        accelerator: hardware of each task: a name from `podlift accelerators`.
        backend: where the run executes: "local", "vertex", "ray", "kubernetes", or a Kubernetes, Local, Ray or Vertex value.
        name: a label; the run's id is the name and six random characters.
        root: the folder, or gs://BUCKET/PREFIX, below which runs live; `PODLIFT_ROOT`, else `~/.podlift`.
        env: environment variables of every task. Texts are stored with the run: for a secret give `FromCaller()`, which stores
            the name only, or a `Secret`.
        model: name of the model in the registry.
        checkpoint_every: how often to save: auto, 5m, 500steps, 500steps,5m or none.
        max_steps: training steps after which the run ends as a success.
        timeout: time limit of the whole run.
        max_cost_usd: limit on the cost of all jobs of a run together, in US dollars, jobs before a resume included.
        **more: every other setting is a keyword too: `vertex_project="mine"`, `code_requirements="none"`. See
            docs/reference/settings.md.

    Raises:
        InputError: with every mistake that was found; nothing was written or started.
    """
    keywords = keywords_of(locals())
    if isinstance(what, Plan):
        refuse_inside_task("submit")
        refuse_keywords(keywords, "a Plan, which already fixes them")
        return Run(launch.execute(what))
    settings, target = from_keywords(keywords)
    return Run(launch.submit(make_plan(what, settings, target, os.environ, verb="submit")))


def attach(url_or_id: str | Path, *, root: str | Path | None = None) -> Run:
    """Return the handle of an existing run: `sdk.attach("digits-k3f9aa")`.

    Args:
        url_or_id: the run's directory, which may be gs://BUCKET/PREFIX/runs/ID; or a run below `root`: its id, a prefix of
            its id, or "latest".
        root: only runs below this root; by default those of every configured backend.

    Raises:
        RunNotFoundError: there is no such run.
        InputError: the prefix is ambiguous; the message lists the runs.
        CorruptRunError: the directory is not a run of podlift, or it is damaged.
    """
    text = str(url_or_id)
    url = references.url_of(text, root, os.environ)
    return Run(references.attached(url, text, os.environ))


def runs(
    *,
    root: str | Path | None = None,
    limit: int | None = 20,
    backend: str | None = None,
    state: str | Sequence[str] = (),
    name: str | None = None,
) -> list[RunInfo]:
    """Return the runs of every configured backend, newest first; damaged ones are included, with the problem.

    Usage: `sdk.runs(state="FAILED", name="digits*")`. Ended runs are read from their summaries if they have one;
    `Run.status` always reads the records. A root that cannot be listed is a warning if there are others.

    Args:
        root: only runs below this root, which is given as for `plan`.
        limit: the maximum number of runs; None for all.
        backend: only runs of this backend, in its usual root.
        state: only runs in this state, or in one of several, such as "RUNNING".
        name: only runs with this name or id; `*` matches anything.

    Raises:
        InputError: the state or the backend is unknown, or the root cannot be listed.
    """
    rows, problems = list_runs(root, limit, backend, state, name)
    for problem in problems:
        _log.warning(problem)
    return RunRows(rows)


def list_runs(
    root: str | Path | None, limit: int | None, backend: str | None, state: str | Sequence[str], name: str | None
) -> tuple[list[RunInfo], list[str]]:
    """Return the list of `runs`, and a sentence for each root that cannot be listed; raise the first failure if none can be."""
    names, states = [state] if isinstance(state, str) else state, [state.value for state in State]
    unknown = [name for name in names if name.upper() not in states]
    if unknown:
        raise InputError([f"Unknown state. Received: {name!r}. {nearest(name.upper(), states)}" for name in unknown])
    selected = [State(name.upper()) for name in names]
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, or None for all. Received: {limit!r}.")
    if backend is not None:
        backends.check_name(backend)

    def fits(info: RunInfo | None) -> TypeGuard[RunInfo]:
        return (
            info is not None
            and (backend is None or info.backend == backend)
            and (not selected or (info.status is not None and info.status.state in selected))
        )

    if root is None and backend is None:
        roots, problems = configured_roots(os.environ)
    else:
        roots, problems = [configured_root(root, os.environ, backend)], []
    at_most = limit if backend is None and not selected and name is None else None
    listed, failures = references.newest_first(roots, at_most, os.environ)
    named = [run for run in listed if _is_named(run.id, name)]
    # In a bucket, several are read at a time, but not more than needed.
    far = any(in_bucket(place) for place in roots)
    size = limit or len(named) or 1
    chunks = (named[at : at + size] for at in range(0, len(named), size))
    one_by_one = (_summarized(run) or _read(run) for run in named)
    infos = (info for chunk in chunks for info in _infos(chunk)) if far else one_by_one
    with garbage.put_off():
        return list(itertools.islice(filter(fits, infos), limit)), problems + failures


def _is_named(run: str, pattern: str | None) -> bool:
    return pattern is None or any(fnmatch.fnmatchcase(text, pattern) for text in (run, ids.name_of(run)))


def _infos(listed: Sequence[references.ListedRun]) -> list[RunInfo | None]:
    """Return the runs in these directories; None for a folder that was removed meanwhile."""
    summaries = [_summarized(run) for run in listed]
    rest = [run for run, info in zip(listed, summaries, strict=True) if info is None]
    # Threads cost more than reading a summary does.
    read = iter(in_parallel(_read, rest) if len(rest) > 1 else map(_read, rest))
    return [info or next(read) for info in summaries]


def _summarized(listed: references.ListedRun) -> RunInfo | None:
    """Return a run as its summary on this machine describes it; None if its records have to be read."""
    here = listed.here or (listed.url if listed.whole else "")
    summary = summaries.read(RunPaths(here)) if here else None
    # The supervisor of a run in a bucket writes a summary without its place.
    if summary is None or (listed.here and not summary.shown.place):
        return None
    columns = vars(summary.shown)
    about = {**columns, "place": columns["place"] or columns["backend"], "problem": "", "left_s": None}
    return summaries.frozen(RunInfo, {"id": listed.id, "url": listed.url, "status": summary.status, **about})


def _read(listed: references.ListedRun) -> RunInfo | None:
    """Return the run in a directory, from its records; None for a folder that was removed meanwhile."""
    url, name = listed.url, listed.id
    try:
        run = attach(url)
        status = listed_status(run)
        if in_bucket(url):
            run.metric_records()  # brings them
        about = summaries.columns_of(run.plan.paths)
        about = replace(about, emulator=run.plan.emulator, place=run.plan.place)
        if in_bucket(url) and status.state.terminal:
            summaries.write(run.plan.paths, summaries.Summary(status, about))
        steps, left_s = (about.steps, None) if status.state.terminal else _position(run, about)
        damage = next((text for text in status.findings if text.startswith(DAMAGE)), "")
        return RunInfo(
            id=name, url=url, status=status, **{**vars(about), "steps": steps}, problem=damage, left_s=left_s
        )
    except Exception as error:  # one broken directory must not hide the others
        if not in_bucket(url) and not os.path.lexists(url):
            return None
        return RunInfo(id=name, url=url, status=None, problem=str(error) or repr(error))


def _position(run: Run, about: summaries.Shown) -> tuple[int | None, float | None]:
    """Return the steps that a running run has done, and the seconds until its training ends; None if unknown."""
    progress = run.progress()
    if progress is None:
        return about.steps, None
    left = steps_left(progress, run.plan.job.limits.max_steps)
    return progress.step, left / about.rate if about.rate and left is not None else None


def models(root: str | Path | None = None) -> Registry:
    """Return the registered models: `sdk.models()["digits"].champion().download("digits")`.

    Args:
        root: as for `plan`; by default the roots of all configured backends.
    """
    if root is None:
        return Registry(configured_roots(os.environ)[0], attach, _judge)
    named_root = resolve_root(root, os.environ)
    return Registry([named_root], attach, _judge, named_root=named_root)


def _judge(version: ModelVersion, *, promote: bool) -> Evidence:
    from .planning.judgement import judge

    return judge(version, promote=promote)
