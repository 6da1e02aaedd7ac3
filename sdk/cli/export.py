"""The verb that writes runs into a file or to experiment trackers: export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .. import api, exports
from ..clock import Clock, SystemClock
from ..errors import CorruptObjectError, CorruptRunError, InputError, Problems, StoreError
from ..ids import is_name
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..planning.references import LATEST, shortest
from ..planning.roots import in_bucket, searched
from ..storage.paths import usable
from ..sweeps.reader import Reader
from ..sweeps.records import Book
from ..text import counted, size
from ..ui import gather, model, pages
from ..ui.model import RunView
from .output import answer, relayed, say
from .parameters import ExportInto, ExportOutput, ExportTo, Refs, Root
from .sweep_view import view_of
from .verbs import REPORTS

# The mark of a report, and the number of bytes in which it stands.
_MARK, _HEAD = b"podlift report", 1 << 11


def export(to: ExportTo, refs: Refs, output: ExportOutput = None, into: ExportInto = None, root: Root = None) -> None:
    """Write runs or a sweep into one file, or runs to MLflow, Weights & Biases or Trackio.

    With html, the file needs no other and no network: state, root cause, curves, timeline, tasks, logs, checkpoints and plan.
    Several runs are compared. The name of a sweep writes the sweep: its best trial, charts and table. With md, it is a summary
    of runs that a CI job can post.

    A tracker gets parameters, metrics with steps and times, state, labels and URLs of checkpoints, but no files. Exporting a
    run again adds what is new and doubles nothing.
    """
    if (into if to in REPORTS else output) is not None:
        option, of = ("--into", "a tracker") if to in REPORTS else ("--output", "html and md")
        raise InputError(f"{option} is for {of}. Received: {to!r}. Nothing was written.")
    if to in REPORTS:
        _report(to, refs, output, root)
    else:
        _track(to, refs, into, root)


def _track(to: str, refs: Sequence[str], into: str | None, root: str | None) -> None:
    problems, runs = Problems(), dict[str, exports.ExportedRun]()
    # All runs are read before the first one is written.
    with problems.closing():
        with problems.collect():
            exports.check(to, REPORTS)
        for ref in refs:
            with problems.collect():
                run = api.attach(ref, root=root)
                runs[run.url] = exports.read(run)
    with relayed("exports"):
        for record in runs.values():
            where = exports.write(to, record, into)
            answer(f"{record.id} {where}")
            text = f"{counted(len(record.points), 'record')} of metrics.{_rest(record)}"
            say(f"{record.id} is {record.state.value}: {text}")


def _rest(run: exports.ExportedRun) -> str:
    return " It goes on. Next: export it again when it has ended." if run.ended is None else ""


def _report(format: str, refs: Sequence[str], output: str | None, root: str | None) -> None:
    clock, problems = SystemClock(), Problems()
    if (sweep := _sweep(refs, root)) is not None:
        _write_sweep(sweep, format, refs, output, clock)
        return
    views, plans = dict[str, RunView](), dict[str, Plan]()
    # Before anything is read, which may take long.
    path = _place(output, format, refs[0])
    with problems.closing():
        for ref in refs:
            with problems.collect():
                view, plan = _view_and_plan(ref, root, clock, is_only=len(refs) == 1)
                views[view.url] = view
                plans |= {} if plan is None else {view.id: plan}
    view_list = [*views.values()]
    comparison = model.compared(view_list, gather.differences(plans) if plans else {})
    text = pages.markdown(view_list, comparison) if format == "md" else pages.report(view_list, comparison, clock.now())
    _write(text, path)


def _write(text: str, path: Path | None) -> None:
    if path is None:
        answer(text.rstrip("\n"))
        return
    with usable("The output", path):
        path.write_bytes(text.encode())
    say(f"Written: {path}, {size(path.stat().st_size)}. It needs no other file and no network.")


def _sweep(refs: Sequence[str], root: str | None) -> tuple[str, str] | None:
    """Return the root and the name of the first sweep among some references: a whole name is the sweep, not its trials."""
    roots = searched(root)[0]
    here = [RootPaths(place) for place in roots if not in_bucket(place)]
    for name in (ref for ref in refs if is_name(ref) and ref != LATEST):
        is_here = any(Path(place.run(name).url).is_dir() for place in here)
        for place in sorted(roots, key=in_bucket):
            # A run in a folder needs no answer from a bucket.
            if is_here and in_bucket(place):
                continue
            try:
                if Book(place).find(name) is not None:
                    return place, name
            except StoreError as error:
                # A bucket that does not answer is named when its runs are asked for.
                if isinstance(error, CorruptObjectError) or not in_bucket(place):
                    raise
    return None


def _write_sweep(sweep: tuple[str, str], format: str, refs: Sequence[str], output: str | None, clock: Clock) -> None:
    root, name = sweep
    if format != "html" or len(refs) > 1:
        raise InputError(
            f"A sweep is written as html, by itself. Received: {format} {' '.join(refs)}. Next: podlift export html {name}"
        )
    path = _place(output, format, name)
    reading = Reader(root, clock).one(name)
    _write(pages.sweep_report(view_of(reading), clock.now()), path)
    if reading.damage:
        raise reading.damage


def _view_and_plan(ref: str, root: str | None, clock: Clock, *, is_only: bool) -> tuple[RunView, Plan | None]:
    """Return the view of a run and its plan. A damaged run beside others has a view that says so."""
    try:
        run = api.attach(ref, root=root)
    except CorruptRunError as error:
        if is_only:
            raise
        return gather.unreadable(ref, ref, error), None
    try:
        return gather.look(run, shortest(run.plan, os.environ), clock), run.plan
    except CorruptRunError as error:
        return gather.unreadable(run.id, run.url, error), run.plan


def _place(output: str | None, format: str, ref: str) -> Path | None:
    """Return the file to write; None for stdout. A file that is no report is not overwritten."""
    if output == "-" or (output is None and format == "md"):
        return None
    path = Path(output or f"{Path(ref).name}.{format}")
    with usable("The output", path):
        if path.is_dir() or not path.parent.is_dir():
            kind = "is a folder" if path.is_dir() else "is in a folder that does not exist"
            raise InputError(f"The output {kind}. Received: {str(path)!r}. Nothing was written.")
        if os.path.lexists(path) and not _replaceable(path):
            next_step = "Nothing was written. Next: choose another file."
            raise InputError(f"The output exists and is not a report. Received: {str(path)!r}. {next_step}")
    return path


def _replaceable(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return not head or _MARK in head
