"""The meaning of errors of a file system, and the mounts of this machine."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import StoreError

_MEANINGS = {
    errno.ENOSPC: "the disk is full. Free some space, or keep fewer checkpoints (checkpoint_keep_last)",
    errno.EDQUOT: "your disk quota is used up. Free some space, or ask for more",
    errno.EROFS: "the file system is read-only. Choose a writable root",
    errno.EACCES: "permission denied. Choose another root, or change the folder's owner or mode",
    errno.EPERM: "permission denied. Choose another root, or change the folder's owner or mode",
    errno.EFBIG: "the file would be larger than this process may write (ulimit -f)",
    errno.EMFILE: "this process has too many files open (ulimit -n)",
    errno.EIO: "the device failed to read or write. See the kernel's log",
    errno.ESTALE: "the network file system has lost the file. Is it still mounted?",
    errno.ENAMETOOLONG: "the path is too long for the file system",
    errno.ENOTDIR: "a part of the path is a file",
}
_TABLE = "/proc/self/mounts"
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NO_ROOM = 64 << 10
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def describe(error: OSError, path: str) -> str:
    """Return the meaning of an OSError for a process that works in a folder: "the disk is full (...). ..."."""
    if error.errno == errno.EAGAIN:
        return f"no more processes can be started: the limit of this user is reached (ulimit -u). {error}"
    meaning = _MEANINGS.get(error.errno or 0)
    if error.errno == errno.ENOSPC:
        meaning = out_of_space(path) or meaning
    return f"{type(error).__name__}: {error}" if meaning is None else f"{meaning}. {error}"


def out_of_space(path: str) -> str:
    """Return the exhausted resource of a folder's file system, bytes or inodes; "" if neither."""
    try:
        room = os.statvfs(path)
    except OSError:
        return ""
    # The last blocks of a disk may be too small for any file.
    if room.f_bavail * room.f_frsize < _NO_ROOM:
        return f"the disk of {path} is full ({room.f_bavail * room.f_frsize:,} bytes are free)"
    return (
        f"the disk of {path} has no inodes left: it cannot hold more files"
        if room.f_files and not room.f_favail
        else ""
    )


@contextmanager
def as_store_error(verb: str, path: str) -> Iterator[None]:
    """Turn an OSError into a StoreError: "Cannot write '/x': the disk is full. ..."."""
    try:
        yield
    except OSError as error:
        meaning = _MEANINGS.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(f"Cannot {verb} {path!r}: {meaning}.") from error


def link_error(error: OSError, root: str) -> OSError | StoreError:
    """Return the error to raise after link() has failed: names the file system if it has no hard links."""
    if error.errno not in _NO_LINKS:
        return error
    mount = holding(os.path.realpath(root), mounts())
    kind = f"{mount.kind} at {mount.point}" if mount else "unknown"
    return StoreError(
        f"Checkpoints cannot be stored in {root!r}: its file system ({kind}) has no hard links, without which two writers "
        f"could both succeed with the same checkpoint ({error.strerror}). Next: choose a root on a local disk."
    )


# --- Mounts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mount:
    """A mount point, and the kind of its file system as the kernel names it: "ext4", "nfs4", "fuse.sshfs"."""

    point: str
    kind: str


def parse(table: str) -> list[Mount]:
    """Parse the text of /proc/mounts, in which blanks and similar characters are octal escapes."""
    rows = [line.split(" ") for line in table.splitlines()]
    return [Mount(_plain(row[1]), row[2]) for row in rows if len(row) > 2]


def mounts() -> list[Mount]:
    try:
        return parse(Path(_TABLE).read_text(errors="surrogateescape"))
    except OSError:
        return []


def holding(path: str, table: list[Mount]) -> Mount | None:
    """Return the mount that holds an absolute path without links."""
    mounted = [mount for mount in table if PurePosixPath(path).is_relative_to(mount.point)]
    # A later mount hides an earlier one at the same point.
    return max(enumerate(mounted), key=lambda pair: (len(pair[1].point), pair[0]))[1] if mounted else None


def inside(folder: str, table: list[Mount]) -> list[str]:
    """Return the mount points at or below a folder: removing it would empty them."""
    return sorted({mount.point for mount in table if PurePosixPath(mount.point).is_relative_to(folder)})


def _plain(text: str) -> str:
    # The kernel escapes single bytes only.
    return _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), text)
