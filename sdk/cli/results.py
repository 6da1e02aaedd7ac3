"""The verbs for the files of a run: get, checkpoints."""

from __future__ import annotations

import datetime
import os
from dataclasses import asdict
from pathlib import Path

import typer

from .. import api
from ..checkpoint import catalog
from ..checkpoint.catalog import CheckpointInfo
from ..errors import InputError
from ..job.layout import RunPaths
from ..model_registry.models import ModelVersion
from ..planning.references import LATEST
from ..run import Run
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..storage.registry import open_store
from ..storage.trees import readable
from ..text import counted, size
from .models import facts_of
from .output import answer, as_json, say, summary
from .parameters import Dest, Json, Pin, PinName, ReadRef, RefOrVersion, Root, Unpin, Verify
from .screen import table

_SHOWN = 20


def get(ref: RefOrVersion = LATEST, dest: Dest = None, root: Root = None, json_output: Json = False) -> None:
    """Copy the outputs of a run, or the files of a model's version, into a folder.

    Outputs are its files and its model. Each file of a version is verified. Nothing is overwritten.
    """
    version = api.models(root).version(ref)
    if version is not None:
        _get_version(version, dest, json_output)
        return
    run = api.attach(ref, root=root)
    dest = run.id if dest is None else dest
    written = run.download(dest)
    collected = run.collected()
    there = Path(run.plan.paths.outputs).is_dir()
    folder = str(Path(dest).expanduser().resolve()) if there else None
    if json_output:
        paths = [readable(path) for path in written]
        as_json({**summary(run, run.status()), "dest": folder, "files": paths, "collected": collected})
    elif folder is not None:
        answer(folder)
    say(f"{run.id}: {_copied(written)}" if there else f"{run.id}: {_nothing(run, collected)}")
    if there and collected is None:
        say("Some files may be missing: the supervisor was killed while it collected them.")
    skipped = collected["skipped"] if collected else []
    for path, reason in skipped[:_SHOWN]:
        say(f"not collected  {path}: {reason}")
    if collected and collected["skipped_count"] > _SHOWN:
        say(f"not collected  {collected['skipped_count'] - _SHOWN} more. Next: --json.")


def _get_version(version: ModelVersion, dest: str | None, json_output: bool) -> None:
    record = version.record
    folder = version.download(dest or f"{record.model}-{record.number}")
    if json_output:
        as_json({**facts_of(version), "dest": folder})
    else:
        answer(folder)
    say(f"{record.model}: {counted(record.files, 'file')} of version {record.number}, {size(record.size_bytes)}")


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
    filled = [folder for folder in places if Path(folder).is_dir() and any(Path(folder).iterdir())]
    reason = "nothing was collected: the supervisor of the run was killed."
    return f"{reason} See {' and '.join(filled)}." if filled else f"{reason} It has no files of its own."


def checkpoints(
    ref: ReadRef = LATEST,
    verify: Verify = False,
    pin: Pin = None,
    name: PinName = "kept",
    unpin: Unpin = None,
    root: Root = None,
    json_output: Json = False,
) -> None:
    """List, verify or pin the checkpoints of a run."""
    run = api.attach(ref, root=root)
    store = open_store(RunPaths(run.url).store)
    if pin is not None and unpin is not None:
        raise InputError("--pin and --unpin cannot be combined.")
    if pin is not None:
        catalog.pin(store, catalog.find(RunPaths(run.url), pin).key, name)
    if unpin is not None:
        catalog.unpin(store, unpin)
    saved = run.checkpoints()
    wrong = {entry.key: catalog.verify(store, entry.key, run.id) for entry in saved} if verify else {}
    if json_output:
        as_json([{**asdict(entry), **({"damage": wrong[entry.key]} if verify else {})} for entry in saved])
    else:
        _show(saved, wrong)
    bad = [entry for entry in saved if wrong.get(entry.key)]
    if verify:
        say(f"{len(saved) - len(bad)} of {len(saved)} verified" + (f"; damaged: {len(bad)}" if bad else ""))
    raise typer.Exit(EXIT_INFRASTRUCTURE if bad else EXIT_DONE)


def _show(saved: list[CheckpointInfo], wrong: dict[str, str | None]) -> None:
    rows = [
        (
            str(entry.step),
            "-" if entry.created_at is None else datetime.datetime.fromtimestamp(entry.created_at).strftime("%F %T"),
            "-" if entry.size is None else size(entry.size),
            entry.reason or "-",
            ", ".join(f"pinned as {name}" for name in entry.pinned),
            wrong.get(entry.key) or entry.quarantined or "; ".join(f"not exact: {text}" for text in entry.downgrades),
        )
        for entry in saved
    ]
    table(("step", "saved", "size", "why", "kept", ""), rows)
    if not rows:
        say(
            "There are no checkpoints. A training with fit saves them by itself; another program calls ctx.checkpoint()."
        )
