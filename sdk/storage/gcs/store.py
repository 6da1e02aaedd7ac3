"""A store in a bucket of Google Cloud Storage. An object is an object; its generation is the service's own.

A request whose answer is lost may have been carried out, and its repetition is then told that somebody was faster: 412 or 404.
So every write carries a nonce, and what is there afterwards decides, never a status.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...clock import Clock, SystemClock
from ...errors import AlreadyExistsError, ConflictError, CorruptObjectError, InputError, MissingError
from .. import emulator
from ..checksums import crc32c, flat
from ..retry import RetryPolicy, RetryState
from ..store import DAMAGED, Buffer, Stat, check_key

if TYPE_CHECKING:
    from .requests import BucketRequests, ObjectInfo

OBJECT_BYTES = 64 << 20
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_T = TypeVar("_T")


class GcsStore:
    """Objects below a prefix of a bucket. Nothing is asked of the network before the first call.

    Args:
        place: "bucket" or "bucket/prefix".
        patience: how long it is tried.
        clock: what time it is.

    Raises:
        InputError: that is no place in a bucket.
    """

    def __init__(self, place: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None) -> None:
        bucket, _, prefix = place.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise InputError(f"This is no name of a bucket. Received: {bucket!r}. Expected: gs://BUCKET/PREFIX.")
        self._bucket = bucket
        self._prefix = f"{check_key(prefix.rstrip('/'))}/" if prefix.strip("/") else ""
        self._retry = retry or RetryPolicy()
        self._clock = clock or SystemClock()
        self._answered = False
        self._until: float | None = None

    @property
    def url(self) -> str:
        return f"gs://{self._bucket}/{self._prefix}".rstrip("/")

    def set_deadline(self, within_s: float) -> None:
        """From now on give up every call that has not succeeded within so many seconds from now: the process must leave."""
        self._until = self._clock.monotonic() + within_s

    def ask(self, what: str, call: Callable[[BucketRequests], _T]) -> _T:
        """Return what another request to the bucket returns, repeated and told of as the store's own: "Cannot read x"."""
        return self._call(self._tries(), what, call)

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        try:
            return self._write(key, data, crc, "0")
        except ConflictError as error:
            raise AlreadyExistsError(f"The object {key!r} of {self.url} exists already.") from error.__cause__

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        return self._write(key, data, None, self._number(key, expected) or "0")

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        name, wanted = self._name(key), self._number(key, generation)
        tries = self._tries()
        try:
            return self._call(
                tries,
                f"Cannot read {self._at(key)}",
                lambda wire: wire.download(name, expected=wanted, into=into, check=self._checked(tries)),
            )
        except ConflictError:
            # Of an object that is gone some say so, and some that its generation is not the expected one.
            self.stat(key)
            raise

    def list(self, prefix: str) -> Iterator[Stat]:
        token: str | None = None
        while True:
            found, token = self._page(prefix, token)
            for each in found:
                key = each.name[len(self._prefix) :]
                if _is_key(key):
                    yield _stat(key, each)
            if not token:
                return

    def stat(self, key: str) -> Stat:
        return _stat(key, self._look(key))

    def delete(self, key: str, *, generation: str | None = None) -> None:
        name, wanted = self._name(key), self._number(key, generation)
        tries = self._tries()
        try:
            self._call(tries, f"Cannot delete {self._at(key)}", lambda wire: wire.delete(name, expected=wanted))
        except MissingError:
            # If an answer was lost, it was our own request that has removed it.
            if not tries.unsure:
                raise
        except ConflictError as error:
            try:
                self._look(key)
            except MissingError:
                if tries.unsure:
                    return
                raise
            raise ConflictError(f"{self._at(key)} was written by somebody else; it is left alone.") from error

    def _write(self, key: str, data: Sequence[Buffer], crc: int | None, expected: str) -> Stat:
        size = sum(len(flat(part)) for part in data)
        if size > OBJECT_BYTES:
            raise InputError(f"An object of {self.url} has at most {OBJECT_BYTES} bytes. Received: {size} for {key!r}.")
        crc = crc32c(data) if crc is None else crc
        try:
            found = self._insert(key, data, crc, expected)
        except MissingError:
            if expected != "0":
                raise
            # Refused although nothing is there: gone in between, or a checksum that was refused with the wrong number.
            found = self._insert(key, data, crc, expected)
        if (found.size, found.crc32c) != (size, crc):
            raise CorruptObjectError(
                f"{self.url} has stored other bytes of {key!r} than it was given: {found.size} bytes, not {size}, or another "
                f"crc32c than {crc:08x}."
            )
        return _stat(key, found)

    def _insert(self, key: str, data: Sequence[Buffer], crc: int, expected: str) -> ObjectInfo:
        name, nonce, tries = self._name(key), secrets.token_hex(8), self._tries()
        check = self._checked(tries)
        try:
            return self._call(
                tries,
                f"Cannot write {self._at(key)}",
                lambda wire: wire.insert(name, data, crc=crc, nonce=nonce, expected=expected, check=check),
            )
        except ConflictError:
            found = self._look(key)
            if found.nonce != nonce:
                raise
            return found

    def _look(self, key: str) -> ObjectInfo:
        name = self._name(key)
        return self._call(self._tries(), f"Cannot look at {self._at(key)}", lambda wire: wire.stat(name))

    def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        what = f"Cannot list {self.url}/{prefix}"
        return self._call(self._tries(), what, lambda wire: wire.page(self._prefix + prefix, token))

    def _call(self, tries: RetryState, what: str, call: Callable[[BucketRequests], _T]) -> _T:
        """Return what a request returns, sent again as long as that may help."""
        from . import errors

        damages = 0
        while True:
            try:
                answer = call(self._wire(tries))
                self._answered = True
                return answer
            except Exception as error:
                trouble = errors.of(error, self._bucket)
                if trouble is None:
                    raise
                self._answered = self._answered or trouble.answered
                tries.unsure = tries.unsure or trouble.unsure
                damages += trouble.kind is CorruptObjectError
                again = trouble.again and damages < errors.DAMAGES_TRIED
                if again and tries.again(trouble.wait_s):
                    continue
                after = f" It was tried {tries.count} times in {tries.spent_s:.0f} s." if tries.count > 1 else ""
                raise trouble.kind(emulator.masked(f"{what}: {trouble.text}.{after}")) from error

    def _wire(self, tries: RetryState) -> BucketRequests:
        from .client import connection
        from .requests import BucketRequests

        left_s = max(0.1, tries.left_s)
        timeout = (min(self._retry.connect_s, left_s), min(self._retry.read_s, left_s))
        return BucketRequests(connection=connection(), bucket=self._bucket, timeout=timeout)

    def _tries(self) -> RetryState:
        started = self._clock.monotonic()

        def limit() -> float:
            until = started + (self._retry.total_s if self._answered else self._retry.first_s)
            return until if self._until is None else min(until, self._until)

        return RetryState(self._clock, limit, self._retry.wait_s)

    def _checked(self, tries: RetryState) -> Callable[[], None]:
        def check() -> None:
            from .errors import OutOfTimeError

            if tries.left_s <= 0:
                raise OutOfTimeError

        return check

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _at(self, key: str) -> str:
        return f"gs://{self._bucket}/{self._prefix}{key}"

    def _number(self, key: str, generation: str | None) -> str | None:
        if generation is not None and not (generation.isascii() and generation.isdigit()):
            # Of another store, or of a damaged record: no object here can have it.
            self.stat(key)
            raise ConflictError(f"{self._at(key)} is another one than expected: no generation is {generation!r}.")
        return generation


def _stat(key: str, found: ObjectInfo) -> Stat:
    known = found.crc32c is not None
    return Stat(key=key, size=found.size, crc32c=found.crc32c or 0, generation=found.generation if known else DAMAGED)


def _is_key(name: str) -> bool:
    # What the console and FUSE keep for folders, and whatever else can be no object of a store.
    try:
        return bool(check_key(name))
    except InputError:
        return False
