"""A process that has imported what the program imports, from which the next attempt of this container is forked.

It is started once the task trains, so that it takes no time from the start, and only if the memory allows it. It touches no
device, and starts no thread: otherwise the next attempt starts as a new process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ...process import spawn
from ...process.template import Imports, TaskStart, Template

# What TensorFlow and Keras need after their import, and as much again for everything else.
_NEEDED_BYTES = 1_500_000_000
_MEMORY = Path("/proc/meminfo")
# The limit of a container and what it uses, by version of the control groups.
_LIMITS = [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]
_GROUPS = Path("/sys/fs/cgroup")


class Spare:
    def __init__(self, imports: Imports, env: Mapping[str, str], *, cwd: str, log: str, room: int) -> None:
        self._template = Template(imports, env, cwd=cwd, log=log, room=room)
        spawn.SPARED.add(self._template.pid)

    def fork(self, start: TaskStart, stop: Callable[[], bool]) -> int:
        """Return the process id of the task; CannotForkError if it cannot be forked. Call it once."""
        spawn.SPARED.discard(self._template.pid)
        return self._template.fork([start], stop)[0].pid

    def close(self) -> None:
        spawn.SPARED.discard(self._template.pid)
        self._template.close()


def fits(free_bytes: int | None) -> bool:
    """True if a spare process may be started here."""
    return sys.platform.startswith("linux") and free_bytes is not None and free_bytes >= _NEEDED_BYTES


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


def room_for(command: list[str]) -> int:
    return len(os.fsencode("\0".join(command)))
