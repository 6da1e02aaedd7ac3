"""What the folder of all runs has to be able to do; tried with a folder that is removed again."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path

from ...storage import mounts, posix
from .check import Check, bad, fine

_ELSEWHERE = "name another folder by --root or PODLIFT_ROOT"
_FAR = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "vboxsf"}
_FAR |= {"virtiofs", "drvfs", "fuse", "fuseblk", "ncpfs", "orangefs", "pvfs2", "prl_fs", "vmhgfs"}
# Two clocks that differ by more put the records of a run into a wrong order.
_SKEW_S = 5.0


def root(path: str) -> list[Check]:
    """Look at the root, or at the folder in which it would be made."""
    place = Path(path)
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        said = f"{path} is no folder" if place == Path(path) else f"{path} cannot be made: {place} is no folder"
        return [bad("root", "error", said, _ELSEWHERE)]
    where = path if place == Path(path) else f"{path}, which will be made in {place},"
    trial = place / f".podlift-doctor-{uuid.uuid4().hex[:8]}"
    try:
        trial.mkdir()
    except OSError as error:
        return [bad("root", "error", f"{where} cannot be written: {error.strerror}", _ELSEWHERE)]
    try:
        return [_links(trial, where), _times(trial), file_system(path, mounts.holding(str(place), mounts.mounts()))]
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _links(trial: Path, where: str) -> Check:
    """Create one record twice: the second time has to fail, for two writers must never both succeed."""
    record = str(trial / "record")
    try:
        posix.put_new(record, b"x")
    except OSError as error:
        said = f"{where} cannot keep records: {error.strerror} (hard links)"
        return bad("root", "error", said, _ELSEWHERE)
    try:
        posix.put_new(record, b"y")
    except FileExistsError:
        return fine("root", f"{where.rstrip(',')} can be written, and has hard links")
    except OSError as error:
        return bad("root", "error", f"{where} cannot keep records: {error.strerror}", _ELSEWHERE)
    return bad("root", "error", f"{where} lets two writers create one file", _ELSEWHERE)


def _times(trial: Path) -> Check:
    probe = trial / "time"
    probe.write_bytes(b"x")
    return skew(probe.stat().st_mtime - time.time())


def skew(seconds: float) -> Check:
    """Judge how far the disk's clock is ahead of this machine's, in seconds."""
    if abs(seconds) <= _SKEW_S:
        return fine("root-clock", "is this machine's")
    said = f"the disk's is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} this machine's"
    return bad("root-clock", "warning", said, "set both clocks (chronyc makestep)")


def file_system(path: str, mount: mounts.Mount | None) -> Check:
    """Judge what the root lies on."""
    if mount is None:
        return fine("root-disk", "on an unknown file system")
    said = f"on {mount.kind} ({mount.point})"
    if mount.kind in _FAR or mount.kind.startswith("fuse."):
        said = f"{path} lies {said}: slow, and two machines may see different records"
        return bad("root-disk", "warning", said, _ELSEWHERE)
    if mount.kind in ("tmpfs", "ramfs"):
        return bad("root-disk", "warning", f"{path} lies {said}: runs are gone when the machine stops", _ELSEWHERE)
    return fine("root-disk", said)
