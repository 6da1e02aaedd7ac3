"""The Store seam: whole, verified, write-once objects, as checkpoints need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from ..errors import AlreadyExistsError, ConflictError, InputError, MissingError

Buffer = bytes | bytearray | memoryview

# `Stat.generation` of an object with an unreadable record: it is listed, never hidden, and `get` rejects it.
DAMAGED = "damaged"
# Small objects that this process has read, by store, name and generation, and the most of them.
_read: dict[tuple[str, str, str], object] = {}
_MOST_READ = 20_000
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Stat:
    """The metadata of an object, known without reading it.

    Attributes:
        key: its name, with slashes.
        size: bytes of its content.
        crc32c: of its content, as it was written.
        generation: changes with every write to the name; `DAMAGED` if it cannot be determined.
    """

    key: str
    size: int
    crc32c: int
    generation: str


class Store(Protocol):
    """Objects by name. Every failure is an exception; an unreadable place never appears empty.

    Every method raises StoreError if the store cannot serve the call; the message gives the reason.
    """

    @property
    def url(self) -> str:
        """Its location, as a user would write it."""

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        """Create one object from all the buffers, complete and durable.

        Args:
            key: its name.
            data: its bytes.
            crc: crc32c of all the buffers, if the caller has computed it.

        Raises:
            AlreadyExistsError: the object exists.
            StoreError: it could not be created. Whether it exists now is unknown: read it back.
        """

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        """Return the bytes of an object after verifying them against the crc of their writing.

        Args:
            key: its name.
            generation: the only acceptable one.
            into: writable memory of exactly the object's size, to fill and return.

        Raises:
            MissingError, ConflictError, CorruptObjectError: no object; another generation; other bytes.
        """

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object with this prefix, sorted by name."""

    def stat(self, key: str) -> Stat:
        """Return an object's Stat, or raise MissingError."""

    def delete(self, key: str, *, generation: str | None = None) -> None:
        """Remove an object; MissingError and ConflictError as for `get`."""

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        """Replace an object if its generation is still `expected`; None creates it. Otherwise ConflictError."""

    def set_deadline(self, within_s: float) -> None:
        """Abort every call that is not done `within_s` seconds from now: the process must exit.

        Aborted calls raise StoreError. A store that never waits may ignore this.
        """


def create(store: Store, key: str, data: bytes) -> bool:
    """Create a small object. Return False if it exists already, perhaps with other bytes."""
    try:
        store.put_new(key, [data])
    except AlreadyExistsError:
        return False
    return True


def exists(store: Store, key: str) -> bool:
    try:
        store.stat(key)
    except MissingError:
        return False
    return True


def current(store: Store, key: str) -> tuple[bytes, str]:
    """Return the bytes and the generation of an object that other processes replace; MissingError if there is none."""
    while True:
        generation = store.stat(key).generation
        with suppress(ConflictError):  # it was replaced between the two requests
            return bytes(store.get(key, generation=generation)), generation


def unchanged(store: Store, stat: Stat, read: Callable[[], _T]) -> _T:
    """Return the value of a listed object, from `read` if this process has not read the same bytes before."""
    place = store.url, stat.key, stat.generation
    value = _read.get(place)
    if value is None:
        value = read()
        if len(_read) >= _MOST_READ:
            _read.clear()
        _read[place] = value
    return cast("_T", value)


def check_key(key: str) -> str:
    """Return a key that is valid in every store.

    Raises:
        InputError: a part of it is empty, starts with a dot or is longer than 200 bytes, or it has a control character.
    """
    parts = key.split("/")
    if any(not part or part.startswith(".") or len(part.encode()) > 200 for part in parts) or not key.isprintable():
        raise InputError(
            f"Invalid name of an object. Received: {key!r}. Allowed: parts separated by /, none empty or hidden."
        )
    return key
