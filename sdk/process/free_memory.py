"""How much memory is free for a copy of the state, or for a process that has imported TensorFlow and waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .control_groups import counter, folders

# The memory of TensorFlow and Keras after their import, and as much again for everything else.
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
    kilobytes = counter(root / "proc/meminfo", "MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _cgroups_available(root: Path) -> Iterator[int | None]:
    for folder in folders("memory", root):
        yield _remaining(folder / "memory.max", folder / "memory.current", "inactive_file")
        yield _remaining(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", "total_inactive_file")


def _remaining(limit: Path, used: Path, cache: str) -> int | None:
    with suppress(OSError, ValueError):
        size = int(limit.read_text())  # "max" means no limit
        if size < _UNLIMITED:
            # The kernel gives files up before it refuses memory; a group counts them as used.
            used_bytes = max(int(used.read_text()) - (counter(used.parent / "memory.stat", cache) or 0), 0)
            return max(size - used_bytes, 0)
    return None
