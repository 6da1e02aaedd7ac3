"""What pruning talks about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..layout import RootPaths
from ..storage import folders

# A submit writes or touches its bundle before the plan that refers to it: what is younger may be needed in a moment.
SETTLED_S = 3600.0
NOT_OURS = "it is not podlift's"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that would go.

    Args:
        kind: "run", "bundle", "cache", "environment", or "remains" of a removal that was cut short.
        name: the run's id, the bundle's digest, or the file's name.
        path: where it lies.
        size_bytes: what its files hold.
        age_s: seconds since anything in it changed; of an environment, since it was asked for.
        state: the run's state; "" for the others.
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
        items: what would go: runs first, then bundles, then caches.
        left: what stays and why.
    """

    root: str
    now: float
    older_than_s: float
    items: tuple[Item, ...]
    left: tuple[Left, ...]

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
    """One look: where, by which rules, and what stays for a reason that somebody should know."""

    paths: RootPaths
    older_than_s: float
    keep: int
    now: float
    left: list[Left] = field(default_factory=list)

    def leave(self, path: Path, why: str) -> None:
        """Note what stays."""
        self.left.append(Left(path=str(path), why=why))

    def entries(self, folder: Path) -> list[folders.Entry]:
        """Return what lies in a folder; one that cannot be looked through is noted, and empty."""
        try:
            return folders.entries(folder)
        except OSError as error:
            self.leave(folder, f"it cannot be looked through: {error.strerror or error}")
            return []
