"""The verb that removes old runs and caches: remove."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import typer

from ..clock import SystemClock
from ..planning.roots import configured_roots, in_bucket, resolve_root
from ..status import EXIT_DONE, EXIT_INFRASTRUCTURE
from ..storage.cache import cache_folder
from ..text import clipped, duration, size
from ..upkeep import remove as removing
from .output import as_json, say, seconds
from .parameters import Json, Keep, OlderThan, Root, Yes
from .screen import on_terminal, table

_OLDER_THAN = "30d"
_PLURALS = {
    "run": "runs",
    "bundle": "bundles",
    "runtime": "runtimes",
    "entrypoint": "entrypoints",
    "model part": "model parts",
    "copy": "copies on this machine",
    "cache": "caches",
    "environment": "environments",
    "remains": "remains of earlier removals",
}
_DIGEST_SHOWN = 12
_BY_DIGEST = {"bundle", "runtime", "entrypoint", "model part"}


def remove(
    older_than: OlderThan = _OLDER_THAN,
    keep: Keep = removing.KEEP,
    yes: Yes = False,
    root: Root = None,
    json_output: Json = False,
) -> None:
    """Remove old runs and unused caches.

    Archives and copies that are not used are removed too. Without --yes, they are only listed.
    """
    plan = removing.find(
        resolve_root(root, os.environ),
        older_than_s=seconds("--older-than", older_than, unit_required=True),
        keep=keep,
        now=SystemClock().now(),
        cache=cache_folder(os.environ),
    )
    result = removing.remove(plan) if yes else removing.RemovalResult()
    items, skipped = result.items if yes else plan.items, (*plan.skipped, *result.skipped)
    if json_output:
        lists = {"items": [asdict(item) for item in items], "left": [asdict(item) for item in skipped]}
        total = sum(item.size_bytes for item in items)
        as_json({"root": plan.root, "removed": yes, "size_bytes": total, "problems": list(result.problems), **lists})
    else:
        _show(items)
    for item in skipped:
        say(f"kept  {item.path}: {item.why}.")
    for problem in result.problems:
        say(f"podlift: {problem}")
    if yes:
        say(f"Removed {_total(items)}" if items else "Nothing was removed.")
    elif items:
        say(f"Would remove {_total(items)} Nothing was removed. Next: {_again(older_than, keep, root)} --yes")
    else:
        say(_nothing_in(plan.root))
    for other in configured_roots(os.environ)[0] if root is None else ():
        if other != plan.root:
            say(f"The runs below {other!r} were not checked. Next: {_again(older_than, keep, other)}")
    raise typer.Exit(EXIT_INFRASTRUCTURE if result.problems else EXIT_DONE)


def _show(items: tuple[removing.Candidate, ...]) -> None:
    rows = []
    for item in items:
        name = clipped(item.name, _DIGEST_SHOWN) if on_terminal() and item.kind in _BY_DIGEST else item.name
        rows.append((item.kind, name, item.state or "-", duration(item.age_s, units=1), size(item.size_bytes)))
    if rows:
        table(("what", "name", "state", "unchanged for", "size"), rows)


def _total(items: tuple[removing.Candidate, ...]) -> str:
    counts = Counter(item.kind for item in items)
    parts = [
        f"{counts[kind]} {kind if counts[kind] == 1 and kind != 'remains' else plural}"
        for kind, plural in _PLURALS.items()
        if counts[kind]
    ]
    return f"{', '.join(parts)}: {size(sum(item.size_bytes for item in items))}."


def _nothing_in(root: str) -> str:
    if not in_bucket(root) and not Path(root).is_dir():
        return f"There is nothing to remove: the root {root!r} does not exist."
    return f"There is nothing to remove below {root!r}."


def _again(older_than: str, keep: int, root: str | None) -> str:
    words = ["podlift", "remove"]
    words += [] if older_than == _OLDER_THAN else ["--older-than", older_than]
    words += [] if keep == removing.KEEP else ["--keep", str(keep)]
    words += [] if root is None else ["--root", root]
    return shlex.join(words)
