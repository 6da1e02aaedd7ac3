"""What the errors of a file system mean, in sentences."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import StoreError
from . import mounts

_MEANINGS = {
    errno.ENOSPC: "the disk is full. Free some space, or keep fewer checkpoints (keep_last)",
    errno.EDQUOT: "your disk quota is used up. Free some space, or ask for more",
    errno.EROFS: "the file system is read-only. Choose a root that can be written",
    errno.EACCES: "this user may not. Choose another root, or change the folder's owner or mode",
    errno.EPERM: "this user may not. Choose another root, or change the folder's owner or mode",
    errno.EFBIG: "the file would be larger than this process may write (ulimit -f)",
    errno.EMFILE: "this process has too many files open (ulimit -n)",
    errno.EIO: "the device has failed to read or write. Look into the kernel's log",
    errno.ESTALE: "the network file system has lost the file. Is it mounted still?",
    errno.ENAMETOOLONG: "the path is too long for the file system",
    errno.ENOTDIR: "a part of the path is a file",
}
_NO_ROOM = 64 << 10
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def meaning(error: OSError, path: str) -> str:
    """Return what an error of the system means for a process that works in a folder: "the disk is full (...). ..."."""
    if error.errno == errno.EAGAIN:
        return f"no further process can be started: the limit of this user is reached (ulimit -u). {error}"
    said = _MEANINGS.get(error.errno or 0)
    if error.errno == errno.ENOSPC:
        said = full(path) or said
    return f"{type(error).__name__}: {error}" if said is None else f"{said}. {error}"


def full(path: str) -> str:
    """Say what the file system of a folder has no more of; "" where it has of both."""
    try:
        room = os.statvfs(path)
    except OSError:
        return ""
    # The last blocks of a disk may be too small a rest for any file.
    if room.f_bavail * room.f_frsize < _NO_ROOM:
        return f"the disk of {path} is full ({room.f_bavail * room.f_frsize:,} bytes are free)"
    return (
        f"the disk of {path} has no inodes left: it can hold no more files"
        if room.f_files and not room.f_favail
        else ""
    )


@contextmanager
def translated(verb: str, path: str) -> Iterator[None]:
    """Turn what the file system says into a StoreError: "Cannot write '/x': the disk is full. ..."."""
    try:
        yield
    except OSError as error:
        meaning = _MEANINGS.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(f"Cannot {verb} {path!r}: {meaning}.") from error


def unlinkable(error: OSError, root: str) -> OSError | StoreError:
    """Return what to raise when link() has failed: the file system's name, if it has no hard links."""
    if error.errno not in _NO_LINKS:
        return error
    mount = mounts.holding(os.path.realpath(root), mounts.mounts())
    kind = f"{mount.kind} at {mount.point}" if mount else "unknown"
    return StoreError(
        f"Checkpoints cannot be kept in {root!r}: its file system ({kind}) has no hard links, and without them two writers "
        f"can both believe to have written the same checkpoint ({error.strerror}). Choose a root on a local disk."
    )
