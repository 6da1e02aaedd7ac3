"""A store in a bucket of Cloud Storage. Each object of the store is one object; generations are the service's own.

A request whose response is lost may have taken effect, and its retry then fails with 412 or 404 as if another writer had been
faster. So every write carries a nonce, and the existing object decides, never a status.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from ...clock import Clock, SystemClock
from ...errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptObjectError,
    InputError,
    MissingError,
    StoreError,
    StoreUnavailableError,
)
from ...text import duration
from .. import emulator
from ..checksums import crc32c
from ..raw_memory import flat
from ..retry import OUTAGES, Retries, RetryPolicy
from ..store import DAMAGED, Buffer, Stat, check_key

if TYPE_CHECKING:
    from .requests import BucketRequests, ObjectInfo, ObjectPage

OBJECT_BYTES = 64 << 20
# A call that is repeated for this long is reported if it may be for as long again.
_REPORT_S, _REPORT_LEFT_S = 30.0, 60.0
# A file of any size may take as long as its bytes move at this speed, beyond the time of the call.
_LEAST_PER_S = 100e3
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
# "anonymous" sends no credentials, which is enough to read a public bucket.
Access = Literal["write", "read", "anonymous"]
_T = TypeVar("_T")


class GcsStore:
    """Objects below "bucket" or "bucket/prefix". The network is not used before the first call."""

    def __init__(
        self,
        location: str,
        *,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        access: Access = "write",
    ) -> None:
        bucket, _, prefix = location.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise InputError(f"Invalid name of a bucket. Received: {bucket!r}. Expected: gs://BUCKET/PREFIX.")
        self._bucket = bucket
        self._prefix = f"{check_key(prefix.rstrip('/'))}/" if prefix.strip("/") else ""
        self._retry = retry or RetryPolicy()
        self._clock = clock or SystemClock()
        self._access = access
        self._answered = False
        self._until: float | None = None

    @property
    def url(self) -> str:
        return f"gs://{self._bucket}/{self._prefix}".rstrip("/")

    def set_deadline(self, within_s: float) -> None:
        self._until = self._clock.monotonic() + within_s

    def request(self, what: str, call: Callable[[BucketRequests], _T]) -> _T:
        """Return the result of another request about the bucket, retried and reported like the store's own."""
        return self._call(self._tries(), what, call, least_per_s=_LEAST_PER_S)

    def put_new(self, key: str, data: Sequence[Buffer], *, crc: int | None = None) -> Stat:
        try:
            return self._write(key, data, crc, "0")
        except ConflictError as error:
            raise AlreadyExistsError(f"The object {key!r} of {self.url} already exists.") from error.__cause__

    def swap(self, key: str, data: Sequence[Buffer], *, expected: str | None) -> Stat:
        return self._write(key, data, None, self._generation(key, expected) or "0")

    def get(self, key: str, *, generation: str | None = None, into: memoryview | None = None) -> Buffer:
        name, expected = self._name(key), self._generation(key, generation)
        try:
            return self._call(
                self._tries(),
                f"Cannot read {self._url_of(key)}",
                lambda bucket: bucket.download(name, expected=expected, into=into, most=OBJECT_BYTES),
            )
        except ConflictError:
            # For a missing object some servers return 404, others 412.
            self.stat(key)
            raise

    def list(self, prefix: str) -> Iterator[Stat]:
        for page in self.pages(f"{self.url}/{prefix}", {"prefix": self._prefix + prefix}):
            for info in page.objects:
                key = info.name[len(self._prefix) :]
                if _is_key(key):
                    yield _stat(key, info)

    def pages(self, what: str, query: Mapping[str, str]) -> Iterator[ObjectPage]:
        """Yield the pages of a listing of the bucket, with whole names."""
        token: str | None = None
        while True:
            page = self.request(f"Cannot list {what}", partial(_page, query, token))
            yield page
            token = page.token
            if not token:
                return

    def stat(self, key: str) -> Stat:
        return _stat(key, self._info(key))

    def delete(self, key: str, *, generation: str | None = None) -> None:
        name, expected = self._name(key), self._generation(key, generation)
        tries = self._tries()
        try:
            self._call(
                tries, f"Cannot delete {self._url_of(key)}", lambda bucket: bucket.delete(name, expected=expected)
            )
        except MissingError:
            # If a response was lost, our own request removed it.
            if not tries.unsure:
                raise
        except ConflictError as error:
            try:
                self._info(key)
            except MissingError:
                if tries.unsure:
                    return
                raise
            raise ConflictError(f"{self._url_of(key)} was changed by another writer; it is not removed.") from error

    def _write(self, key: str, data: Sequence[Buffer], crc: int | None, expected: str) -> Stat:
        size = sum(len(flat(part)) for part in data)
        if size > OBJECT_BYTES:
            raise InputError(f"An object of {self.url} has at most {OBJECT_BYTES} bytes. Received: {size} for {key!r}.")
        crc = crc32c(data) if crc is None else crc
        try:
            info = self._insert(key, data, crc, expected)
        except MissingError:
            if expected != "0":
                raise
            # Rejected although nothing exists: removed meanwhile, or a checksum error with the wrong status.
            info = self._insert(key, data, crc, expected)
        if (info.size, info.crc32c) != (size, crc):
            raise CorruptObjectError(
                f"{self.url} stored different bytes of {key!r} than it was given: {info.size} bytes, not {size}, or a crc32c "
                f"other than {crc:08x}."
            )
        return _stat(key, info)

    def _insert(self, key: str, data: Sequence[Buffer], crc: int, expected: str) -> ObjectInfo:
        name, nonce = self._name(key), secrets.token_hex(8)
        try:
            return self._call(
                self._tries(),
                f"Cannot write {self._url_of(key)}",
                lambda bucket: bucket.insert(name, data, crc=crc, nonce=nonce, expected=expected),
            )
        except ConflictError:
            info = self._info(key)
            if info.nonce != nonce:
                raise
            return info

    def _info(self, key: str) -> ObjectInfo:
        name = self._name(key)
        return self._call(
            self._tries(), f"Cannot read the metadata of {self._url_of(key)}", lambda bucket: bucket.stat(name)
        )

    def _call(
        self, tries: Retries, what: str, call: Callable[[BucketRequests], _T], *, least_per_s: float = math.inf
    ) -> _T:
        """Send a request until it succeeds or a retry cannot help."""
        from . import errors

        damages, reported = 0, False
        while True:
            try:
                answer = call(self._requests(tries, least_per_s))
                self._answered = True
                return answer
            except Exception as error:
                failure = errors.failure_of(error, self._bucket, writes=self._access == "write")
                if failure is None:
                    raise
                self._answered = self._answered or failure.answered
                tries.unsure = tries.unsure or failure.unsure
                damages += failure.kind is CorruptObjectError
                again = failure.retry and damages < errors.DAMAGED_TRIES
                if again and not reported and tries.spent_s >= _REPORT_S and tries.left_s >= _REPORT_LEFT_S:
                    reported = True
                    text = f"{what}: {failure.text}. Trying again for up to {duration(tries.left_s)}."
                    OUTAGES.warning(emulator.mask_token(text))
                if again and tries.again(failure.wait_s):
                    continue
                after = f" Tried {tries.count} times in {tries.spent_s:.0f} s." if tries.count > 1 else ""
                lasting = failure.kind is not StoreError or not failure.retry
                kind = failure.kind if lasting else StoreUnavailableError
                raise kind(emulator.mask_token(f"{what}: {failure.text}.{after}")) from error

    def _requests(self, tries: Retries, least_per_s: float) -> BucketRequests:
        """Return requests whose transfers end with the time of the call.

        A file, which may be of any size, has that time and more for each byte at this speed, even beyond a deadline: a caller
        that set a deadline cannot send the file again.
        """
        from .auth import connection
        from .errors import OutOfTimeError
        from .requests import BucketRequests

        left_s = max(0.1, tries.left_s)
        timeout = (min(self._retry.connect_s, left_s), min(self._retry.read_s, left_s))

        began, is_file = self._clock.monotonic(), least_per_s < math.inf

        def check(moved: int) -> None:
            file_left_s = began + self._retry.total_s + moved / least_per_s - self._clock.monotonic()
            if (file_left_s if is_file else tries.left_s) <= 0:
                raise OutOfTimeError

        wire = connection(self._access == "anonymous")
        return BucketRequests(connection=wire, bucket=self._bucket, timeout=timeout, check=check)

    def _tries(self) -> Retries:
        started = self._clock.monotonic()

        def limit() -> float:
            until = started + (self._retry.total_s if self._answered else self._retry.first_s)
            return until if self._until is None else min(until, self._until)

        return Retries(self._clock, self._retry.wait_s, limit=limit)

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _url_of(self, key: str) -> str:
        return f"gs://{self._bucket}/{self._prefix}{key}"

    def _generation(self, key: str, generation: str | None) -> str | None:
        if generation is not None and not (generation.isascii() and generation.isdigit()):
            # From another store or a damaged record: no object here can have it.
            self.stat(key)
            raise ConflictError(f"{self._url_of(key)} is not the expected one: no generation is {generation!r}.")
        return generation


def _page(query: Mapping[str, str], token: str | None, bucket: BucketRequests) -> ObjectPage:
    return bucket.page(query, token)


def _stat(key: str, info: ObjectInfo) -> Stat:
    has_crc = info.crc32c is not None
    return Stat(key=key, size=info.size, crc32c=info.crc32c or 0, generation=info.generation if has_crc else DAMAGED)


def _is_key(name: str) -> bool:
    # Placeholders that the console and FUSE create for folders, and other foreign objects.
    try:
        return bool(check_key(name))
    except InputError:
        return False
