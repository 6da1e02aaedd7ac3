"""Removes old runs, archives that nothing names, stale caches. `find` searches, `remove` acts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import MissingError, Problems, StoreError
from ...planning.roots import in_bucket, resolve_root
from ...storage.cache import bucket_folder
from .bucket import BucketRoot
from .cache import Cache, copies
from .folder import FolderRoot
from .root import Candidate, ChangedError, Limits, PrunedRoot, Skipped

__all__ = ["KEEP", "OLDER_THAN_S", "Candidate", "RemovalPlan", "RemovalResult", "Skipped", "find", "remove"]

OLDER_THAN_S = 30 * 86400.0
KEEP = 20


@dataclass(frozen=True, kw_only=True)
class RemovalPlan:
    """The items that `remove` would remove, and the old ones that stay."""

    root: str
    items: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    places: tuple[tuple[PrunedRoot | Cache, tuple[Candidate, ...]], ...]

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True, kw_only=True)
class RemovalResult:
    """The removed items, the ones that stay because they have changed, and a message for each failure."""

    items: tuple[Candidate, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()


def find(
    root: str | Path,
    *,
    older_than_s: float = OLDER_THAN_S,
    keep: int = KEEP,
    now: float,
    cache: str | Path | None = None,
) -> RemovalPlan:
    """Return the plan of a removal, and change nothing: `find(root, older_than_s=86400, now=time.time())`.

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
            problems.add(f"{name} must be 0 or more. Received: {number!r}.")
    with problems.closing():
        url = resolve_root(root, {})
    limits = Limits(older_than_s=older_than_s, keep=keep, now=now)
    places: list[PrunedRoot | Cache] = [FolderRoot(url, limits)]
    if in_bucket(url):
        places = [BucketRoot(url, limits, local="" if cache is None else bucket_folder(Path(cache), url))]
    if cache is not None:
        places += [*copies(Path(cache), limits), Cache(str(cache), limits)]
    candidates_by_place = tuple((place, tuple(place.candidates())) for place in places)
    return RemovalPlan(
        root=url,
        items=tuple(item for _, items in candidates_by_place for item in items),
        skipped=tuple(skipped for place, _ in candidates_by_place for skipped in place.skipped),
        places=candidates_by_place,
    )


def remove(plan: RemovalPlan) -> RemovalResult:
    """Remove the candidates that have not changed; a failure does not stop the others."""
    removed, skipped, problems = [], [], []
    for place, item in ((place, item) for place, items in plan.places for item in items):
        try:
            place.remove(item)
            removed.append(item)
        except (FileNotFoundError, MissingError):
            pass  # another process has removed it
        except ChangedError as error:
            skipped.append(Skipped(path=item.path, why=str(error)))
        except StoreError as error:
            problems.append(f"{item.path!r} was not removed completely: {error}")
        except OSError as error:
            problems.append(_failure(item, error))
    return RemovalResult(items=tuple(removed), skipped=tuple(skipped), problems=tuple(problems))


def _failure(item: Candidate, error: OSError) -> str:
    reason = f"{error.strerror or error} ({error.filename!r})"
    if item.kind == "run" and not Path(item.path).exists():
        return f"{item.path!r} was removed only in part, and the next call removes the rest: {reason}."
    return f"{item.path!r} was not removed: {reason}."
