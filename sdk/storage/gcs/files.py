"""Files of any name and size in a bucket, and the settings of the bucket. Checkpoints use `store`."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...clock import Clock
from ...errors import AccessError, ConflictError, InputError, MissingError, StoreError
from .. import trees
from ..checksums import crc32c
from ..retry import RetryPolicy
from ..store import Buffer, create
from .store import OBJECT_BYTES, Access, GcsStore

if TYPE_CHECKING:
    from .requests import BucketRequests, ObjectInfo, ObjectPage

_TRIES = 3
_TOUCHED = "podlift-touched"
# For commands with a waiting user.
INTERACTIVE = RetryPolicy(connect_s=5.0, read_s=10.0, total_s=20.0, first_s=15.0)


class BucketFiles:
    """The files below gs://BUCKET/PREFIX: the last writer of a name wins."""

    def __init__(
        self, url: str, *, retry: RetryPolicy | None = None, clock: Clock | None = None, access: Access = "write"
    ) -> None:
        location = url.partition("://")[2]
        self._store = GcsStore(location, retry=retry, clock=clock, access=access)
        self._url = self._store.url
        self._bucket, _, prefix = location.partition("/")
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""

    def set_deadline(self, within_s: float) -> None:
        self._store.set_deadline(within_s)

    def list(self, prefix: str, *, suffix: str = "") -> Iterator[ObjectInfo]:
        """Yield each file with a name that starts with the prefix and ends with the suffix."""
        pattern = {"matchGlob": f"**{suffix}"} if suffix else {}
        for page in self._pages({"prefix": self._prefix + prefix, **pattern}):
            yield from page.objects

    def upload(self, name: str, path: str, existing: ObjectInfo | None) -> ObjectInfo:
        """Upload a file unless the bucket already has it, and return its metadata there.

        `existing` is the metadata of the file there. The file must not change from now on.
        """
        nonce = secrets.token_hex(8)
        with _content(path) as data:
            size, crc = len(data), crc32c([data])
            for _ in range(_TRIES):
                if existing is not None and (existing.size, existing.crc32c) == (size, crc):
                    return existing
                expected = "0" if existing is None else existing.generation
                try:
                    return self._insert(name, data, crc=crc, nonce=nonce, expected=expected)
                except ConflictError:
                    existing = self._stat(name)
        raise ConflictError(f"Cannot write {self._url}/{name}: another process keeps changing it.")

    def create(self, name: str, data: bytes) -> bytes:
        """Create a small object unless it exists, and return its content."""
        create(self._store, name, data)
        return bytes(self.read(name))

    def _insert(self, name: str, data: Buffer, **about: Any) -> ObjectInfo:
        return self._store.request(
            f"Cannot write {self._url}/{name}",
            lambda bucket: bucket.insert(self._prefix + name, [data], **about),
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
            lambda bucket: bucket.download(self._prefix + name, expected=None, into=None),
        )

    def download(self, name: str, path: str) -> None:
        """Download a file atomically, or raise MissingError or OSError."""
        data = self.read(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        trees.put_atomically(path, lambda part: Path(part).write_bytes(data))

    def age_s(self, name: str) -> float:
        """Return the seconds since an object was last written, by the service's clock; MissingError if it does not exist."""
        return self.written(name)[1]

    def written(self, name: str) -> tuple[float, float]:
        """Return the unix time at which an object was last written, and its age in seconds, both by the service's clock."""
        from .requests import service_time, unix_time

        def call(bucket: BucketRequests) -> tuple[float, float]:
            response = bucket.send("GET", self._path(name), {"fields": "updated"})
            time = unix_time(response.json()["updated"])
            return time, max(0.0, service_time(response) - time)

        return self._store.request(f"Cannot read the metadata of {self._url}/{name}", call)

    def matching(self, pattern: str) -> dict[str, float]:
        """Return the unix time of creation of each name that matches; `*` matches within a folder."""
        pages = self._pages({"matchGlob": self._prefix + pattern})
        return {info.name: info.created for page in pages for info in page.objects}

    def exists(self, name: str) -> bool:
        return self._stat(name) is not None

    def any_object(self, *, prefix: str = "", pattern: str = "") -> bool:
        """True if an object has this prefix or matches this pattern."""
        query = {"matchGlob": self._prefix + pattern} if pattern else {"prefix": self._prefix + prefix}
        return any(page.objects for page in self._pages({**query, "maxResults": "1"}))

    def folder(self, name: str, *, at_most: int | None = None) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders and of the files directly in a folder; with `at_most`, only the first ones."""
        start = f"{name}/" if name else ""
        query = {"prefix": self._prefix + start, "delimiter": "/"}
        if at_most is not None:
            query["maxResults"] = str(at_most)
        pages = list(islice(self._pages(query), None if at_most is None else 1))
        folders = [folder[len(self._prefix + start) : -1] for page in pages for folder in page.folders]
        files = [info.name[len(start) :] for page in pages for info in page.objects]
        # The console creates an empty object for each folder.
        return folders, [file for file in files if file]

    def versions(self, prefix: str) -> tuple[Sequence[ObjectInfo], float]:
        """Return every object with this prefix, and the service's unix time when the listing began."""
        pages = list(self._pages({"prefix": self._prefix + prefix}))
        return [info for page in pages for info in page.objects], pages[0].time

    def _pages(self, query: Mapping[str, str]) -> Iterator[ObjectPage]:
        """Yield the pages of a listing, with names below the prefix of these files."""
        for page in self._store.pages(self._url, query):
            yield replace(page, objects=[replace(info, name=info.name[len(self._prefix) :]) for info in page.objects])

    def delete(self, version: ObjectInfo) -> bool:
        """Remove an object unless it has changed (ConflictError); False if it was already gone."""
        conditions = {"ifGenerationMatch": version.generation, "ifMetagenerationMatch": version.metageneration}
        what = f"Cannot delete {self._url}/{version.name}"
        try:
            self._store.request(what, lambda bucket: bucket.send("DELETE", self._path(version.name), conditions))
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
        from .requests import object_path

        return object_path(self._prefix + name)

    def bucket_info(self) -> Mapping[str, object]:
        """Return the settings of the bucket, {} without permission to read them; StoreError if listing fails."""
        query = {"prefix": self._prefix, "maxResults": "1"}
        self._store.request(f"Cannot use {self._url}", lambda bucket: bucket.page(query, None))
        try:
            return dict(
                self._store.request(
                    f"Cannot read the settings of gs://{self._bucket}", lambda bucket: bucket.send("GET", "", {}).json()
                )
            )
        except AccessError:
            # Access to objects does not imply access to the settings of the bucket.
            return {}


def check_root(url: str, *, retry: RetryPolicy) -> Mapping[str, object]:
    """Return the settings of the bucket of a root; InputError if it is missing, forbidden or cannot hold write-once objects."""
    try:
        about = BucketFiles(url, retry=retry).bucket_info()
    except StoreError as error:
        raise InputError(f"The root: {error}") from error
    if about.get("locationType") == "zone":
        raise InputError(
            f"The root is in a zonal bucket: its objects are visible before they are complete. Received: {url!r}. Next: use "
            "a regional bucket (gcloud storage buckets create gs://NAME --location=REGION)."
        )
    return about


@contextmanager
def _content(path: str) -> Iterator[Buffer]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size <= OBJECT_BYTES:
            yield file.read()
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view
