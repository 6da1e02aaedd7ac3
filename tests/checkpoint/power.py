"""A loss of power, simulated: the content of a folder if only synced data outlives it.

The recorder stands in the place of `os.fsync`. A file that was never synced is empty afterwards, a folder that was never synced
has no names, and synced data is as it was at that moment: the least that POSIX promises, and less than most disks keep.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Disk:
    """The content of the disk below a folder that exists; `monkeypatch` puts the recorder in its place."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._top = top
        # Called before each sync below the folder, which is after everything that came before it.
        self.look: Callable[[], object] = lambda: None
        self._fsync = os.fsync
        self._lock = threading.RLock()
        # Each number names one file as long as a process has it open.
        self._open: dict[int, int] = {}
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self.syncs = 0
        monkeypatch.setattr(os, "fsync", self._synced)

    def close(self) -> None:
        """Forget everything."""
        for handle in self._open.values():
            os.close(handle)

    def _synced(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not path.is_relative_to(self._top):
            return self._fsync(handle)
        with self._lock:
            self.look()
            number = self._number(handle)
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                self._names[number] = self._listed(f"/proc/self/fd/{handle}")
            else:
                self._content[number] = Path(f"/proc/self/fd/{handle}").read_bytes()
            self.syncs += 1
        return None

    def _number(self, handle: int) -> int:
        number = os.fstat(handle).st_ino
        if number not in self._open:
            self._open[number] = os.dup(handle)
        return number

    def _listed(self, folder: str) -> dict[str, int]:
        found = {}
        for name in os.listdir(folder):
            handle = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW)
            found[name] = self._number(handle)
            os.close(handle)
        return found

    def after(self, target: Path, *, lucky: Callable[[], bool] = lambda: False) -> Path:
        """Make `target` as the disk would hold it after a loss of power at this moment.

        `lucky` is asked for each folder whether its names have come to the disk without being synced.
        """
        with self._lock:
            self._write(os.stat(self._top).st_ino, str(self._top), target, lucky)
        return target

    def _write(self, number: int, now: str | None, target: Path, lucky: Callable[[], bool]) -> None:
        target.mkdir()
        names = self._names.get(number, {})
        if now is not None and lucky():
            names = self._listed(now)
        for name, inner in names.items():
            if stat.S_ISDIR(os.fstat(self._open[inner]).st_mode):
                place = f"{now}/{name}" if now is not None and os.path.isdir(f"{now}/{name}") else None
                self._write(inner, place, target / name, lucky)
            else:
                (target / name).write_bytes(self._content.get(inner, b""))


def worlds(disk: Disk, folder: Path) -> Iterator[Path]:
    """Yield the disks that a loss of power at this moment may leave: without luck, with all of it, and with some."""
    dice = random.Random(disk.syncs)
    for lucky in (lambda: False, lambda: True, lambda: dice.random() < 0.5):
        target = disk.after(folder / "world", lucky=lucky)
        yield target
        shutil.rmtree(target)
