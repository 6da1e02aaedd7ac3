"""Files on a disk: written atomically, and durable across a loss of power.

A reader sees a whole file or nothing; two writers of one name never both succeed. All syncing is done here. One table has the
rules of each write, with reasons: docs/explanation/decisions/storage.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .store import Buffer

# Marks a folder as never part of a program's code.
MARKER = ".podlift-folder"
EMULATED, RESULTS = "emulator", "results"
# Some file systems cannot sync a folder.
_UNSYNCABLE = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)
# Parallel syncs share a disk flush. Beyond this many files the whole disk is synced.
_THREADS, _ONE_BY_ONE = 8, 500
_TRIES = 10
# Linux accepts 1024 buffers in one writev.
_MOST_PARTS = 512


def mark(folder: str | Path, whose: str) -> None:
    """Mark a folder as EMULATED or RESULTS."""
    with suppress(FileExistsError), Path(folder, MARKER).open("x", encoding="utf-8") as file:
        file.write(f"{whose}\n")


@contextmanager
def opened(path: str, flags: int = 0) -> Iterator[int]:
    """Open a file to read it, without blocking on a named pipe in its place; yield its handle."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        yield handle
    finally:
        os.close(handle)


def put_new(path: str, data: bytes) -> None:
    """Create the durable file with all its bytes; FileExistsError if it exists."""
    make_folders(os.path.dirname(path))
    _put(path, data, synced=True)
    sync_folder(os.path.dirname(path))


def put_copy(path: str, data: bytes) -> None:
    """Create a file that can be fetched again: a loss of power may remove but not truncate it. FileExistsError as above."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _put(path, data, synced=True)


def put_passing(path: str, data: bytes) -> None:
    """Create a file that only matters until the machine restarts: nothing is synced. FileExistsError as above."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _put(path, data, synced=False)


def rename(path: str, target: str) -> None:
    """Rename a synced file within its folder, replacing the target; as durable as `put_new`."""
    os.replace(path, target)
    sync_folder(os.path.dirname(target))


def write_all(handle: int, buffers: Sequence[Buffer]) -> None:
    """Write buffers completely: the kernel may accept less than it is given."""
    views = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while views:
        done = os.writev(handle, views[:_MOST_PARTS])
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if views and done:
            views[0] = views[0][done:]


def make_folders(folder: str) -> list[str]:
    """Create a folder and its missing parents durably; return the created ones, the top first."""
    new_folders: list[str] = []
    for last in range(_TRIES):
        missing = []
        path = folder
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        try:
            new_folders += [path for path in reversed(missing) if _make_folder(path)]
            break
        except FileNotFoundError:
            # Another process removed one of them, which was empty, a moment ago.
            if last == _TRIES - 1:
                raise
    return new_folders


def _make_folder(folder: str) -> bool:
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        return False  # another process is creating it, and syncs it
    sync_folder(os.path.dirname(folder) or ".")
    return True


def remove_empty(folder: str, root: str) -> None:
    """Remove a folder and its parents below `root` while they are empty."""
    with suppress(OSError):
        while folder != root:
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def sync_file(handle: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):
        # On macOS fsync() does not flush the disk's cache.
        with suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def sync_folder(folder: str) -> None:
    with opened(folder, os.O_DIRECTORY) as handle:
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _UNSYNCABLE:
                raise


def sync_names(folder: str, root: str, durable: set[str]) -> None:
    """Make the names of a folder, of those above it and of the root durable: another process may have made them.

    `durable` has the folders whose names are durable, and gets these.
    """
    while folder not in (root, os.path.dirname(folder)):
        if folder not in durable:
            sync_folder(os.path.dirname(folder))
            durable.add(folder)
        folder = os.path.dirname(folder)
    if root not in durable:
        # Another user's folder may hold the root, and refuse to be opened.
        with suppress(PermissionError):
            sync_folder(os.path.dirname(root) or ".")
        durable.add(root)


def sync_tree(top: str) -> None:
    """Sync all files and names below a folder, and its own name, to the disk; errors are ignored."""
    folders, files = [os.path.dirname(top)], list[str]()
    for folder, _, names in os.walk(top):
        folders.append(folder)
        files += [f"{folder}/{name}" for name in names]
    if len(files) + len(folders) > _ONE_BY_ONE:
        with suppress(OSError):
            sync_disk(top)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import and rarely needed

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="podlift-sync") as pool:
        list(pool.map(_sync_named, files))
        list(pool.map(_sync_named, folders))


def sync_disk(path: str) -> None:
    import ctypes

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "syncfs"):
        os.sync()
        return
    with opened(path) as handle:
        libc.syncfs(handle)


def list_names(folder: str) -> list[str]:
    """Return the sorted names of the finished files in a folder; empty if the folder does not exist."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.endswith(".part"))
    except FileNotFoundError:
        return []


def _put(path: str, data: bytes, *, synced: bool) -> None:
    folder, name = os.path.split(path)
    part = f"{folder}/.{name}.{uuid.uuid4().hex}.part"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(handle, [data])
            if synced:
                sync_file(handle)
        finally:
            os.close(handle)
        # link() is the create-if-absent of POSIX: rename() would replace an object that another writer has acknowledged.
        os.link(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def _sync_named(path: str) -> None:
    with suppress(OSError), opened(path, os.O_NOFOLLOW) as handle:
        os.fsync(handle)
