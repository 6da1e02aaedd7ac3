"""The bytes of objects: files that are complete before anything refers to them and never change afterwards."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from .. import private
from .errors import invalid

# Pairs of "crc32c" or "md5" and the hash in base64.
Declared = Sequence[tuple[str, str]]
_PIECE = 1 << 20
_HASH_PAIR = re.compile(r"\s*(crc32c|md5)=([A-Za-z0-9+/=]+)\s*")


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A finished file of bytes; the hashes in base64, as the API writes them."""

    id: str
    size: int
    crc32c: str
    md5: str | None


class BlobWriter:
    """Appends to one file and hashes what passes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._crc32c: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for piece in read_pieces(self._handle, 0, os.fstat(self._handle).st_size):
            self._hash(piece)

    def write(self, data: bytes) -> None:
        """Append; in the file when this returns, whatever becomes of this process."""
        self._hash(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._handle, rest) :]

    def _hash(self, data: bytes) -> None:
        self._crc32c.update(data)
        self._md5.update(data)
        self.size += len(data)

    def finish(self, *, md5: bool = True) -> Blob:
        """Close the file and return what is in it."""
        self.close()
        return Blob(
            id=self.path.name,
            size=self.size,
            crc32c=base64.b64encode(self._crc32c.digest()).decode(),
            md5=base64.b64encode(self._md5.digest()).decode() if md5 else None,
        )

    def close(self) -> None:
        """Close the file; it stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def discard(self) -> None:
        """Close the file and remove it."""
        self.close()
        self.path.unlink(missing_ok=True)


class Blobs:
    """A folder of blobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        private.make_subfolder(folder)

    def path(self, blob: str) -> Path:
        """Return the file of a blob."""
        return self._folder / blob

    def create(self) -> BlobWriter:
        """Return a writer of a new blob."""
        return BlobWriter(self.path(uuid.uuid4().hex))

    def reopen(self, blob: str) -> BlobWriter:
        """Return a writer that goes on where the file ends."""
        return BlobWriter(self.path(blob))

    def link(self, blob: str) -> str:
        """Return a second blob of the same bytes, which takes no room."""
        copy = uuid.uuid4().hex
        os.link(self.path(blob), self.path(copy))
        return copy

    def concatenate(self, parts: Sequence[str]) -> Blob:
        """Return a new blob: these one after the other."""
        writer = self.create()
        try:
            for part in parts:
                handle = os.open(self.path(part), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    for piece in read_pieces(handle, 0, os.fstat(handle).st_size):
                        writer.write(piece)
                finally:
                    os.close(handle)
        except BaseException:
            writer.discard()
            raise
        return writer.finish(md5=False)

    def size(self, blob: str) -> int:
        """Return how many bytes are there; 0 for a blob that nobody has begun."""
        try:
            return self.path(blob).stat().st_size
        except FileNotFoundError:
            return 0

    def truncate(self, blob: str, size: int) -> None:
        """Keep the first bytes of an unfinished blob."""
        os.truncate(self.path(blob), size)

    def flip_byte(self, blob: str, at: int) -> None:
        """Change one byte, as a disk that forgets would."""
        with self.path(blob).open("r+b") as file:
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1]) if old else b"")

    def remove(self, blob: str) -> None:
        """Remove a blob that nothing refers to any more; whoever reads it reads on."""
        if blob:
            self.path(blob).unlink(missing_ok=True)

    def remove_unknown(self, known: Collection[str]) -> None:
        """Remove what a killed server has left behind."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name not in known:
                    self.remove(entry.name)


def read_pieces(handle: int, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of an open file from `start` to `stop`, in pieces that fit into memory."""
    while start < stop:
        piece = os.pread(handle, min(_PIECE, stop - start), start)
        if not piece:
            return
        start += len(piece)
        yield piece


def declared_hashes(*sources: Mapping[str, object]) -> Declared:
    """Return the hashes that a client has declared, in its metadata and its headers: all of them have to be right.

    Raises:
        ApiError: one of them is no hash.
    """
    found = []
    for source in sources:
        for name, key in (("crc32c", "crc32c"), ("md5", "md5Hash"), ("md5", "content-md5")):
            if source.get(key):
                found.append((name, str(source[key])))
        for pair in filter(None, str(source.get("x-goog-hash") or "").split(",")):
            match = _HASH_PAIR.fullmatch(pair)
            if match is None:
                raise invalid(f"x-goog-hash is crc32c=BASE64 or md5=BASE64. Received: {pair.strip()!r}.")
            found.append((match[1], match[2]))
    return found


def verify(blob: Blob, hashes: Declared) -> None:
    """Compare with what the client has declared.

    Raises:
        ApiError: other bytes have arrived than were sent.
    """
    for name, wanted in hashes:
        there = {"crc32c": blob.crc32c, "md5": blob.md5}[name]
        if there is not None and wanted != there:
            label = {"crc32c": "CRC32C", "md5": "MD5 hash"}[name]
            raise invalid(f'Provided {label} "{wanted}" doesn\'t match calculated {label} "{there}".')
