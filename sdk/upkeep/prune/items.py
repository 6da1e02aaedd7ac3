"""The values of pruning: what is searched, what was found, and what was removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...spec.layout import RootPaths
from ...storage import folders

# A submit writes or touches its bundle before the plan that refers to it: younger bundles may be needed soon.
SETTLED_S = 3600.0
NOT_OURS = "it is not podlift's"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A thing to remove; the names of the fields are keys of `podlift prune --json`."""

    kind: str  # "run", "bundle", "copy" (of a run in a bucket), "cache", "environment", "remains" (of an interrupted removal)
    name: str  # the run's id, the bundle's digest, or the file's name
    path: str  # or a gs:// URL
    size_bytes: int
    age_s: float  # since the last change; for an environment, since its last use
    state: str = (
        ""  # of a run; for a copy "gone" if its run is not in the bucket, "going" if it is removed together with it
    )


@dataclass(frozen=True, kw_only=True)
class Skipped:
    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class PrunePlan:
    """What `remove` would remove, and what only a person can decide about."""

    root: str
    now: float  # unix time of the search, in seconds
    older_than_s: float
    items: tuple[Candidate, ...]
    skipped: tuple[Skipped, ...]
    local: str = ""  # this machine's folder for a root in a bucket

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True, kw_only=True)
class PruneResult:
    """What was removed, what was kept because it has changed, and a message for each failure."""

    items: tuple[Candidate, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()


class ChangedError(Exception):
    """A candidate must stay after all; the message says why."""


@dataclass(frozen=True, kw_only=True)
class PruneScan:
    paths: RootPaths
    older_than_s: float
    keep: int
    now: float
    local: str = ""
    removed_runs: frozenset[str] = frozenset()  # ids of the candidates in the bucket
    skipped: list[Skipped] = field(default_factory=list)

    def skip(self, path: Path | str, why: str) -> None:
        self.skipped.append(Skipped(path=str(path), why=why))

    def entries(self, folder: Path) -> list[folders.FolderEntry]:
        """Return the content of a folder; one that cannot be listed is skipped."""
        try:
            return folders.entries(folder)
        except OSError as error:
            self.skip(folder, f"it cannot be listed: {error.strerror or error}")
            return []
