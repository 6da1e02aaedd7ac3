"""The verb that writes runs into one file: report."""

from __future__ import annotations

import os
from pathlib import Path

from .. import api
from ..clock import Clock, SystemClock
from ..errors import CorruptRunError, InputError, Problems, nearest
from ..job.plan import Plan
from ..storage.paths import usable
from ..text import size
from ..ui import gather, model, pages
from ..ui.model import RunView
from .output import answer, say
from .parameters import Refs, ReportFile, ReportFormat, Root
from .start import reference

_FORMATS = ("html", "md")
# What tells a report from another file, and how far into the file that is.
_MARK, _HEAD = b"podlift report", 1 << 11


def report(refs: Refs, output: ReportFile = None, format: ReportFormat = "html", root: Root = None) -> None:
    """Write runs into one HTML file.

    It needs no other file and no network: state, root cause, curves, timeline, tasks, logs, checkpoints and plan. Several runs
    are compared. --format md prints a summary that a CI job can post.
    """
    if format not in _FORMATS:
        raise InputError(f"--format: unknown format. Received: {format!r}. {nearest(format, _FORMATS)}")
    clock, problems = SystemClock(), Problems()
    views, plans = dict[str, RunView](), dict[str, Plan]()
    # Before anything is read, which may take long.
    place = _place(output, format, refs[0])
    with problems.closing():
        for ref in refs:
            with problems.collect():
                view, plan = _seen(ref, root, clock, alone=len(refs) == 1)
                views[view.url] = view
                plans |= {} if plan is None else {view.id: plan}
    shown = [*views.values()]
    found = model.compared(shown, gather.differences(plans))
    text = pages.markdown(shown, found) if format == "md" else pages.report(shown, found, clock.now())
    if place is None:
        answer(text.rstrip("\n"))
        return
    with usable("The output", place):
        place.write_bytes(text.encode())
    say(f"Written: {place}, {size(place.stat().st_size)}. It needs no other file and no network.")


def _seen(ref: str, root: str | None, clock: Clock, *, alone: bool) -> tuple[RunView, Plan | None]:
    """Return the view of a run and its plan. A damaged run beside others has a view that says so."""
    try:
        run = api.attach(ref, root=root)
    except CorruptRunError as error:
        if alone:
            raise
        return gather.unreadable(ref, ref, error), None
    try:
        return gather.look(run, reference(run), clock), run.plan
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
