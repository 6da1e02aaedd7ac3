"""How much memory is free for a copy of the state, or for a process that has imported TensorFlow and waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# What TensorFlow and Keras need after their import, and as much again for everything else.
_STANDBY_BYTES = 1_500_000_000
# Version 1 of control groups reports a huge number if there is no limit.
_UNLIMITED = 1 << 60


def allows_standby(root: str = "/") -> bool:
    """True if a process that stands by for a restart may be started here, or kept."""
    return sys.platform.startswith("linux") and not is_short(_STANDBY_BYTES, available(root) or 0)


def available(root: str = "/") -> int | None:
    """Return the bytes that this process may still allocate according to kernel and control groups; None if unknown."""
    limits = [_system_available(Path(root)), *_cgroups_available(Path(root))]
    readable = [value for value in limits if value is not None]
    return min(readable) if readable else None


def is_short(size: int, free: int | None) -> bool:
    """True if another `size` bytes would not fit."""
    return free is not None and size > free


def _system_available(root: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroups_available(root: Path) -> Iterator[int | None]:
    group = {}
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group[controllers] = path
    if "" in group:
        for folder in _chain(root / "sys/fs/cgroup", group[""]):
            yield _remaining(folder / "memory.max", folder / "memory.current", "inactive_file")
    if "memory" in group:
        for folder in _chain(root / "sys/fs/cgroup/memory", group["memory"]):
            limit, used = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"
            yield _remaining(limit, used, "total_inactive_file")


def _chain(top: Path, group: str) -> list[Path]:
    """Return the folders of a group and of those that contain it, which limit it too; a container's own group is the top."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _remaining(limit: Path, used: Path, cache: str) -> int | None:
    with suppress(OSError, ValueError):
        size = int(limit.read_text())  # "max" means no limit
        if size < _UNLIMITED:
            taken = max(int(used.read_text()) - _cached(used.parent / "memory.stat", cache), 0)
            return max(size - taken, 0)
    return None


def _cached(counters: Path, name: str) -> int:
    """Return the bytes of files that the kernel gives up before it refuses memory; a group counts them as used."""
    with suppress(OSError, ValueError):
        for line in counters.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
