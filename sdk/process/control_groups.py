"""The control groups of this process: the folders in which the kernel keeps their limits and counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups and of their parents, in both versions: the own group first.

    A container's own group is mounted at the top, though the path may be the one on the host.
    """
    try:
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return
    mounts = root / "sys/fs/cgroup"
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in (mounts / controllers, mounts / controller) if controllers else (mounts, mounts / "unified"):
            yield from (top.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def counter(file: Path, name: str) -> int | None:
    """Return the number behind a name in a file with one of them in each line; None if it is not there."""
    try:
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value.split()[0])
    except (OSError, ValueError, IndexError):
        pass
    return None
