"""The verb that lists, verifies and pins checkpoints: checkpoints."""

from __future__ import annotations

import datetime
from dataclasses import asdict

import typer

from .. import api
from ..checkpoint import catalog
from ..checkpoint.catalog import CheckpointInfo
from ..errors import InputError
from ..spec.layout import RunPaths
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..storage.registry import open_store
from ..text import size
from .output import as_json, say, table
from .parameters import Json, Pin, PinName, Ref, Root, Unpin, Verify


def checkpoints(
    ref: Ref,
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
    found = run.checkpoints()
    wrong = {entry.key: catalog.verify(store, entry.key, run.id) for entry in found} if verify else {}
    if json_output:
        as_json([{**asdict(entry), **({"damage": wrong[entry.key]} if verify else {})} for entry in found])
    else:
        _show(found, wrong)
    bad = [entry for entry in found if wrong.get(entry.key)]
    if verify:
        say(f"{len(found) - len(bad)} of {len(found)} verified" + (f"; damaged: {len(bad)}" if bad else ""))
    raise typer.Exit(EXIT_INFRASTRUCTURE if bad else EXIT_DONE)


def _show(found: list[CheckpointInfo], wrong: dict[str, str | None]) -> None:
    rows = [
        (
            str(entry.step),
            "-" if entry.created_at is None else datetime.datetime.fromtimestamp(entry.created_at).strftime("%F %T"),
            "-" if entry.size is None else size(entry.size),
            entry.reason or "-",
            ", ".join(f"pinned as {name}" for name in entry.pinned),
            wrong.get(entry.key) or entry.quarantined or "; ".join(f"not exact: {text}" for text in entry.downgrades),
        )
        for entry in found
    ]
    table(("step", "saved", "size", "why", "kept", ""), rows)
