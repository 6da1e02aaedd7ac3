"""Cleans up after a supervisor and janitor that were killed at the same time. The next client does it."""

from __future__ import annotations

import os
import re
import stat
import sys

from ..records.recorder import read_events
from ..spec.layout import RunPaths
from . import janitor

_OUTSIDE = re.compile(r"/.+/podlift-[0-9a-f]{12}")


def end(paths: RunPaths) -> None:
    """End the remaining processes of a run whose supervisor is gone. If its janitor is alive, only wake that."""
    # These folders are removed last. Without one, there is no need to inspect every process of the machine.
    folders = temporary_folders(paths)
    if folders and sys.platform.startswith("linux"):
        janitor.clean(paths.url, folders, paths.events)


def temporary_folders(paths: RunPaths) -> list[str]:
    """Return the existing folders for temporary files of the run's supervisors."""
    named = [str(event.data.get("temporary", "")) for event in read_events(paths, ("started", "placed"))]
    return [place for place in dict.fromkeys([paths.temporary, *named]) if _is_ours(place, paths)]


def _is_ours(place: str, paths: RunPaths) -> bool:
    # Records may come from another machine. Only folders that a supervisor of this user made are ever removed.
    if place != paths.temporary and not _OUTSIDE.fullmatch(place):
        return False
    try:
        found = os.lstat(place)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
