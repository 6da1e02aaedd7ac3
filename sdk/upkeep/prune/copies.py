"""This machine's folders for roots in buckets: its own runs before their upload, and copies of others.

A folder is removed only if everything in it is in the bucket too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from ... import ids
from ...backends.local import LocalBackend, uploader
from ...errors import PodliftError
from ...records.plans import read_plan
from ...records.recorder import has_ended
from ...spec.layout import RootPaths, RunPaths
from ...storage import file_systems, folders
from . import local
from .items import SETTLED_S, Candidate, ChangedError, PrunePlan, PruneScan

# States of a copy: its run is not in the bucket any more, or is removed from there at the same time.
GONE, GOING = "gone", "going"


def old_copies(scan: PruneScan, cache: Path, existing: Collection[str]) -> list[Candidate]:
    """Return the old copies of every root in a bucket, and the bundles that only they need.

    `existing` are the ids of the runs in the bucket of the searched root; those of other roots are unknown.
    """
    found = []
    for root in _roots(scan, cache / "gs"):
        known = existing if str(root) == scan.local else None
        inside = replace(scan, paths=RootPaths(str(root)))
        mine = [item for path, info in scan.entries(root / "runs") for item in _candidates(inside, path, info, known)]
        found += mine + local.unused_bundles(inside, {item.path for item in mine})
    return found


def _roots(scan: PruneScan, folder: Path) -> Iterator[Path]:
    """Yield the folders of roots, which are as deep as their prefix in the bucket."""
    inside = [path for path, info in scan.entries(folder) if stat.S_ISDIR(info.st_mode)]
    if folder / "runs" in inside:
        yield folder
    for path in inside:
        if folder.name != "runs" or not (ids.is_run_id(path.name) or path.name.startswith(".")):
            yield from _roots(scan, path)


def _candidates(
    scan: PruneScan, path: Path, info: os.stat_result, existing: Collection[str] | None
) -> Iterator[Candidate]:
    item = local.folder_item("copy", path, scan)
    if local.is_hidden(path, info):
        yield replace(item, kind="remains")
    if not (stat.S_ISDIR(info.st_mode) and ids.is_run_id(path.name)):
        return
    if path.name in scan.removed_runs and existing is not None:
        item = replace(item, state=GOING)
    # The run of a current submit is not in the bucket yet.
    elif existing is not None and path.name not in existing and item.age_s >= SETTLED_S:
        item = replace(item, state=GONE)
    if not item.state and item.age_s < scan.older_than_s:
        return
    why = _why_not(item, scan.older_than_s)
    if why:
        scan.skip(path, why)
    else:
        yield item


def _why_not(item: Candidate, older_than_s: float) -> str:
    """Return why a copy must stay, "" if it need not."""
    paths = RunPaths(item.path)
    mounted = file_systems.inside(item.path, file_systems.mounts())
    if mounted:
        return f"something is mounted in it, at {mounted[0]!r}"
    try:
        if not needs_upload(paths):
            return ""
        if not has_ended(paths) and LocalBackend().observe(read_plan(paths)).supervised:
            return "the run is still going"
        if uploader.is_running(paths):
            return "its files are being uploaded"
    except (PodliftError, OSError) as error:
        return str(error).rstrip(".")
    if item.state == GONE and item.age_s >= older_than_s:
        return ""
    return "it is not uploaded completely: podlift wait uploads the rest"


def needs_upload(paths: RunPaths) -> bool:
    """True for a run that this machine owns and has not uploaded completely."""
    if not os.path.isdir(paths.events):
        return False
    number = uploader.known_resumes(paths)
    return os.path.exists(paths.owner(number)) and not uploader.is_uploaded(paths)


def remove(item: Candidate, plan: PrunePlan) -> None:
    folder = Path(item.path)
    folder.lstat()
    age_s = plan.now - folders.extent(folder)[1]
    why = _why_not(replace(item, age_s=age_s), plan.older_than_s)
    if why or (not item.state and age_s < plan.older_than_s):
        raise ChangedError(why or "it was used again")
    local.remove_folder(folder)
