"""Whether there is memory for a process that has imported TensorFlow and waits."""

from __future__ import annotations

import sys
from pathlib import Path

# What TensorFlow and Keras need after their import, and as much again for everything else.
_NEEDED_BYTES = 1_500_000_000
_MEMORY = Path("/proc/meminfo")
# The limit of a container and what it uses, by version of the control groups.
_LIMITS = [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]
_GROUPS = Path("/sys/fs/cgroup")


def allows_standby() -> bool:
    """True if a process that stands by for a restart may be started here, or kept."""
    return sys.platform.startswith("linux") and fits(free_bytes())


def fits(free_bytes: int | None) -> bool:
    return free_bytes is not None and free_bytes >= _NEEDED_BYTES


def free_bytes(groups: Path = _GROUPS, memory: Path = _MEMORY) -> int | None:
    """Return the memory that is free in this container; None if it is unknown."""
    found = []
    try:
        lines = dict(line.split(":", 1) for line in memory.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, LookupError):
        return None
    for limit, used in _LIMITS:
        try:
            found.append(int((groups / limit).read_text()) - int((groups / used).read_text()))
        except (OSError, ValueError):
            # There is no such file, or no limit ("max").
            continue
    return min(found)
