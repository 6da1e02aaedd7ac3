"""The verb that tidies up: prune."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..clock import SystemClock
from ..errors import InputError
from ..planning.roots import in_bucket, resolve_root
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..storage.cache import cache_folder
from ..upkeep import prune as pruning
from .output import answer, as_json, say
from .start import Json, Root
from .watch import on_terminal

OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="a number and s, m, h, d or w")]
Keep = Annotated[int, typer.Option("--keep", metavar="N", min=0, help="so many of the newest runs stay in any case")]
Yes = Annotated[bool, typer.Option("--yes", help="remove what is shown; without it nothing is removed")]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_OLDER_THAN = "30d"
_PLURALS = {
    "run": "runs",
    "bundle": "bundles",
    "copy": "copies on this machine",
    "cache": "caches",
    "environment": "environments",
    "remains": "remains of earlier removals",
}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


def prune(
    older_than: OlderThan = _OLDER_THAN,
    keep: Keep = pruning.KEEP,
    yes: Yes = False,
    root: Root = None,
    json_output: Json = False,
) -> None:
    """Remove old runs, and bundles, copies and caches that nobody uses; without --yes, only show them."""
    found = pruning.find(
        resolve_root(root, os.environ),
        older_than_s=seconds(older_than),
        keep=keep,
        now=SystemClock().now(),
        cache=cache_folder(os.environ),
    )
    done = pruning.remove(found) if yes else pruning.Removal()
    shown = done.items if yes else found.items
    if json_output:
        as_json(_summary(found, done, yes))
    else:
        _show(shown)
    for left in (*found.left, *done.left):
        say(f"left alone  {left.path}: {left.why}.")
    for problem in done.problems:
        say(f"podlift: {problem}")
    say(_conclusion(found, done, yes, _again(older_than, keep, root)))
    raise typer.Exit(EXIT_INFRASTRUCTURE if done.problems else EXIT_DONE)


def seconds(text: str) -> float:
    """Return the seconds that "30d" or "1.5h" means.

    Raises:
        InputError: it means none.
    """
    match = _AGE.fullmatch(text.strip().lower())
    if match and match[2] in _UNITS_S:
        return float(match[1]) * _UNITS_S[match[2]]
    hint = f" {match[1]} of what?" if match and not match[2] else ""
    raise InputError(f"--older-than takes a number and one of s, m, h, d, w, such as 30d. Received: {text!r}.{hint}")


def size(count: int) -> str:
    """Return bytes as a person reads them: "1.2 GB"."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _age(age_s: float) -> str:
    unit = next((unit for unit in "dhm" if age_s >= 2 * _UNITS_S[unit]), "s")
    return f"{max(age_s, 0) / _UNITS_S[unit]:.0f} {unit}"


def _show(items: tuple[pruning.Item, ...]) -> None:
    rows = [(i.kind, i.name, i.state or "-", _age(i.age_s), size(i.size_bytes)) for i in items]
    if not on_terminal():
        for row in rows:
            answer("\t".join(row))
        return
    if rows:
        table = Table("what", "name", "state", "unchanged for", "size", box=None)
        for row in rows:
            # A digest is known by its beginning.
            table.add_row(row[0], Text(row[1] if len(row[1]) < 64 else f"{row[1][:12]}..."), *map(Text, row[2:]))
        Console().print(table)


def _conclusion(found: pruning.Pruning, done: pruning.Removal, yes: bool, again: str) -> str:
    items = done.items if yes else found.items
    counts = [(kind, sum(item.kind == kind for item in items)) for kind in _PLURALS]
    parts = [
        f"{count} {kind if count == 1 and kind != 'remains' else _PLURALS[kind]}" for kind, count in counts if count
    ]
    total = f"{', '.join(parts)}: {size(sum(item.size_bytes for item in items))}."
    if yes:
        return f"Removed {total}" if items else "Nothing was removed."
    if items:
        return f"Would remove {total} Nothing was removed. Next: {again} --yes"
    if not in_bucket(found.root) and not Path(found.root).is_dir():
        return f"There is nothing to remove: there is no root at {found.root!r}."
    return f"There is nothing to remove below {found.root!r}."


def _again(older_than: str, keep: int, root: str | None) -> str:
    words = ["podlift", "prune"]
    words += [] if older_than == _OLDER_THAN else ["--older-than", older_than]
    words += [] if keep == pruning.KEEP else ["--keep", str(keep)]
    words += [] if root is None else ["--root", root]
    return shlex.join(words)


def _summary(found: pruning.Pruning, done: pruning.Removal, yes: bool) -> dict[str, Any]:
    items = done.items if yes else found.items
    return {
        "root": found.root,
        "removed": yes,
        "items": [asdict(item) for item in items],
        "size_bytes": sum(item.size_bytes for item in items),
        "left": [asdict(left) for left in (*found.left, *done.left)],
        "problems": list(done.problems),
    }
