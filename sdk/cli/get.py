"""The verb that copies the outputs of a run: get."""

from __future__ import annotations

import os
from pathlib import Path

from .. import api
from ..run import Run
from ..storage.trees import readable
from ..text import counted, size
from .output import answer, as_json, say, summary
from .parameters import Dest, Json, Ref, Root

_SHOWN = 20


def get(ref: Ref, dest: Dest = None, root: Root = None, json_output: Json = False) -> None:
    """Copy the outputs of a run into a folder.

    Outputs are its files and its model. Nothing is overwritten.
    """
    run = api.attach(ref, root=root)
    dest = run.id if dest is None else dest
    written = run.download(dest)
    collected = run.collected()
    there = Path(run.plan.paths.outputs).is_dir()
    place = str(Path(dest).expanduser().resolve()) if there else None
    if json_output:
        paths = [readable(path) for path in written]
        as_json({**summary(run, run.status()), "dest": place, "files": paths, "collected": collected})
    elif place is not None:
        answer(place)
    say(f"{run.id}: {_copied(written)}" if there else f"{run.id}: {_nothing(run, collected)}")
    if there and collected is None:
        say("Some files may be missing: the supervisor was killed while it collected them.")
    skipped = collected["skipped"] if collected else []
    for path, reason in skipped[:_SHOWN]:
        say(f"not collected  {path}: {reason}")
    if collected and collected["skipped_count"] > _SHOWN:
        say(f"not collected  {collected['skipped_count'] - _SHOWN} more. Next: --json.")


def _copied(written: list[str]) -> str:
    if not written:
        return "all files were already there."
    return f"{counted(len(written), 'file')} copied, {size(sum(os.lstat(path).st_size for path in written))}."


def _nothing(run: Run, collected: dict[str, object] | None) -> str:
    """Return why a run has no outputs, and where else its files may be."""
    if collected is not None:
        return "the program wrote no files to its working directory or to ctx.dirs.model."
    paths = run.plan.paths
    places = (paths.work(max(run.status().attempts, 1), run.plan.tasks[0]), paths.model)
    found = [place for place in places if Path(place).is_dir() and any(Path(place).iterdir())]
    reason = "nothing was collected: the run is of an earlier podlift, or its supervisor was killed."
    return f"{reason} See {' and '.join(found)}." if found else f"{reason} It has no files of its own."
