"""Files that programs may be writing: find them, read them whole, replace them. Nothing here knows of objects."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_FICLONE = 0x40049409
_MAX_PART_BYTES = 255
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class FileStat:
    """A file, or a folder if its name ends with a slash."""

    signature: tuple[int, ...]  # Changes with every write; () for a folder
    changed_ns: int  # When it was last written or renamed. Programs can set all other times.


class OpenForWriting(Enum):
    NO = "no program has it open for writing"
    YES = "a program has it open for writing"
    UNKNOWN = "this file system cannot tell"


def walk(top: str, prefix: str = "") -> Iterator[tuple[str, FileStat]]:
    """Yield all files and folders below a folder by their relative names; no links, and no names that are not UTF-8."""
    try:
        entries = list(os.scandir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = prefix + entry.name
        with suppress(FileNotFoundError, UnicodeEncodeError):
            name.encode()
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                yield name, FileStat(signature(about), about.st_ctime_ns)
            elif stat.S_ISDIR(about.st_mode):
                yield f"{name}/", FileStat((), about.st_ctime_ns)
                yield from walk(entry.path, f"{name}/")


def signature(about: os.stat_result) -> tuple[int, ...]:
    return about.st_ino, about.st_size, about.st_mtime_ns


def is_path(name: str) -> bool:
    parts = name.removesuffix("/").split("/")
    return "\0" not in name and all(
        part not in ("", ".", "..") and len(part.encode()) <= _MAX_PART_BYTES for part in parts
    )


@contextmanager
def open_with_lease(path: Path) -> Iterator[tuple[int, OpenForWriting]]:
    """Open a file; if it is not open for writing, the kernel lets no program open it for writing before the block ends."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield handle, _lease(handle)
    finally:
        os.close(handle)


def _lease(handle: int) -> OpenForWriting:
    if not hasattr(fcntl, "F_SETLEASE"):
        return OpenForWriting.UNKNOWN
    try:
        # A program that opens it for writing waits for us. The default signal about that would end this process, not SIGURG.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return OpenForWriting.YES if error.errno == errno.EAGAIN else OpenForWriting.UNKNOWN
    return OpenForWriting.NO


def is_written(path: Path) -> bool:
    try:
        with open_with_lease(path) as (_, use):
            return use is OpenForWriting.YES
    except OSError:
        return False


def make_parents(top: Path, name: str) -> list[str]:
    """Make the folders above a file; return the names of the new ones, each with a slash at its end."""
    made, place = [], ""
    for part in name.removesuffix("/").split("/")[:-1]:
        place += f"{part}/"
        try:
            (top / place).mkdir()
            made.append(place)
        except FileExistsError:
            # Through a link a job could write anywhere on the machine.
            if not stat.S_ISDIR(os.lstat(top / place.removesuffix("/")).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(top / place)) from None
    return made


def replace_file(source: Path, staged: Path, target: Path) -> tuple[int, ...]:
    """Replace a file by a copy of another one, atomically; open readers keep the old one. Return its signature."""
    try:
        with source.open("rb") as old, staged.open("wb") as new:
            # Never a link: a program may write into the file.
            try:
                fcntl.ioctl(new, _FICLONE, old.fileno())
            except OSError:
                shutil.copyfileobj(old, new, _PIECE_BYTES)
                new.flush()
            os.fchmod(new.fileno(), 0o644)
            about = os.fstat(new.fileno())
        staged.rename(target)
    finally:
        staged.unlink(missing_ok=True)
    return signature(about)
