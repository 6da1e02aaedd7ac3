"""Removes what is no longer needed: old runs, archives that nothing refers to, stale caches. `find` searches, `remove` acts.

Each candidate is checked twice, when it is found and right before its removal. Runs and archives are first renamed to hidden
names: a partly removed run never looks like a damaged one, and an archive that a submit uses at that moment is put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...errors import MissingError, Problems, StoreError
from ...planning.roots import in_bucket, resolve_root
from ...spec.layout import RootPaths
from ...storage.cache import bucket_folder
from . import archives, bucket, local, models
from .archives import OtherRecords
from .local import Candidate, ChangedError, PrunePlan, PruneResult, PruneScan, Skipped

__all__ = ["ARCHIVES", "KEEP", "OLDER_THAN_S", "Candidate", "PrunePlan", "PruneResult", "Skipped", "find", "remove"]

ARCHIVES = archives.KINDS
OLDER_THAN_S = 30 * 86400.0
KEEP = 20


def find(
    root: str | Path,
    *,
    older_than_s: float = OLDER_THAN_S,
    keep: int = KEEP,
    now: float,
    cache: str | Path | None = None,
) -> PrunePlan:
    """Return what would be removed, and change nothing: `find(root, older_than_s=86400, now=time.time())`.

    Args:
        root: the folder, or gs://BUCKET/PREFIX, of the runs.
        older_than_s: keep runs and caches that changed within this time.
        keep: always keep this many of the newest runs.
        now: unix time in seconds.
        cache: podlift's cache folder; None keeps caches, and this machine's copies of runs in buckets.

    Raises:
        InputError: a number is negative, or the root is invalid.
        StoreError: the bucket cannot be read.
    """
    problems = Problems()
    for name, number in (("older_than_s", older_than_s), ("keep", keep)):
        if not number >= 0:
            problems.found.append(f"{name} must be 0 or more. Received: {number!r}.")
    with problems.closing():
        paths = RootPaths(resolve_root(root, {}))
    scan = PruneScan(paths=paths, older_than_s=older_than_s, keep=keep, now=now)
    existing: set[str] = set()
    if in_bucket(paths.root):
        scan = replace(scan, local="" if cache is None else bucket_folder(Path(cache), paths.root))
        scan = replace(scan, others=bucket.other_records(paths.root))
        items, existing = bucket.old_runs(scan)
        scan = replace(scan, removed_runs=frozenset(item.name for item in items if item.kind == "run"))
        items += bucket.unused_archives(scan, {item.path for item in items})
    else:
        scan = replace(scan, others=local.other_records(Path(paths.root)))
        items = local.old_runs(scan)
        items += local.unused_archives(scan, {item.path for item in items})
    items += models.unused(scan, frozenset(item.path for item in items if item.kind == "run"))
    if cache is not None:
        items += local.old_copies(scan, Path(cache), existing) + local.old_caches(scan, Path(cache))
    return PrunePlan(
        root=paths.root,
        now=now,
        older_than_s=older_than_s,
        items=tuple(items),
        skipped=tuple(scan.skipped),
        local=scan.local,
    )


def remove(plan: PrunePlan) -> PruneResult:
    """Remove the candidates that have not changed; a failure does not stop the others."""
    removed, skipped, problems = [], [], []
    others = functools.cache(lambda: _other_records(plan.root))
    # The files of each root are read once, after the removal of its runs.
    in_bucket_use = functools.cache(lambda: bucket.ArchiveUse(plan.root, (), _other_records(plan.root)))
    parts = functools.cache(lambda: models.ModelParts(plan.root, frozenset(), _other_records(plan.root), plan.now))
    in_folder_use = functools.cache(lambda root: _in_folder_use(root, plan))
    # Archives come last: a run that cannot be removed still needs its own.
    for item in sorted(plan.items, key=lambda item: item.kind in (*archives.KINDS, models.KIND)):
        try:
            if item.kind == models.KIND:
                parts().remove(item)
            elif item.kind in archives.KINDS and in_bucket(item.path):
                in_bucket_use().remove(item)
            elif item.kind in archives.KINDS:
                local.remove_archive(item, plan, *in_folder_use(str(Path(item.path).parent.parent)))
            else:
                if item.kind == "run" and (why := others().why(item.name)):
                    raise ChangedError(why)
                (_IN_BUCKETS if in_bucket(item.path) else _IN_FOLDERS)[item.kind](item, plan)
            removed.append(item)
        except (FileNotFoundError, MissingError):
            pass  # another process has removed it
        except ChangedError as error:
            skipped.append(Skipped(path=item.path, why=str(error)))
        except StoreError as error:
            problems.append(f"{item.path!r} was not removed completely: {error}")
        except OSError as error:
            problems.append(_failure(item, error))
    return PruneResult(items=tuple(removed), skipped=tuple(skipped), problems=tuple(problems))


def _in_folder_use(root: str, plan: PrunePlan) -> tuple[set[str], str]:
    others = _other_records(root) if root == plan.root else OtherRecords()
    return local.used_digests(RootPaths(root), (), others)


def _other_records(root: str) -> OtherRecords:
    return bucket.other_records(root) if in_bucket(root) else local.other_records(Path(root))


def _failure(item: Candidate, error: OSError) -> str:
    reason = f"{error.strerror or error} ({error.filename!r})"
    if item.kind == "run" and not Path(item.path).exists():
        return f"{item.path!r} was removed only in part, and the next prune removes the rest: {reason}."
    return f"{item.path!r} was not removed: {reason}."


_IN_FOLDERS: dict[str, Callable[[Candidate, PrunePlan], None]] = {
    "run": local.remove_run,
    "remains": local.remove_remains,
    "copy": local.remove_copy,
    "cache": local.remove_cache,
    "environment": local.remove_environment,
}
_IN_BUCKETS: dict[str, Callable[[Candidate, PrunePlan], None]] = {
    "run": bucket.remove_run,
    "remains": bucket.remove_remains,
}
