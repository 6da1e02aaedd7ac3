"""What a run has left on this machine whose supervisor and janitor were killed at once: the next client ends it."""

from __future__ import annotations

import os
import re
import stat
import sys

from ..records.recorder import read_events
from ..spec.layout import RunPaths
from . import janitor

_ELSEWHERE = re.compile(r"/.+/podlift-[0-9a-f]{12}")


def end(paths: RunPaths) -> None:
    """End what is left of a run whose supervisor is gone; where its janitor is at work nothing is done, but it is woken.

    Args:
        paths: the run.
    """
    # They are removed last: without one there is nothing left, and no reason to look at every process of the machine.
    folders = temporary_folders(paths)
    if folders and sys.platform.startswith("linux"):
        janitor.clean(paths.url, folders, paths.events)


def temporary_folders(paths: RunPaths) -> list[str]:
    """Return the folders for temporary files that the run's supervisors have had and that are there: ours and no other."""
    named = [str(event.data.get("temporary", "")) for event in read_events(paths, ("started", "placed"))]
    return [place for place in dict.fromkeys([paths.temporary, *named]) if _is_ours(place, paths)]


def _is_ours(place: str, paths: RunPaths) -> bool:
    # Records may come from elsewhere: nothing but what a supervisor of this user makes is ever removed.
    if place != paths.temporary and not _ELSEWHERE.fullmatch(place):
        return False
    try:
        found = os.lstat(place)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
