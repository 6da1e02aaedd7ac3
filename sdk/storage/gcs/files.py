"""Files of any name and size in a bucket, and what a bucket says of itself. Checkpoints are `gcs_store`'s."""

from __future__ import annotations

import base64
import mmap
import os
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...clock import Clock
from ...errors import AccessError, ConflictError, InputError, MissingError, StoreError
from ..checksums import crc32c
from ..retry import RetryPolicy
from ..store import Buffer
from .store import OBJECT_BYTES, GcsStore

if TYPE_CHECKING:
    from .requests import BucketRequests, ObjectInfo

_TRIES = 3
_TOUCHED = "podlift-touched"
# Of a person who waits for an answer.
INTERACTIVE = RetryPolicy(connect_s=5.0, read_s=10.0, total_s=20.0, first_s=15.0)


@dataclass(frozen=True, kw_only=True)
class ObjectVersion:
    """One object as it is now: `Files.delete` removes this one and no other of its name.

    Attributes:
        name: below the place.
        size: bytes.
        crc32c: of its content; None where the service does not say.
        generation: the service's number for its content.
        metageneration: the service's number for what is said of it.
        changed: unix time at which either changed last, in seconds, by the service's clock.
    """

    name: str
    size: int
    crc32c: int | None
    generation: str
    metageneration: str
    changed: float


class BucketFiles:
    """The files below a place in a bucket: the last writer of a name wins.

    Args:
        url: gs://BUCKET/PREFIX.
        patience: how long each call is tried.
        clock: what time it is.

    Raises:
        InputError: that is no place in a bucket.
    """

    def __init__(self, url: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None) -> None:
        place = url.partition("://")[2]
        self._store = GcsStore(place, retry=retry, clock=clock)
        self._url = self._store.url
        self._bucket, _, prefix = place.partition("/")
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""

    def set_deadline(self, within_s: float) -> None:
        """From now on give up every call that has not succeeded within so many seconds from now."""
        self._store.set_deadline(within_s)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Yield the name, below this place, and what is known of each file whose name starts so."""
        token: str | None = None
        while True:
            found, token = self._page(prefix, token)
            yield from ((each.name[len(self._prefix) :], each) for each in found)
            if not token:
                return

    def _page(self, prefix: str, token: str | None) -> tuple[Any, str | None]:
        return self._store.ask(
            f"Cannot list {self._url}/{prefix}", lambda wire: wire.page(self._prefix + prefix, token)
        )

    def upload(self, name: str, path: str, known: ObjectInfo | None, *, new: bool = False) -> ObjectInfo:
        """Bring a file to the bucket, unless it is there already, and return what the bucket says of it.

        Args:
            name: its name below this place.
            path: the file; nobody writes to it any more.
            known: what is there under that name; None for nothing.
            new: leave what somebody else has brought.

        Raises:
            OSError: the file cannot be read.
            StoreError: it could not be brought.
        """
        nonce = secrets.token_hex(8)
        with _content(path) as data:
            size, crc = len(data), crc32c([data])
            for _ in range(_TRIES):
                if known is not None and (new or (known.size, known.crc32c) == (size, crc)):
                    return known
                expected = "0" if known is None else known.generation
                try:
                    return self._insert(name, data, crc=crc, nonce=nonce, expected=expected)
                except ConflictError:
                    known = self._stat(name)
        raise ConflictError(f"Cannot write {self._url}/{name}: somebody else writes it all the time.")

    def _insert(self, name: str, data: Buffer, **about: Any) -> ObjectInfo:
        return self._store.ask(
            f"Cannot write {self._url}/{name}",
            lambda wire: wire.insert(self._prefix + name, [data], check=lambda: None, **about),
        )

    def _stat(self, name: str) -> ObjectInfo | None:
        try:
            return self._store.ask(f"Cannot look at {self._url}/{name}", lambda wire: wire.stat(self._prefix + name))
        except MissingError:
            return None

    def read(self, name: str) -> Buffer:
        """Return the bytes of a file, or raise MissingError."""
        return self._store.ask(
            f"Cannot read {self._url}/{name}",
            lambda wire: wire.download(self._prefix + name, expected=None, into=None, check=lambda: None),
        )

    def download(self, name: str, path: str) -> None:
        """Bring a file from the bucket; it is there whole or not at all.

        Raises:
            MissingError: there is none.
            OSError: the disk refused.
        """
        data = self.read(name)
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".podlift-{uuid.uuid4().hex}.part")
        try:
            part.write_bytes(data)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def age_s(self, name: str) -> float:
        """Return how long ago an object was written last, in seconds; both times are the service's own.

        Raises:
            MissingError: there is none.
        """

        def call(wire: BucketRequests) -> float:
            response = _send(wire, "GET", self._path(name), {"fields": "updated"})
            return (parsedate_to_datetime(response.headers["Date"]) - _time(response.json()["updated"])).total_seconds()

        return max(0.0, self._store.ask(f"Cannot look at {self._url}/{name}", call))

    def matching(self, pattern: str) -> dict[str, float]:
        """Return the names that match, `*` within a folder, with the unix time at which each was made."""
        query = {"matchGlob": self._prefix + pattern, "fields": "nextPageToken,items(name,timeCreated)"}
        items = [item for page, _ in self._pages(query) for item in page.get("items", ())]
        return {item["name"][len(self._prefix) :]: _time(item["timeCreated"]).timestamp() for item in items}

    def folder(self, name: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders and of the files directly in a folder below this place."""
        start = f"{self._prefix}{name}/"
        query = {"prefix": start, "delimiter": "/", "fields": "nextPageToken,prefixes,items(name)"}
        pages = [page for page, _ in self._pages(query)]
        folders = [found[len(start) : -1] for page in pages for found in page.get("prefixes", ())]
        files = [item["name"][len(start) :] for page in pages for item in page.get("items", ())]
        # The console keeps an empty object for each folder.
        return folders, [file for file in files if file]

    def kept(self, prefix: str) -> tuple[Sequence[ObjectVersion], float]:
        """Return every object whose name starts so, and the service's own unix time when it began to look."""
        fields = "name,size,crc32c,generation,metageneration,updated"
        query = {"prefix": self._prefix + prefix, "fields": f"nextPageToken,items({fields})"}
        found, times = [], []
        for page, time in self._pages(query):
            found += [self._kept(item) for item in page.get("items", ())]
            times.append(time)
        return found, times[0]

    def _kept(self, item: Mapping[str, Any]) -> ObjectVersion:
        return ObjectVersion(
            name=item["name"][len(self._prefix) :],
            size=int(item.get("size", 0)),
            crc32c=int.from_bytes(base64.b64decode(item["crc32c"]), "big") if "crc32c" in item else None,
            generation=str(item["generation"]),
            metageneration=str(item["metageneration"]),
            changed=_time(item["updated"]).timestamp(),
        )

    def _pages(self, query: Mapping[str, str]) -> Iterator[tuple[Any, float]]:
        """Yield the pages of a listing, each with the service's time."""

        def call(wire: BucketRequests, asked: Mapping[str, str]) -> tuple[Any, float]:
            response = _send(wire, "GET", "/o", asked)
            return response.json(), parsedate_to_datetime(response.headers["Date"]).timestamp()

        while True:
            page, time = self._store.ask(f"Cannot list {self._url}", partial(call, asked=query))
            yield page, time
            if not page.get("nextPageToken"):
                return
            query = {**query, "pageToken": page["nextPageToken"]}

    def delete(self, kept: ObjectVersion) -> bool:
        """Remove an object unless it has changed; false if it was gone, be it by a request of ours whose answer was lost.

        Raises:
            ConflictError: it has changed.
        """
        wanted = {"ifGenerationMatch": kept.generation, "ifMetagenerationMatch": kept.metageneration}
        what = f"Cannot delete {self._url}/{kept.name}"
        try:
            self._store.ask(what, lambda wire: _send(wire, "DELETE", self._path(kept.name), wanted))
        except MissingError:
            return False
        except ConflictError:
            # Of one that is gone some say so, and some that its generation is not the expected one.
            if self._stat(kept.name) is not None:
                raise ConflictError(
                    f"{self._url}/{kept.name} was changed by somebody else; it is left alone."
                ) from None
            return False
        return True

    def touch(self, name: str) -> bool:
        """Let an object look as if it had changed now, so that whoever has looked before leaves it alone; false without one."""
        about = {"metadata": {_TOUCHED: secrets.token_hex(8)}}
        what = f"Cannot touch {self._url}/{name}"
        try:
            self._store.ask(what, lambda wire: _send(wire, "PATCH", self._path(name), {}, json=about))
        except MissingError:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"/o/{quote(self._prefix + name, safe='')}"

    def bucket(self) -> Mapping[str, Any]:
        """Return what the service says of the bucket; {} where it does not let us know.

        Raises:
            StoreError: the bucket is not there, or nothing can be listed in it.
        """
        query = {"prefix": self._prefix, "maxResults": "1", "fields": "nextPageToken"}
        self._store.ask(f"Cannot use {self._url}", lambda wire: _send(wire, "GET", "/o", query).json())
        try:
            return dict(
                self._store.ask(f"Cannot look at gs://{self._bucket}", lambda wire: _send(wire, "GET", "", {}).json())
            )
        except AccessError:
            # Who may read and write objects need not know anything of the bucket itself.
            return {}


def check_root(url: str, *, retry: RetryPolicy) -> Mapping[str, Any]:
    """Raise where a root in a bucket cannot be used; return what the service says of the bucket, as `Files.bucket`.

    Raises:
        InputError: there is no such bucket, we are not let in, or it is one of a kind that keeps no write-once objects.
    """
    try:
        about = BucketFiles(url, retry=retry).bucket()
    except StoreError as error:
        raise InputError(f"The root: {error}") from error
    if about.get("locationType") == "zone":
        raise InputError(
            f"The root lies in a zonal bucket, whose objects are seen before they are whole. Received: {url!r}. Next: name a "
            "bucket of a region (gcloud storage buckets create gs://NAME --location=REGION)."
        )
    return about


def _send(wire: BucketRequests, method: str, path: str, query: Mapping[str, str], **more: Any) -> Any:
    from .refusals import status_error

    response = wire.connection.session.request(
        method,
        f"{wire.connection.address}/storage/v1/b/{quote(wire.bucket, safe='')}{path}",
        params=dict(query),
        timeout=wire.timeout,
        allow_redirects=False,
        **more,
    )
    if not 200 <= response.status_code < 300:
        raise status_error(response)
    return response


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@contextmanager
def _content(path: str) -> Iterator[Buffer]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size <= OBJECT_BYTES:
            yield file.read()
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view
