"""What is mounted where, as Linux tells it; nothing is known elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_TABLE = "/proc/self/mounts"
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A file system's place, and its kind as the kernel names it: "ext4", "nfs4", "fuse.sshfs"."""

    point: str
    kind: str


def parse(table: str) -> list[Mount]:
    """Read the text of /proc/mounts: blanks and the like in a path stand there as octal numbers."""
    rows = [line.split(" ") for line in table.splitlines()]
    return [Mount(_plain(row[1]), row[2]) for row in rows if len(row) > 2]


def mounts() -> list[Mount]:
    """Return all mounts that this process sees, in the order in which they were made; none where nobody knows."""
    try:
        return parse(Path(_TABLE).read_text(errors="surrogateescape"))
    except OSError:
        return []


def holding(path: str, table: list[Mount]) -> Mount | None:
    """Return the mount that an absolute path without links lies in."""
    found = [mount for mount in table if PurePosixPath(path).is_relative_to(mount.point)]
    # Of two at one point the later one covers the earlier.
    return max(enumerate(found), key=lambda pair: (len(pair[1].point), pair[0]))[1] if found else None


def inside(folder: str, table: list[Mount]) -> list[str]:
    """Return the points of mounts at or below a folder: removing it would empty them."""
    return sorted({mount.point for mount in table if PurePosixPath(mount.point).is_relative_to(folder)})


def _plain(text: str) -> str:
    # The kernel escapes bytes, and leaves those of other letters as they are.
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
