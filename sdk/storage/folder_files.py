"""Files of any name and size in a folder that several machines share, as `gcs.files` has them in a bucket.

The program's files are plain files; the records of runs are the objects of a `PosixStore` in the same folder.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import ConflictError, CorruptObjectError, MissingError, StoreError
from . import file_systems, posix, trees
from .posix_store import PosixStore
from .store import Buffer

if TYPE_CHECKING:
    from .gcs.requests import ObjectInfo

SCHEME = "file://"


def in_folder(url: str) -> bool:
    return url.startswith(SCHEME)


def path_of(url: str) -> str:
    """Return the path of a URL of a shared folder, and any other URL as it is."""
    return url.removeprefix(SCHEME)


class FolderFiles:
    """The files below a folder: the last writer of a name wins."""

    def __init__(self, url: str) -> None:
        self._root = path_of(url)

    def set_deadline(self, within_s: float) -> None:
        """Does nothing: calls wait only for the kernel."""

    def list(self, prefix: str, *, suffix: str = "") -> Iterator[ObjectInfo]:
        """Yield each file with a name that starts with the prefix and ends with the suffix."""
        folder = prefix.rpartition("/")[0]
        with file_systems.as_store_error("list", self._path(folder)):
            names = sorted(name for name in self._walk(folder) if name.startswith(prefix) and name.endswith(suffix))
        for name in names:
            with suppress(MissingError):  # removed since the folder was read
                yield self._stat(name)

    def upload(self, name: str, path: str, existing: ObjectInfo | None) -> ObjectInfo:
        """Copy a file, or only renew the time of an equal one there."""
        with suppress(MissingError):
            there = self._stat(name)
            if there.size == os.path.getsize(path) and self._same(name, path):
                self.touch(name)
                return there
        target = self._path(name)
        with file_systems.as_store_error("write", target):
            posix.make_folders(os.path.dirname(target))
            trees.put_atomically(target, lambda part: _synced_copy(path, part))
            posix.sync_folder(os.path.dirname(target))
        return self._stat(name)

    def create(self, name: str, data: bytes) -> bytes:
        """Create a small file unless it exists, and return its content."""
        with file_systems.as_store_error("write", self._path(name)), suppress(FileExistsError):
            posix.put_new(self._path(name), data)
        return bytes(self.read(name))

    def _same(self, name: str, path: str) -> bool:
        with open(self._path(name), "rb") as there, open(path, "rb") as here:
            while data := here.read(1 << 20):
                if there.read(len(data)) != data:
                    return False
            return True

    def read(self, name: str) -> Buffer:
        """Return the content of a file, or of an object of a store in the folder."""
        with suppress(CorruptObjectError):
            return PosixStore(self._root).get(name)
        with file_systems.as_store_error("read", self._path(name)), open(self._path(name), "rb") as file:
            return file.read()

    def download(self, name: str, path: str) -> None:
        """Copy a file atomically to a path of this machine, or raise MissingError or OSError."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            trees.put_atomically(path, lambda part: shutil.copyfile(self._path(name), part))
        except FileNotFoundError:
            raise self._missing(name) from None

    def age_s(self, name: str) -> float:
        """Return the seconds since a file was last written, by this machine's clock; MissingError if it does not exist."""
        return self.written(name)[1]

    def written(self, name: str) -> tuple[float, float]:
        """Return the unix time at which a file was last written, and its age in seconds."""
        changed = self._status(name).st_mtime
        return changed, max(0.0, time.time() - changed)

    def matching(self, pattern: str) -> dict[str, float]:
        """Return the unix time of the last write of each name that matches; `*` matches within a folder."""
        times = {}
        for name in glob.glob(pattern, root_dir=self._root):
            with suppress(MissingError):
                times[name] = self._status(name).st_mtime
        return times

    def exists(self, name: str) -> bool:
        return os.path.isfile(self._path(name))

    def any_object(self, *, prefix: str = "", pattern: str = "") -> bool:
        """True if a file has this prefix or matches this pattern."""
        return bool(self.matching(pattern)) if pattern else any(True for _ in self.list(prefix))

    def folder(self, name: str, *, at_most: int | None = None) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders and of the files directly in a folder; with `at_most`, only the first ones."""
        path = self._path(name)
        names = sorted(file for file in os.listdir(path) if not _is_own(file))[:at_most] if os.path.isdir(path) else []
        folders = [name for name in names if os.path.isdir(f"{path}/{name}")]
        return folders, [name for name in names if name not in folders]

    def versions(self, prefix: str) -> tuple[Sequence[ObjectInfo], float]:
        """Return every file with this prefix, and the unix time when the listing began."""
        now = time.time()
        return list(self.list(prefix)), now

    def delete(self, version: ObjectInfo) -> bool:
        """Remove a file unless it has changed (ConflictError); False if it was already gone."""
        try:
            if self._stat(version.name) != version:
                raise ConflictError(
                    f"{self._path(version.name)} was changed by another writer; it is not removed."
                ) from None
            with file_systems.as_store_error("delete", self._path(version.name)):
                os.unlink(self._path(version.name))
        except (MissingError, FileNotFoundError):
            return False
        posix.remove_empty(os.path.dirname(self._path(version.name)), self._root)
        return True

    def touch(self, name: str) -> bool:
        """Let a file count as changed, so that a `delete` of its previous version fails; False if it does not exist."""
        with suppress(FileNotFoundError):
            os.utime(self._path(name))
            return True
        return False

    def bucket_info(self) -> Mapping[str, object]:
        """Return nothing, which a folder has no settings for; StoreError if it cannot be listed."""
        with file_systems.as_store_error("use", self._root), os.scandir(self._root):
            return {}

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _missing(self, name: str) -> MissingError:
        return MissingError(f"There is no file {name!r} in {self._root}.")

    def _status(self, name: str) -> os.stat_result:
        try:
            with file_systems.as_store_error("read", self._path(name)):
                return os.stat(self._path(name))
        except StoreError as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                raise self._missing(name) from None
            raise

    def _stat(self, name: str) -> ObjectInfo:
        from .gcs.requests import ObjectInfo

        status = self._status(name)
        return ObjectInfo(
            name=name,
            size=status.st_size,
            crc32c=None,
            generation=f"{status.st_ino}-{status.st_mtime_ns}",
            metageneration=str(status.st_ctime_ns),
            created=status.st_mtime,
            changed=status.st_mtime,
            nonce="",
        )

    def _walk(self, folder: str) -> Iterator[str]:
        start = f"{folder}/" if folder else ""
        try:
            with os.scandir(self._path(folder)) as entries:
                # The store's own files, and unfinished ones.
                foreign = [entry for entry in entries if not _is_own(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in foreign:
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(f"{start}{entry.name}")
            elif entry.is_file(follow_symlinks=False):
                yield f"{start}{entry.name}"


def _synced_copy(path: str, target: str) -> None:
    with open(path, "rb") as source, open(target, "xb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        posix.sync_file(copy.fileno())


def _is_own(name: str) -> bool:
    return name in (".lock", ".parts") or (name.startswith(".") and name.endswith(".part"))
