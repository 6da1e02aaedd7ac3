"""The bytes of objects: files that are complete before anything refers to them, and never change afterwards."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from .. import data_folder
from .errors import invalid

# Pairs of "crc32c" or "md5" and the hash in base64.
Declared = Sequence[tuple[str, str]]
_PIECE_BYTES = 1 << 20
_HASH_PAIR = re.compile(r"\s*(crc32c|md5)=([A-Za-z0-9+/=]+)\s*")


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A finished file of bytes; the hashes in base64, as the API writes them."""

    id: str
    size: int
    crc32c: str
    md5: str | None


class BlobWriter:
    """Appends to one file and hashes its bytes. As a context manager it removes the file after an exception."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._crc32c: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        self._md5 = hashlib.md5(usedforsecurity=False)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = open(handle, "ab", buffering=0)  # noqa: SIM115
        for piece in read_pieces(handle, 0, os.fstat(handle).st_size):
            self._hash(piece)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append. The data survive a kill of this process once this returns."""
        self._hash(data)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _hash(self, data: bytes) -> None:
        self._crc32c.update(data)
        self._md5.update(data)
        self.size += len(data)

    def finish(self, *, md5: bool = True) -> Blob:
        self.close()
        return Blob(
            id=self.path.name,
            size=self.size,
            crc32c=base64.b64encode(self._crc32c.digest()).decode(),
            md5=base64.b64encode(self._md5.digest()).decode() if md5 else None,
        )

    def close(self) -> None:
        self._file.close()


class Blobs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        data_folder.make_subfolder(folder)

    def path(self, blob: str) -> Path:
        return self._folder / blob

    def writer(self, blob: str = "") -> BlobWriter:
        """Return a writer of a new blob, or one that continues where a blob ends."""
        return BlobWriter(self.path(blob or uuid.uuid4().hex))

    def link(self, blob: str) -> str:
        copy = uuid.uuid4().hex
        os.link(self.path(blob), self.path(copy))
        return copy

    async def concatenate(self, parts: Sequence[str]) -> Blob:
        """Return a new blob with the bytes of others, which may be removed meanwhile."""
        links = [self.link(part) for part in parts]

        def copy() -> Blob:
            with self.writer() as writer:
                for link in links:
                    with self.path(link).open("rb") as file:
                        while piece := file.read(_PIECE_BYTES):
                            writer.write(piece)
                return writer.finish(md5=False)

        try:
            return await asyncio.to_thread(copy)
        finally:
            for link in links:
                self.remove(link)

    def size(self, blob: str) -> int:
        try:
            return self.path(blob).stat().st_size
        except FileNotFoundError:
            return 0

    def flip_byte(self, blob: str, at: int) -> None:
        """Change one byte, as a failing disk would."""
        with self.path(blob).open("r+b") as file:
            old = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes(byte ^ 1 for byte in old), at)

    def remove(self, blob: str) -> None:
        """Remove a blob without references; open readers can continue."""
        if blob:
            self.path(blob).unlink(missing_ok=True)

    @contextmanager
    def removed_on_error(self, blob: Blob) -> Iterator[None]:
        """Remove a blob if the block, which should make an object of it, fails."""
        try:
            yield
        except BaseException:
            self.remove(blob.id)
            raise

    def remove_unknown(self, ids: Collection[str]) -> None:
        for name in os.listdir(self._folder):
            if name not in ids:
                self.remove(name)


def read_pieces(handle: int, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of an open file from `start` to `stop`, in pieces that fit into memory."""
    while start < stop:
        piece = os.pread(handle, min(_PIECE_BYTES, stop - start), start)
        if not piece:
            return
        start += len(piece)
        yield piece


def declared_hashes(*sources: Mapping[str, object]) -> Declared:
    """Return the hashes that a client has declared in metadata and headers; every one of them has to match."""
    hashes = []
    for source in sources:
        named = (("crc32c", "crc32c"), ("md5", "md5Hash"), ("md5", "content-md5"))
        hashes += [(name, str(source[key])) for name, key in named if source.get(key)]
        for pair in filter(None, str(source.get("x-goog-hash") or "").split(",")):
            match = _HASH_PAIR.fullmatch(pair)
            if match is None:
                raise invalid(f"x-goog-hash is crc32c=BASE64 or md5=BASE64. Received: {pair.strip()!r}.")
            hashes.append((match[1], match[2]))
    return hashes


def verify(blob: Blob, hashes: Declared) -> None:
    actuals = {"crc32c": ("CRC32C", blob.crc32c), "md5": ("MD5 hash", blob.md5)}
    for name, declared in hashes:
        label, actual = actuals[name]
        if actual is not None and declared != actual:
            raise invalid(f'Provided {label} "{declared}" doesn\'t match calculated {label} "{actual}".')
