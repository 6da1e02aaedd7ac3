"""A store in a folder. An object is a file with one trailing line that describes the content.

    <the content>
    <generation, 16 hex> <crc32c of the content> <size> <crc32c of this line so far> podlift

A new object is written to a temporary file, synced, and linked to its name: link() is the create-if-absent of POSIX, while
rename() would replace an object that another writer has acknowledged. Comparing and then renaming could acknowledge two writers
at once, so a swap holds a lock; the kernel releases the lock of a killed holder.
"""

from __future__ import annotations

import os
import re
import secrets
import stat as modes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import AlreadyExistsError, ConflictError, CorruptObjectError, MissingError, StoreError
from . import direct, file_systems, locking, posix
from .checksums import crc32c
from .raw_memory import flat
from .store import DAMAGED, Buffer, Stat, check_key

_TRAILER = re.compile(rb"\n([0-9a-f]{16}) ([0-9a-f]{8}) ([0-9]{16}) ([0-9a-f]{8}) podlift\n")
_TRAILER_BYTES = 1 + 16 + 1 + 8 + 1 + 16 + 1 + 8 + 1 + 7 + 1
_READ_BYTES = 4 << 20
_LINK_TRIES = 10


@dataclass(frozen=True)
class _Trailer:
    generation: str
    crc32c: int
    size: int

    def encode(self) -> bytes:
        start = f"\n{self.generation} {self.crc32c:08x} {self.size:016d} ".encode()
        return start + f"{crc32c([start]):08x} podlift\n".encode()


class PosixStore:
    """Objects in a folder of a file system that has hard links.

    Args:
        path: the folder; created by the first write.
        at: called when a write is "written", "synced", "linked", "replaced" or "deleted", for tests that kill the process.
    """

    def __init__(self, path: str | os.PathLike[str], *, at: Callable[[str], None] | None = None) -> None:
        self._root = os.path.abspath(os.fspath(path))
        self._at = at or (lambda moment: None)
        self._temporary = locking.TemporaryFiles(self._root)
        self._durable: set[str] = set()

    @property
    def url(self) -> str:
        return self._root

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        with file_systems.as_store_error("write", self._path(key)), self._written(data, crc) as (temporary, trailer):
            self._link(temporary, key)
            self._at("linked")
            self._sync(key)
        return Stat(key=key, size=trailer.size, crc32c=trailer.crc32c, generation=trailer.generation)

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        with file_systems.as_store_error("read", self._path(key)), self._open(key) as handle:
            trailer = self._trailer(key, handle)
            if generation is not None and trailer.generation != generation:
                raise ConflictError(
                    f"The object {key!r} of {self._root} is not the expected one: its generation is "
                    f"{trailer.generation}, not {generation}."
                )
            if into is not None and len(into) != trailer.size:
                raise CorruptObjectError(
                    f"The object {key!r} of {self._root} has {trailer.size} bytes, not {len(into)}."
                )
            target = memoryview(bytearray(trailer.size)) if into is None else into
            read = _read(handle, target)
        if read != trailer.crc32c:
            raise CorruptObjectError(
                f"The object {key!r} of {self._root} is damaged: its crc32c is {read:08x}; {trailer.crc32c:08x} was written."
            )
        return target.toreadonly() if into is None else into

    def list(self, prefix: str) -> Iterator[Stat]:
        folder = prefix.rpartition("/")[0]
        with file_systems.as_store_error("list", self._path(folder) if folder else self._root):
            keys = sorted(key for key in self._walk(folder) if key.startswith(prefix))
        for key in keys:
            try:
                yield self.stat(key)
            except MissingError:
                # Deleted since the folder was read.
                continue

    def stat(self, key: str) -> Stat:
        with file_systems.as_store_error("read", self._path(key)):
            try:
                with self._open(key) as handle:
                    trailer = self._trailer(key, handle)
            except CorruptObjectError:
                return Stat(key=key, size=os.lstat(self._path(key)).st_size, crc32c=0, generation=DAMAGED)
        return Stat(key=key, size=trailer.size, crc32c=trailer.crc32c, generation=trailer.generation)

    def delete(self, key: str, *, generation: str | None = None) -> None:
        path = self._path(key)
        if not os.path.lexists(path) or os.path.isdir(path):
            raise self._missing(key)
        with file_systems.as_store_error("delete", path), locking.folder_lock(self._root):
            if generation is not None:
                self._expect(key, generation)
            try:
                os.unlink(path)
            except FileNotFoundError:
                raise self._missing(key) from None
            self._at("deleted")
            posix.remove_empty(os.path.dirname(path), self._root)

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        path = self._path(key)
        writing = file_systems.as_store_error("write", path)
        with writing, self._written(data) as (temporary, trailer), locking.folder_lock(self._root):
            self._expect(key, expected)
            self._make_folders(path)
            os.replace(temporary, path)
            self._at("replaced")
            self._sync(key)
        return Stat(key=key, size=trailer.size, crc32c=trailer.crc32c, generation=trailer.generation)

    def set_deadline(self, within_s: float) -> None:
        """Does nothing: calls wait only for the kernel."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _missing(self, key: str) -> MissingError:
        return MissingError(f"There is no object {key!r} in {self._root}.")

    def _expect(self, key: str, generation: str | None) -> None:
        try:
            current: str | None = self.stat(key).generation
        except MissingError:
            if generation is not None:
                raise
            current = None
        if current != generation:
            raise ConflictError(
                f"The object {key!r} of {self._root} was changed by another writer: its generation is {current}, not "
                f"{generation}."
            )

    @contextmanager
    def _open(self, key: str) -> Iterator[int]:
        try:
            with posix.opened(self._path(key)) as handle:
                mode = os.fstat(handle).st_mode
                if modes.S_ISDIR(mode):
                    raise self._missing(key)
                if not modes.S_ISREG(mode):
                    raise CorruptObjectError(f"{self._path(key)} is not a regular file.")
                yield handle
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(key) from None

    def _trailer(self, key: str, handle: int) -> _Trailer:
        size = os.fstat(handle).st_size - _TRAILER_BYTES
        match = _TRAILER.fullmatch(os.pread(handle, _TRAILER_BYTES, size)) if size >= 0 else None
        trailer = _Trailer(match[1].decode(), int(match[2], 16), int(match[3])) if match else None
        if match is None or trailer is None or trailer.encode() != match[0] or trailer.size != size:
            raise CorruptObjectError(
                f"The object {key!r} of {self._root} is damaged: its last line is not the one that was written."
            )
        return trailer

    @contextmanager
    def _written(self, data: Sequence[Buffer], crc: int | None = None) -> Iterator[tuple[str, _Trailer]]:
        """Yield the path of a temporary file with the durable object, which it is linked or renamed from."""
        temporary = self._temporary.new()
        try:
            views = [flat(part) for part in data]
            size = sum(len(view) for view in views)
            trailer = _Trailer(secrets.token_hex(8), crc32c(views) if crc is None else crc, size)
            direct.write_all(temporary.handle, [*views, memoryview(trailer.encode())])
            self._at("written")
            posix.sync_file(temporary.handle)
            self._at("synced")
            yield temporary.path, trailer
        finally:
            temporary.drop()

    def _link(self, temporary: str, key: str) -> None:
        path = self._path(key)
        for _ in range(_LINK_TRIES):
            self._make_folders(path)
            try:
                return os.link(temporary, path)
            except FileExistsError:
                raise AlreadyExistsError(f"The object {key!r} of {self._root} already exists.") from None
            except FileNotFoundError:
                # The folder was removed together with its last object a moment ago.
                continue
            except OSError as error:
                raise file_systems.link_error(error, self._root) from error
        raise StoreError(f"Another process keeps removing the folder of {path!r}.")

    def _make_folders(self, path: str) -> None:
        self._durable.update(posix.make_folders(os.path.dirname(path)))

    def _sync(self, key: str) -> None:
        """Make the name of a key durable, and once the names of its folders, which another task may be creating."""
        path = self._path(key)
        try:
            posix.sync_folder(os.path.dirname(path))
            posix.sync_names(os.path.dirname(path), self._root, self._durable)
        except FileNotFoundError:
            # Another task deleted the new object and its empty folder: the chief does so with a save that it skips.
            if os.path.lexists(path):
                raise

    def _walk(self, folder: str) -> Iterator[str]:
        start = f"{folder}/" if folder else ""
        try:
            with os.scandir(f"{self._root}/{folder}" if folder else self._root) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            return
        for entry in visible:
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(f"{start}{entry.name}")
            else:
                yield f"{start}{entry.name}"


def _read(handle: int, target: memoryview) -> int:
    """Fill the target from the start of the file; return the crc32c of the bytes read."""
    crc = done = 0
    while done < len(target):
        count = os.preadv(handle, [target[done : done + _READ_BYTES]], done)
        if count == 0:
            break
        crc = crc32c([target[done : done + count]], crc)
        done += count
    return crc if done == len(target) else -1
