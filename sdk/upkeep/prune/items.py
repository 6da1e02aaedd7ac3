"""What pruning talks about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...spec.layout import RootPaths
from ...storage import folders

# A submit writes or touches its bundle before the plan that refers to it: what is younger may be needed in a moment.
SETTLED_S = 3600.0
NOT_OURS = "it is not podlift's"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that would go.

    Args:
        kind: "run", "bundle", "copy" of a run in a bucket, "cache", "environment", or "remains" of a removal that was cut
            short.
        name: the run's id, the bundle's digest, or the file's name.
        path: where it lies; in a bucket its URL.
        size_bytes: what its files hold.
        age_s: seconds since anything in it changed; of an environment, since it was asked for.
        state: the run's state; of a copy "gone" where its run is not in the bucket any more, "going" where it goes from there
            at the same time; "" for the others.
    """

    kind: str
    name: str
    path: str
    size_bytes: int
    age_s: float
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Left:
    """One thing that stays although it may be rubbish, and why."""

    path: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What `remove` would remove, and what only a person can decide about.

    Args:
        root: the root that was looked at.
        now: unix time in seconds at which it was looked at.
        older_than_s: what the runs and caches had to be older than, in seconds.
        items: what would go: runs first, then bundles, then copies and caches.
        left: what stays and why.
        local: the folder of this machine for a root in a bucket; "" for none.
    """

    root: str
    now: float
    older_than_s: float
    items: tuple[Item, ...]
    left: tuple[Left, ...]
    local: str = ""

    @property
    def size_bytes(self) -> int:
        """What all items hold."""
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What `remove` has done.

    Args:
        items: what went.
        left: what stays because it is no longer as it was found.
        problems: a sentence for everything that resists.
    """

    items: tuple[Item, ...] = ()
    left: tuple[Left, ...] = ()
    problems: tuple[str, ...] = ()


class StaysError(Exception):
    """Something is no longer as it was found; the message says how it is now."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look: where, by which rules, and what stays for a reason that somebody should know.

    Args:
        paths: the root.
        older_than_s: as of `find`; so are `keep` and `now`.
        local: the folder of this machine for a root in a bucket; "" for none.
        going: ids of the runs that would go from there.
        left: what stays.
    """

    paths: RootPaths
    older_than_s: float
    keep: int
    now: float
    local: str = ""
    going: frozenset[str] = frozenset()
    left: list[Left] = field(default_factory=list)

    def leave(self, path: Path | str, why: str) -> None:
        """Note what stays."""
        self.left.append(Left(path=str(path), why=why))

    def entries(self, folder: Path) -> list[folders.Entry]:
        """Return what lies in a folder; one that cannot be looked through is noted, and empty."""
        try:
            return folders.entries(folder)
        except OSError as error:
            self.leave(folder, f"it cannot be looked through: {error.strerror or error}")
            return []
