"""Files of any name and size in a bucket, and what a bucket says of itself. Checkpoints are `gcs_store`'s."""

from __future__ import annotations

import mmap
import os
import secrets
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..clock import Clock
from ..errors import AccessError, ConflictError, InputError, MissingError, StoreError
from .checksums import crc32c
from .gcs_store import OBJECT_BYTES, GcsStore
from .patience import Patience
from .store import Buffer

if TYPE_CHECKING:
    from .gcs_wire import Found, Wire

_TRIES = 3
# Of a person who waits for an answer.
FIRST_LOOK = Patience(connect_s=5.0, read_s=10.0, total_s=20.0, first_s=15.0)


class Files:
    """The files below a place in a bucket: the last writer of a name wins.

    Args:
        url: gs://BUCKET/PREFIX.
        patience: how long each call is tried.
        clock: what time it is.

    Raises:
        InputError: that is no place in a bucket.
    """

    def __init__(self, url: str, *, patience: Patience | None = None, clock: Clock | None = None) -> None:
        place = url.partition("://")[2]
        self._store = GcsStore(place, patience=patience, clock=clock)
        self._url = self._store.url
        self._bucket, _, prefix = place.partition("/")
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""

    def list(self, prefix: str) -> Iterator[tuple[str, Found]]:
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

    def upload(self, name: str, path: str, known: Found | None, *, new: bool = False) -> Found:
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

    def _insert(self, name: str, data: Buffer, **about: Any) -> Found:
        return self._store.ask(
            f"Cannot write {self._url}/{name}",
            lambda wire: wire.insert(self._prefix + name, [data], check=lambda: None, **about),
        )

    def _stat(self, name: str) -> Found | None:
        try:
            return self._store.ask(f"Cannot look at {self._url}/{name}", lambda wire: wire.stat(self._prefix + name))
        except MissingError:
            return None

    def download(self, name: str, path: str) -> None:
        """Bring a file from the bucket; it is there whole or not at all.

        Raises:
            MissingError: there is none.
            OSError: the disk refused.
        """
        data = self._store.ask(
            f"Cannot read {self._url}/{name}",
            lambda wire: wire.download(self._prefix + name, expected=None, into=None, check=lambda: None),
        )
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

        def call(wire: Wire) -> float:
            response = _get(wire, f"/o/{quote(self._prefix + name, safe='')}", {"fields": "updated"})
            return (parsedate_to_datetime(response.headers["Date"]) - _time(response.json()["updated"])).total_seconds()

        return max(0.0, self._store.ask(f"Cannot look at {self._url}/{name}", call))

    def matching(self, pattern: str) -> dict[str, float]:
        """Return the names that match, `*` within a folder, with the unix time at which each was made."""
        found: dict[str, float] = {}
        query = {"matchGlob": self._prefix + pattern, "fields": "nextPageToken,items(name,timeCreated)"}
        what = f"Cannot list {self._url}"
        while True:
            page = self._store.ask(what, partial(_objects, query=query))
            for item in page.get("items", ()):
                found[item["name"][len(self._prefix) :]] = _time(item["timeCreated"]).timestamp()
            if not page.get("nextPageToken"):
                return found
            query = {**query, "pageToken": page["nextPageToken"]}

    def bucket(self) -> Mapping[str, Any]:
        """Return what the service says of the bucket; {} where it does not let us know.

        Raises:
            StoreError: the bucket is not there, or nothing can be listed in it.
        """
        query = {"prefix": self._prefix, "maxResults": "1", "fields": "nextPageToken"}
        self._store.ask(f"Cannot use {self._url}", lambda wire: _get(wire, "/o", query).json())
        try:
            return dict(self._store.ask(f"Cannot look at gs://{self._bucket}", lambda wire: _get(wire, "", {}).json()))
        except AccessError:
            # Who may read and write objects need not know anything of the bucket itself.
            return {}


def check_root(url: str, *, patience: Patience) -> None:
    """Raise where a root in a bucket cannot be used.

    Raises:
        InputError: there is no such bucket, we are not let in, or it is one of a kind that keeps no write-once objects.
    """
    try:
        about = Files(url, patience=patience).bucket()
    except StoreError as error:
        raise InputError(f"The root: {error}") from error
    if about.get("locationType") == "zone":
        raise InputError(
            f"The root lies in a zonal bucket, whose objects are seen before they are whole. Received: {url!r}. Next: name a "
            "bucket of a region (gcloud storage buckets create gs://NAME --location=REGION)."
        )


def _get(wire: Wire, path: str, query: Mapping[str, str]) -> Any:
    from google.api_core.exceptions import from_http_response

    response = wire.connection.session.get(
        f"{wire.connection.address}/storage/v1/b/{quote(wire.bucket, safe='')}{path}",
        params=dict(query),
        timeout=wire.timeout,
        allow_redirects=False,
    )
    if not 200 <= response.status_code < 300:
        raise from_http_response(response)  # type: ignore[no-untyped-call,unused-ignore]
    return response


def _objects(wire: Wire, *, query: Mapping[str, str]) -> Any:
    return _get(wire, "/o", query).json()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@contextmanager
def _content(path: str) -> Iterator[Buffer]:
    with open(path, "rb") as file:  # noqa: PTH123
        if os.fstat(file.fileno()).st_size <= OBJECT_BYTES:
            yield file.read()
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view
