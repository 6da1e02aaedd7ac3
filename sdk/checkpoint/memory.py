"""How much memory is available for a copy of the state while another copy is written in the background."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# Version 1 of control groups reports a huge number if there is no limit.
_UNLIMITED = 1 << 60


def available(root: str = "/") -> int | None:
    """Return the bytes that this process may still allocate according to kernel and control group; None if unknown."""
    found = [_system_available(Path(root)), *_cgroup_available(Path(root))]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def is_short(size: int, free: int | None) -> bool:
    """True if a second copy of the state would not fit."""
    return free is not None and size > free


def _system_available(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup_available(root: Path) -> list[int | None]:
    group = {}
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group[controllers] = path.lstrip("/")
    found: list[int | None] = []
    if "" in group:
        folder = root / "sys/fs/cgroup" / group[""]
        found.append(_remaining(folder / "memory.max", folder / "memory.current", "inactive_file"))
    if "memory" in group:
        # Inside a container its own group is the root.
        for folder in (root / "sys/fs/cgroup/memory" / group["memory"], root / "sys/fs/cgroup/memory"):
            limit, used = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"
            found.append(_remaining(limit, used, "total_inactive_file"))
    return found


def _remaining(limit: Path, used: Path, cache: str) -> int | None:
    with suppress(OSError, ValueError):
        size = int(limit.read_text())  # "max" means no limit
        taken = max(int(used.read_text()) - _cached(used.parent / "memory.stat", cache), 0)
        return max(size - taken, 0) if size < _UNLIMITED else None
    return None


def _cached(counters: Path, name: str) -> int:
    """Return the bytes of files that the kernel gives up before it refuses memory; a group counts them as used."""
    with suppress(OSError, ValueError):
        for line in counters.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
