"""Which machine supervises a run in a bucket, and whether it has uploaded everything: marker files of this machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ...spec.layout import RunPaths
from ..events import resume_count
from ..recorder import read_events


def known_resumes(paths: RunPaths) -> int:
    """Return how often the run was resumed, as far as this machine knows."""
    return resume_count(read_events(paths, ("resumed",)))


def is_owned(paths: RunPaths) -> bool:
    """True if the run's latest supervisor was started on this machine, as far as this machine knows."""
    return os.path.exists(paths.owner(known_resumes(paths)))


def is_uploaded(paths: RunPaths) -> bool:
    """True once everything that the run wrote here is in its bucket."""
    return os.path.exists(paths.uploaded(known_resumes(paths)))


def is_uploading(paths: RunPaths) -> bool:
    """True while an uploader of the run is active."""
    with upload_lock(paths) as alone:
        return not alone


@contextmanager
def upload_lock(paths: RunPaths) -> Iterator[bool]:
    """Hold the lock of the run's only uploader; yield False if another process holds it."""
    with open(paths.sync_lock, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
