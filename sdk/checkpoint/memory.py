"""How much memory there is for a copy of the state: while one is written in the background, training makes another."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# A limit that is no limit: version 1 of control groups says this large number.
_NONE = 1 << 60


def available(root: str = "/") -> int | None:
    """Return how many bytes this process may still take, by the kernel and by its control group; None where nobody says.

    Args:
        root: below which /proc and /sys are.
    """
    found = [_of_the_machine(Path(root)), *_of_the_group(Path(root))]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def is_short(size: int, free: int | None) -> bool:
    """True where the state would not fit in memory a second time.

    Args:
        size: of the state, in bytes.
        free: what `available` says.
    """
    return free is not None and size > free


def _of_the_machine(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_the_group(root: Path) -> list[int | None]:
    group = {}
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group[controllers] = path.lstrip("/")
    found: list[int | None] = []
    if "" in group:
        folder = root / "sys/fs/cgroup" / group[""]
        found.append(_left(folder / "memory.max", folder / "memory.current"))
    if "memory" in group:
        # A container sees its own group at the top.
        for folder in (root / "sys/fs/cgroup/memory" / group["memory"], root / "sys/fs/cgroup/memory"):
            found.append(_left(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"))
    return found


def _left(limit: Path, used: Path) -> int | None:
    with suppress(OSError, ValueError):
        size = int(limit.read_text())  # "max" is no number, and no limit
        return max(size - int(used.read_text()), 0) if size < _NONE else None
    return None
