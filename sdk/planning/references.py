"""References to runs: an id, a prefix of an id, "latest", a directory, or a URL."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import ids
from ..errors import CorruptRunError, InputError, PodliftError, RunNotFoundError, StoreError, nearest
from ..job.layout import RootPaths, RunPaths
from ..job.plan import Plan
from ..logs import logger
from ..records.plans import read_plan
from ..storage import cache, emulator, posix
from ..storage.folder_files import SCHEME
from ..storage.gcs.files import INTERACTIVE
from ..storage.parallel import in_parallel
from ..storage.paths import usable
from ..storage.registry import open_files
from ..storage.retry import RetryPolicy
from ..text import and_more, emulator_at, joined
from . import remote
from .roots import configured_roots, in_bucket, in_cloud_storage, is_shared, on_emulator, resolve_root

LATEST = "latest"
_log = logger("references")
# The records that end a run, or that may follow its end.
_LATEST = ("final", "resumed", "registered")
# For a bucket among several roots: the other roots must not wait long for it.
_BRIEF = RetryPolicy(connect_s=3.0, read_s=5.0, total_s=6.0, first_s=5.0)
_SHOWN = 6


def url_of(text: str, root: str | Path | None, environ: Mapping[str, str]) -> str:
    """Return the directory of the run that `text` refers to, as an absolute path or gs://BUCKET/PREFIX/runs/ID.

    A bare word is a run of the root rather than a folder here, since `podlift get` names its folder after the run. `attach`
    checks that the run exists.
    """
    if in_bucket(text):
        return resolve_root(text, environ)
    with usable("The run", text):
        if text and "/" not in text and not text.startswith((".", "~")):
            roots, problems = configured_roots(environ) if root is None else ([resolve_root(root, environ)], [])
            return _named(text, roots, environ, problems)
        path = str(Path(text).expanduser().resolve())
        return f"{SCHEME}{path}" if is_shared(RunPaths(path).root) else path


def shortest(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the shortest reference by which this shell finds a run."""
    with suppress(InputError):
        roots = configured_roots(environ)[0]
        # Of a run that was copied, the one in a folder of this machine is found by its id.
        here = [root for root in roots if not in_bucket(root) and Path(RootPaths(root).run(plan.run_id).url).is_dir()]
        if plan.root in roots and here in ([], [plan.root]):
            return plan.run_id
    return shlex.quote(plan.url)


def attached(url: str, text: str, environ: Mapping[str, str]) -> Plan:
    """Return the plan of an existing run, by its directory; `text` is the user's reference."""
    if in_bucket(url):
        return remote.attach(url, environ)
    paths = RunPaths(url)
    with usable("The run", text):
        there = Path(url).is_dir()
    if not there:
        raise RunNotFoundError(f"No such run. Received: {text!r}. Looked at {url!r}. Next: podlift list.")
    try:
        # A copied or differently mounted directory is read in place.
        plan = read_plan(paths, paths.root)
    except OSError as error:
        why = f"{error.strerror or error}: plan.json"
        # `podlift get` names its folder after the run.
        if isinstance(error, FileNotFoundError) and Path(url, posix.MARKER).is_file():
            why = "it holds the outputs that podlift get copied. Next: name the root of the run (--root)"
        raise CorruptRunError(f"{paths.url!r} is not a run of podlift: {why}.") from None
    if plan.run_id != paths.run_id:
        raise CorruptRunError(
            f"{paths.url!r} holds the run {plan.run_id!r}: a run's directory must be named after the run."
        )
    return plan


def _named(word: str, roots: Sequence[str], environ: Mapping[str, str], problems: Sequence[str] = ()) -> str:
    """Return the run of this name in the roots, the first of which must answer; the log has a warning for each other one."""
    unlisted, needed = [*problems], roots
    if ids.is_run_id(word):
        if url := _of_id(word, roots, unlisted, environ):
            return url
        needed = roots[:1]
    here = str(Path(word).resolve())
    if Path(RunPaths(here).plan).is_file():
        return here
    listed, failures = newest_first(needed, 1 if word == LATEST else sys.maxsize, environ, first=True)
    unlisted += failures
    runs = [run for run in listed if run.whole or in_bucket(run.url)]
    fitting = runs[:1] if word == LATEST else [run for run in runs if run.id.startswith(word)]
    if len(fitting) > 1:
        # A copied run has the same id in two roots.
        names = [run.id for run in fitting]
        names = names if len({*names}) == len(names) else [run.url for run in fitting]
        raise InputError(
            f"{len(fitting)} runs have ids with this prefix, newest first: {and_more(names, _SHOWN)}. "
            f"Received: {word!r}. Next: use one of these, or {LATEST!r} for the newest run of all."
        )
    if fitting:
        for problem in unlisted:
            _log.warning(f"{problem} The newest run of the other roots that fits {word!r} is {fitting[0].id}.")
        return fitting[0].url
    if Path(here).is_dir():
        return here
    hint = nearest(word, [run.id for run in runs])
    if not hint.startswith("Did"):
        hint = f"The newest is {runs[0].id!r}." if runs else "There are no runs (--root selects another root)."
    looked = joined([*map(repr, roots)], "and")
    why = f"No such run. Received: {word!r}. Looked below {looked}. {hint} Next: podlift list."
    raise RunNotFoundError([why, *unlisted])


def _of_id(run_id: str, roots: Sequence[str], problems: list[str], environ: Mapping[str, str]) -> str:
    """Return the directory of the run with this id, "" if no root has it; a single bucket is asked by the caller."""
    urls, buckets = {root: RootPaths(root).run(run_id).url for root in roots}, [*filter(in_bucket, roots)]
    # A folder can be looked up without a request.
    here = [url for root, url in urls.items() if root not in buckets and Path(url).is_dir()]
    if here or buckets == [*roots[:1]]:
        return (here or [urls[roots[0]]])[0]
    for root in buckets:
        try:
            if open_files(root, retry=_BRIEF).exists(RootPaths("").run(run_id).plan):
                return urls[root]
        except StoreError as error:
            problems.append(_unlisted(root, environ, error))
    return ""


def _unlisted(root: str, environ: Mapping[str, str], error: Exception) -> str:
    return f"The runs below {root}{on_emulator(environ) if in_cloud_storage(root) else ''} are not listed: {error}"


def _runs(root: str, limit: int | None, *, retry: RetryPolicy = INTERACTIVE) -> list[tuple[float, str]]:
    """Return the unix times and the ids of the newest runs below a root in a bucket, newest first."""
    try:
        plan_times = open_files(root, retry=retry).matching("runs/*/plan.json")
    except StoreError as error:
        raise type(error)(f"{_hint(root)}{error}") from error
    return sorted(((time, name.split("/")[1]) for name, time in plan_times.items()), reverse=True)[:limit]


def _hint(root: str) -> str:
    """Return the next step if a request for an emulator's bucket went to Google, judged by this machine's copies of runs."""
    if emulator.endpoint() or not in_cloud_storage(root):
        return ""
    # A damaged copy must not hide the failure of the listing.
    with suppress(OSError, RuntimeError, ValueError, LookupError, TypeError):
        here = RootPaths(cache.bucket_folder(cache.cache_folder(os.environ), root))
        names = [name for _, name, whole in sorted(candidates(here.runs), reverse=True) if whole]
        if names and (address := read_plan(here.run(names[0]), root).emulator):
            return (
                f"If you mean the bucket of the {emulator_at(address)}, where the latest run that is known here belongs, use "
                f"the line `export {emulator.EMULATOR}=...` that `podlift emulator --data DIR` prints. "
            )
    return ""


class ListedRun(NamedTuple):
    """A directory that may be a run. Candidates are sorted by the time of their submit."""

    submitted: float  # unix time, of a run in a bucket by the service's clock
    id: str
    url: str
    whole: bool = False  # its plan is a file here that is not empty: it may have a summary
    here: str = ""  # the copy of a run in a bucket, if it has every record that may change after the end of the run


def newest_first(
    roots: Sequence[str], limit: int | None, environ: Mapping[str, str], *, first: bool = False
) -> tuple[list[ListedRun], list[str]]:
    """Return the runs below several roots, at most `limit` of each bucket, and a sentence for each root that cannot be listed.

    If no root can be listed, the first failure is raised; with `first`, that of the first root.
    """

    def listed(root: str) -> list[ListedRun] | PodliftError:
        folder = RootPaths(root).runs
        retry = _BRIEF if len(roots) > 1 and not (first and root == roots[0]) else INTERACTIVE
        try:
            if in_bucket(root):
                runs = _runs(root, limit, retry=retry)
                copies = {} if limit is not None else _copies(root, [run for _, run in runs], environ, retry)
                return [ListedRun(time, run, f"{folder}/{run}", here=copies.get(run, "")) for time, run in runs]
            return [ListedRun(time, run, f"{folder}/{run}", whole) for time, run, whole in candidates(folder)]
        except (StoreError, InputError) as error:
            return error

    answers = in_parallel(listed, roots) if len(roots) > 1 else [*map(listed, roots)]
    failures = {root: answer for root, answer in zip(roots, answers, strict=True) if isinstance(answer, PodliftError)}
    if len(failures) == len(roots) or (first and roots[0] in failures):
        raise next(iter(failures.values()))
    runs = [run for answer in answers if not isinstance(answer, PodliftError) for run in answer]
    return sorted(runs, reverse=True), [_unlisted(root, environ, error) for root, error in failures.items()]


def _copies(root: str, runs: Sequence[str], environ: Mapping[str, str], retry: RetryPolicy) -> dict[str, str]:
    """Return this machine's copies of runs in a bucket that have a summary, and every record that could make it outdated."""
    here = RootPaths(cache.bucket_folder(cache.cache_folder(environ), root))
    summarized = {run: paths for run in runs if os.path.exists((paths := here.run(run)).summary)}
    if not summarized:
        return {}
    files = open_files(root, retry=retry)
    patterns = [f"runs/*/events/*.{kind}.json" for kind in _LATEST]
    for name in (name for records in in_parallel(files.matching, patterns) for name in records):
        _, run, _, record = name.split("/")
        if run in summarized and not os.path.exists(f"{summarized[run].events}/{record}"):
            del summarized[run]
    return {run: paths.url for run, paths in summarized.items()}


def candidates(folder: str) -> list[tuple[float, str, bool]]:
    """Return (time of the submit, name, plan is a file that is not empty) for each folder that may be a run."""
    try:
        with os.scandir(folder) as entries:
            # Hidden folders are being removed.
            names = [entry.name for entry in entries if entry.name[0] != "." and _is_folder(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"The runs cannot be listed: {error.strerror}. Received: {folder!r}.") from None
    return [_submitted(f"{folder}/{name}", name) for name in names]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _submitted(url: str, name: str) -> tuple[float, str, bool]:
    try:
        # The plan is written once, on submit; the folder's own time changes with its content.
        info = os.stat(RunPaths(url).plan)
        return info.st_mtime, name, stat.S_ISREG(info.st_mode) and info.st_size > 0
    except OSError:
        # Missing or unreadable: the listing reports which.
        with suppress(OSError):
            return os.stat(url).st_mtime, name, False
    return 0.0, name, False
