"""All that a checkpoint asks of the place where its bytes live: verbs over whole, checked, write-once objects, and haste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import InputError

Buffer = bytes | bytearray | memoryview

# What `Stat.generation` says of an object whose own record cannot be read: it is listed, never hidden, and `get` refuses it.
DAMAGED = "damaged"


@dataclass(frozen=True, kw_only=True)
class Stat:
    """What a store knows of an object without reading it.

    Attributes:
        key: its name, with slashes.
        size: bytes of its content.
        crc32c: of its content, as it was written.
        generation: changes whenever somebody writes an object of this name; `DAMAGED` where it cannot be told.
    """

    key: str
    size: int
    crc32c: int
    generation: str


class Store(Protocol):
    """Objects by name. A failure is always an exception; nothing found is never said where nothing could be seen.

    Every method raises StoreError when the place cannot serve it: the sentence says why.
    """

    @property
    def url(self) -> str:
        """Where it is, as a person would write it."""

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        """Create one object of all the buffers, whole and durable.

        Args:
            key: its name.
            data: its bytes.
            crc: crc32c of all the buffers, where the caller has computed it: the object is written with that one.

        Raises:
            AlreadyExistsError: an object of that name exists.
            StoreError: it could not be created. Whether it exists now is open: read it back.
        """

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        """Return the bytes of an object after comparing them with the crc of their writing.

        Args:
            key: its name.
            generation: the only one that is wanted.
            into: writable memory of exactly the object's size, that the bytes are put in and that is returned.

        Raises:
            MissingError, ConflictError, CorruptObjectError: no object; another generation; other bytes.
        """

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose name starts with the prefix, sorted by name."""

    def stat(self, key: str) -> Stat:
        """Return what is known of one object, or raise MissingError."""

    def delete(self, key: str, *, generation: str | None = None) -> None:
        """Remove an object; MissingError and ConflictError as for `get`."""

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        """Replace an object if its generation is still the expected one; None creates it. Else ConflictError."""

    def set_deadline(self, within_s: float) -> None:
        """From now on give up every call that is not done so many seconds from now: the process must leave.

        A store whose calls wait for nobody need not change anything.

        Args:
            within_s: seconds from now, for all calls together. What is given up raises StoreError.
        """


def check_key(key: str) -> str:
    """Return a key that can be a name everywhere.

    Raises:
        InputError: a part of it is empty, starts with a dot or is longer than 200 bytes, or it holds a control character.
    """
    parts = key.split("/")
    if any(not part or part.startswith(".") or len(part.encode()) > 200 for part in parts) or not key.isprintable():
        raise InputError(
            f"This is no name of an object. Received: {key!r}. Allowed: parts with / between them, none hidden."
        )
    return key
