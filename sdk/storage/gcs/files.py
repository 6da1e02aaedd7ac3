"""Files of any name and size in a bucket, and the settings of the bucket. Checkpoints use `store`."""

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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...clock import Clock
from ...errors import AccessError, ConflictError, InputError, MissingError, StoreError
from ..checksums import crc32c
from ..retry import RetryPolicy
from ..store import Buffer
from .store import OBJECT_BYTES, Access, GcsStore

if TYPE_CHECKING:
    from .requests import BucketRequests, ObjectInfo

_TRIES = 3
_TOUCHED = "podlift-touched"
# For commands whose user is waiting.
INTERACTIVE = RetryPolicy(connect_s=5.0, read_s=10.0, total_s=20.0, first_s=15.0)


@dataclass(frozen=True, kw_only=True)
class ObjectVersion:
    """One version of an object: `BucketFiles.delete` removes exactly this one."""

    name: str
    size: int
    crc32c: int | None
    generation: str  # of its content
    metageneration: str  # of its metadata
    changed: float  # unix time of the last change of either, by the service's clock


class BucketFiles:
    """The files below gs://BUCKET/PREFIX: the last writer of a name wins."""

    def __init__(
        self, url: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None, access: Access = "write"
    ) -> None:
        place = url.partition("://")[2]
        self._store = GcsStore(place, retry=retry, clock=clock, access=access)
        self._url = self._store.url
        self._bucket, _, prefix = place.partition("/")
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""

    def set_deadline(self, within_s: float) -> None:
        self._store.set_deadline(within_s)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Yield name and metadata of each file whose name starts with the prefix."""
        token: str | None = None
        while True:
            found, token = self._page(prefix, token)
            yield from ((each.name[len(self._prefix) :], each) for each in found)
            if not token:
                return

    def _page(self, prefix: str, token: str | None) -> tuple[Any, str | None]:
        return self._store.request(
            f"Cannot list {self._url}/{prefix}", lambda bucket: bucket.page(self._prefix + prefix, token)
        )

    def upload(self, name: str, path: str, known: ObjectInfo | None, *, new: bool = False) -> ObjectInfo:
        """Upload a file unless the bucket already has it, and return its metadata there.

        `known` is the metadata of the existing object, if any; `new` keeps an object that another writer created. The file
        must not change any more.
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
        raise ConflictError(f"Cannot write {self._url}/{name}: another process keeps changing it.")

    def _insert(self, name: str, data: Buffer, **about: Any) -> ObjectInfo:
        return self._store.request(
            f"Cannot write {self._url}/{name}",
            lambda bucket: bucket.insert(self._prefix + name, [data], check=lambda: None, **about),
        )

    def _stat(self, name: str) -> ObjectInfo | None:
        try:
            return self._store.request(
                f"Cannot read the metadata of {self._url}/{name}", lambda bucket: bucket.stat(self._prefix + name)
            )
        except MissingError:
            return None

    def read(self, name: str) -> Buffer:
        return self._store.request(
            f"Cannot read {self._url}/{name}",
            lambda bucket: bucket.download(self._prefix + name, expected=None, into=None, check=lambda: None),
        )

    def download(self, name: str, path: str) -> None:
        """Download a file atomically, or raise MissingError or OSError."""
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
        """Return the seconds since an object was last written, by the service's clock; MissingError if it does not exist."""

        def call(bucket: BucketRequests) -> float:
            response = bucket.send("GET", self._path(name), {"fields": "updated"})
            return (parsedate_to_datetime(response.headers["Date"]) - _time(response.json()["updated"])).total_seconds()

        return max(0.0, self._store.request(f"Cannot read the metadata of {self._url}/{name}", call))

    def matching(self, pattern: str) -> dict[str, float]:
        """Return the unix time of creation of each name that matches; `*` matches within a folder."""
        query = {"matchGlob": self._prefix + pattern, "fields": "nextPageToken,items(name,timeCreated)"}
        items = [item for page, _ in self._pages(query) for item in page.get("items", ())]
        return {item["name"][len(self._prefix) :]: _time(item["timeCreated"]).timestamp() for item in items}

    def exists(self, name: str) -> bool:
        return self._stat(name) is not None

    def any_object(self, *, prefix: str = "", pattern: str = "") -> bool:
        """True if an object has this prefix or matches this pattern."""
        wanted = {"matchGlob": self._prefix + pattern} if pattern else {"prefix": self._prefix + prefix}
        query = {**wanted, "maxResults": "1", "fields": "nextPageToken,items(name)"}
        return any(page.get("items") for page, _ in self._pages(query))

    def folder(self, name: str, *, at_most: int | None = None) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders and of the files directly in a folder; with `at_most`, only the first ones."""
        start = f"{self._prefix}{name}/" if name else self._prefix
        query = {"prefix": start, "delimiter": "/", "fields": "nextPageToken,prefixes,items(name)"}
        if at_most is not None:
            query["maxResults"] = str(at_most)
        pages = [page for page, _ in islice(self._pages(query), None if at_most is None else 1)]
        folders = [found[len(start) : -1] for page in pages for found in page.get("prefixes", ())]
        files = [item["name"][len(start) :] for page in pages for item in page.get("items", ())]
        # The console creates an empty object for each folder.
        return folders, [file for file in files if file]

    def versions(self, prefix: str) -> tuple[Sequence[ObjectVersion], float]:
        """Return every object whose name starts with the prefix, and the service's unix time when the listing began."""
        fields = "name,size,crc32c,generation,metageneration,updated"
        query = {"prefix": self._prefix + prefix, "fields": f"nextPageToken,items({fields})"}
        found, times = [], []
        for page, time in self._pages(query):
            found += [self._version(item) for item in page.get("items", ())]
            times.append(time)
        return found, times[0]

    def _version(self, item: Mapping[str, Any]) -> ObjectVersion:
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

        def call(bucket: BucketRequests, query: Mapping[str, str]) -> tuple[Any, float]:
            response = bucket.send("GET", "/o", query)
            return response.json(), parsedate_to_datetime(response.headers["Date"]).timestamp()

        while True:
            page, time = self._store.request(f"Cannot list {self._url}", partial(call, query=query))
            yield page, time
            if not page.get("nextPageToken"):
                return
            query = {**query, "pageToken": page["nextPageToken"]}

    def delete(self, version: ObjectVersion) -> bool:
        """Remove an object unless it has changed (ConflictError); False if it was already gone."""
        wanted = {"ifGenerationMatch": version.generation, "ifMetagenerationMatch": version.metageneration}
        what = f"Cannot delete {self._url}/{version.name}"
        try:
            self._store.request(what, lambda bucket: bucket.send("DELETE", self._path(version.name), wanted))
        except MissingError:
            return False
        except ConflictError:
            # For a missing object some servers return 404, others 412.
            if self._stat(version.name) is not None:
                raise ConflictError(
                    f"{self._url}/{version.name} was changed by another writer; it is not removed."
                ) from None
            return False
        return True

    def touch(self, name: str) -> bool:
        """Change the metadata of an object, so that a `delete` of its previous version fails; False if it does not exist."""
        about = {"metadata": {_TOUCHED: secrets.token_hex(8)}}
        what = f"Cannot touch {self._url}/{name}"
        try:
            self._store.request(what, lambda bucket: bucket.send("PATCH", self._path(name), {}, json=about))
        except MissingError:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"/o/{quote(self._prefix + name, safe='')}"

    def bucket_info(self) -> Mapping[str, Any]:
        """Return the settings of the bucket, {} without permission to read them; StoreError if listing fails."""
        query = {"prefix": self._prefix, "maxResults": "1", "fields": "nextPageToken"}
        self._store.request(f"Cannot use {self._url}", lambda bucket: bucket.send("GET", "/o", query).json())
        try:
            return dict(
                self._store.request(
                    f"Cannot read the settings of gs://{self._bucket}", lambda bucket: bucket.send("GET", "", {}).json()
                )
            )
        except AccessError:
            # Access to objects does not imply access to the settings of the bucket.
            return {}


def check_root(url: str, *, retry: RetryPolicy) -> Mapping[str, Any]:
    """Return the settings of the bucket of a root; InputError if it is missing, forbidden or cannot hold write-once objects."""
    try:
        about = BucketFiles(url, retry=retry).bucket_info()
    except StoreError as error:
        raise InputError(f"The root: {error}") from error
    if about.get("locationType") == "zone":
        raise InputError(
            f"The root is in a zonal bucket, whose objects are visible before they are complete. Received: {url!r}. Next: use "
            "a regional bucket (gcloud storage buckets create gs://NAME --location=REGION)."
        )
    return about


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
