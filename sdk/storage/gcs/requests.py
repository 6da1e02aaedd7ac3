"""Requests of the JSON API of Cloud Storage. Each function sends one, once, and raises the exceptions of the HTTP library.

Uploads are sent piece by piece. The client library joins all bytes in memory first, which takes four times the CPU.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import requests
from urllib3.exceptions import ProtocolError

from ..checksums import crc32c
from ..raw_memory import flat
from ..store import Buffer
from .auth import GcsConnection

NONCE = "podlift-nonce"
_READ_BYTES = 256 << 10
_PAGE = 1000
# A page of a listing with names of the maximum length has 2 MiB.
_JSON_BYTES = 16 << 20
_FIELDS = "name,size,crc32c,generation,metageneration,timeCreated,updated"
_UNEXPECTED = "the response is not one of Cloud Storage"
# The timeout applies to each piece. Smaller buffers are joined: each piece costs a system call.
_SENT_BYTES = 512 << 10
_SMALL_BYTES = 64 << 10


class GcsStatusError(Exception):
    """An HTTP status other than 2xx, with the message, error items and headers of the response."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        errors: Sequence[Mapping[str, object]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.message = message
        self.errors = tuple(errors)
        self.headers = dict(headers or {})


class DamagedError(Exception):
    """The bytes differ from the announcement of the service, or from the request."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """One version of an object, as the service reports it."""

    name: str
    size: int
    crc32c: int | None
    generation: str  # of its content
    metageneration: str  # of its metadata
    created: float  # unix time, by the service's clock
    changed: float  # unix time of the last change of content or metadata
    nonce: str  # of the request that wrote it


@dataclass(frozen=True, kw_only=True)
class ObjectPage:
    """One page of a listing, with the service's unix time and the token of the next page."""

    objects: Sequence[ObjectInfo]
    folders: Sequence[str]
    token: str | None
    time: float


@dataclass(frozen=True)
class Reply:
    """The body of a response, which is JSON, and its headers."""

    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ProtocolError(_UNEXPECTED) from error


@dataclass(frozen=True, kw_only=True)
class BucketRequests:
    """Requests about one bucket.

    `timeout` has the seconds to connect and to read; `check` is called with the bytes that have moved and raises to abort.
    """

    connection: GcsConnection
    bucket: str
    timeout: tuple[float, float]
    check: Callable[[int], None]

    def insert(self, name: str, data: Sequence[Buffer], *, crc: int, nonce: str, expected: str) -> ObjectInfo:
        """Upload an object in place of generation `expected` ("0" for none)."""
        encoded = base64.b64encode(crc.to_bytes(4, "big")).decode()
        about = {"name": name, "crc32c": encoded, "metadata": {NONCE: nonce}}
        body: Any = UploadBody(about, data, self.check)
        response = self.send(
            "POST",
            "/o",
            {"uploadType": "multipart", "ifGenerationMatch": expected},
            service="/upload",
            data=body,
            headers={"Content-Type": body.type},
        )
        return _object_info(response.json())

    def download(
        self, name: str, *, expected: str | None, into: memoryview | None, most: int | None = None
    ) -> memoryview:
        """Download an object of at most `most` bytes and verify its crc32c."""
        query = {"alt": "media"} if expected is None else {"alt": "media", "ifGenerationMatch": expected}
        # Return the stored bytes even if they are stored compressed.
        headers = {"Accept-Encoding": "gzip"}
        with self._opened("GET", object_path(name), query, service="/download", headers=headers) as response:
            return self._receive(response, into, most)

    def stat(self, name: str) -> ObjectInfo:
        return _object_info(self.send("GET", object_path(name), {"fields": f"{_FIELDS},metadata"}).json())

    def page(self, query: Mapping[str, str], token: str | None) -> ObjectPage:
        """Return one page of a listing; `query` has its prefix, delimiter or pattern."""
        more = {} if token is None else {"pageToken": token}
        fields = f"nextPageToken,prefixes,items({_FIELDS})"
        response = self.send("GET", "/o", {"maxResults": str(_PAGE), "fields": fields, **query, **more})
        page = response.json()
        try:
            return ObjectPage(
                objects=[_object_info(item) for item in page.get("items", ())],
                folders=page.get("prefixes", ()),
                token=page.get("nextPageToken"),
                time=service_time(response),
            )
        except (AttributeError, TypeError) as error:
            raise ProtocolError(_UNEXPECTED) from error

    def delete(self, name: str, *, expected: str | None) -> None:
        self.send("DELETE", object_path(name), {} if expected is None else {"ifGenerationMatch": expected})

    def send(self, method: str, path: str, query: Mapping[str, str], *, service: str = "", **more: Any) -> Reply:
        """Send one request about the bucket, and return the reply if its status is 2xx."""
        with self._opened(method, path, query, service=service, **more) as response:
            return Reply(self._body(response), response.headers)

    @contextmanager
    def _opened(
        self, method: str, path: str, query: Mapping[str, str], *, service: str = "", **more: Any
    ) -> Iterator[requests.Response]:
        with self.connection.session.request(
            method,
            f"{self.connection.address}{service}/storage/v1/b/{quote(self.bucket, safe='')}{path}",
            params=dict(query),
            timeout=self.timeout,
            allow_redirects=False,
            stream=True,
            **more,
        ) as response:
            if not 200 <= response.status_code < 300:
                raise status_error(response, self._body(response))
            yield response

    def _body(self, response: requests.Response) -> bytes:
        # The timeout applies to each read, and a server that drips never exceeds it. Sending the request took its own time.
        body, until = bytearray(), time.monotonic() + self.timeout[1]
        for piece in _pieces(response, decode=True):
            body += piece
            if len(body) > _JSON_BYTES:
                raise ProtocolError(_UNEXPECTED)
            if time.monotonic() >= until:
                raise requests.ReadTimeout("the answer is too slow")
        return bytes(body)

    def _receive(self, response: requests.Response, into: memoryview | None, most: int | None) -> memoryview:
        try:
            size, stored_crc = int(response.headers["Content-Length"]), _header_crc(response.headers["X-Goog-Hash"])
        except (LookupError, ValueError) as error:
            raise ProtocolError("the response lacks its length or checksum") from error
        if into is not None and len(into) != size:
            raise DamagedError(f"it has {size} bytes, not {len(into)}")
        if most is not None and size > most:
            raise DamagedError(f"it has {size} bytes, and at most {most} can have been written")
        target = memoryview(bytearray(size)) if into is None else into
        crc = done = 0
        for piece in _pieces(response, decode=False):
            if done + len(piece) > size:
                raise ProtocolError("more bytes arrived than were announced")
            target[done : done + len(piece)] = piece
            crc = crc32c([piece], crc)
            done += len(piece)
            if done < size:
                self.check(done)
        if done != size:
            raise ProtocolError(f"{done} of {size} bytes arrived")
        if crc != stored_crc:
            written = "an unknown one" if stored_crc is None else f"{stored_crc:08x}"
            raise DamagedError(f"its crc32c is {crc:08x}; {written} was written")
        return target.toreadonly() if into is None else into


def _pieces(response: Any, *, decode: bool) -> Iterator[bytes]:
    """Yield bytes as they arrive: a reader of whole pieces would wait for a server that drips, and could not check the time."""
    # urllib3 has `read1` since 2.1.
    read = getattr(response.raw, "read1", response.raw.read)
    while piece := read(_READ_BYTES, decode_content=decode):
        yield piece


def object_path(name: str) -> str:
    return f"/o/{quote(name, safe='')}"


def _object_info(resource: Any) -> ObjectInfo:
    try:
        return ObjectInfo(
            name=resource["name"],
            size=int(resource.get("size", 0)),
            crc32c=_decode_crc(resource.get("crc32c")),
            generation=str(resource["generation"]),
            metageneration=str(resource.get("metageneration", "")),
            created=unix_time(resource.get("timeCreated")),
            changed=unix_time(resource.get("updated")),
            nonce=str(resource.get("metadata", {}).get(NONCE, "")),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ProtocolError(_UNEXPECTED) from error


def unix_time(text: str | None) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


def service_time(reply: Reply) -> float:
    return parsedate_to_datetime(reply.headers["Date"]).timestamp()


def _header_crc(header: str) -> int | None:
    pairs = (part.strip().partition("=") for part in header.split(","))
    return _decode_crc(next((text for name, _, text in pairs if name == "crc32c"), None))


def _decode_crc(text: str | None) -> int | None:
    return None if text is None else int.from_bytes(base64.b64decode(text), "big")


def status_error(response: requests.Response, body: bytes) -> GcsStatusError:
    """Return the error for a response, whatever its body is."""
    try:
        answer = json.loads(body)["error"]
        items = [item for item in answer.get("errors", ()) if isinstance(item, dict)]
        message = str(answer["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        items, message = [], body.decode("utf-8", "replace").strip() or str(response.reason or "no reason given")
    return GcsStatusError(response.status_code, message, errors=items, headers=response.headers)


class UploadBody:
    """A multipart/related body with metadata and data; it can be read again from its start."""

    def __init__(self, about: Mapping[str, object], data: Sequence[Buffer], check: Callable[[int], None]) -> None:
        mark = secrets.token_hex(16)
        self.type = f"multipart/related; boundary={mark}"
        head = f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n--{mark}\r\n"
        self._head = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        self._tail = f"\r\n--{mark}--\r\n".encode()
        self._views = [flat(part) for part in data]
        self._check = check

    def __len__(self) -> int:
        return len(self._head) + sum(map(len, self._views)) + len(self._tail)

    def __iter__(self) -> Iterator[Buffer]:
        moved = 0
        for piece in self._pieces():
            self._check(moved)
            moved += len(piece)
            yield piece

    def _pieces(self) -> Iterator[Buffer]:
        joined = bytearray(self._head)
        for view in [*self._views, memoryview(self._tail)]:
            for start in range(0, len(view), _SENT_BYTES):
                piece = view[start : start + _SENT_BYTES]
                if len(piece) < _SMALL_BYTES:
                    joined += piece
                if joined and (len(piece) >= _SMALL_BYTES or len(joined) >= _SENT_BYTES):
                    yield joined
                    joined = bytearray()
                if len(piece) >= _SMALL_BYTES:
                    yield piece
        if joined:
            yield joined
