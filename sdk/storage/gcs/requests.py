"""The requests themselves: each function sends one, once, and raises whatever the libraries raise."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests
from urllib3.exceptions import ProtocolError

from ..checksums import crc32c
from ..store import Buffer
from .body import UploadBody
from .client import GcsConnection
from .refusals import status_error

NONCE = "podlift-nonce"
_PIECE = 256 << 10
_PAGE = 1000
_FIELDS = "name,size,crc32c,generation"
_STRANGE = "the answer is none of the service's"


class DamagedError(Exception):
    """Other bytes came than the service says that it has, or than were asked for."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """What the service says of an object.

    Attributes:
        name: the object's whole name.
        size: bytes.
        crc32c: None if the service does not say.
        generation: the service's number.
        nonce: of the request that wrote it; "" for one of somebody else's.
    """

    name: str
    size: int
    crc32c: int | None
    generation: str
    nonce: str = ""


@dataclass(frozen=True, kw_only=True)
class BucketRequests:
    """One bucket, spoken to.

    Args:
        connection: the process's.
        bucket: its name.
        timeout: seconds to connect and to read.
    """

    connection: GcsConnection
    bucket: str
    timeout: tuple[float, float]

    def insert(
        self, name: str, data: Sequence[Buffer], *, crc: int, nonce: str, expected: str, check: Callable[[], None]
    ) -> ObjectInfo:
        """Upload an object in one request.

        Args:
            name: of the object.
            data: its bytes.
            crc: crc32c of them, that the service compares.
            nonce: kept with the object.
            expected: the generation that must be there, "0" for none.
            check: raises when it is time to give up.
        """
        about = {"name": name, "crc32c": _written(crc), "metadata": {NONCE: nonce}}
        body: Any = UploadBody(about, data, check)
        response = self._send(
            "POST",
            "/upload",
            "",
            {"uploadType": "multipart", "ifGenerationMatch": expected},
            data=body,
            headers={"Content-Type": body.type},
        )
        return _found(_json(response))

    def download(
        self, name: str, *, expected: str | None, into: memoryview | None, check: Callable[[], None]
    ) -> memoryview:
        """Download an object in one request and return its bytes, compared with the service's own crc32c.

        Args:
            name: of the object.
            expected: the generation that must be there; None for any.
            into: where to put them.
            check: raises when it is time to give up.
        """
        query = {"alt": "media"} if expected is None else {"alt": "media", "ifGenerationMatch": expected}
        # What is stored is wanted as it is stored, compressed by somebody or not.
        response = self._send("GET", "/download", name, query, headers={"Accept-Encoding": "gzip"}, stream=True)
        with response:
            return _received(response, into, check)

    def stat(self, name: str) -> ObjectInfo:
        """Return what is known of an object."""
        return _found(_json(self._send("GET", "", name, {"fields": f"{_FIELDS},metadata"})))

    def page(self, prefix: str, token: str | None) -> tuple[list[ObjectInfo], str | None]:
        """Return one page of a listing, and the token of the next one."""
        query = {"prefix": prefix, "maxResults": str(_PAGE), "fields": f"nextPageToken,items({_FIELDS})"}
        page = _json(self._send("GET", "", "", query if token is None else {**query, "pageToken": token}))
        try:
            return [_found(item) for item in page.get("items", ())], page.get("nextPageToken")
        except (AttributeError, TypeError) as error:
            raise ProtocolError(_STRANGE) from error

    def delete(self, name: str, *, expected: str | None) -> None:
        """Remove an object of that generation, or of any."""
        self._send("DELETE", "", name, {} if expected is None else {"ifGenerationMatch": expected})

    def _send(self, method: str, service: str, name: str, query: dict[str, str], **more: Any) -> requests.Response:
        """Return the answer if it is no refusal."""
        path = f"{service}/storage/v1/b/{quote(self.bucket, safe='')}/o"
        response = self.connection.session.request(
            method,
            f"{self.connection.address}{path}{'/' if name else ''}{quote(name, safe='')}",
            params=query,
            timeout=self.timeout,
            allow_redirects=False,
            **more,
        )
        if 200 <= response.status_code < 300:
            return response
        with response:
            raise status_error(response)


def _json(response: requests.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise ProtocolError(_STRANGE) from error


def _received(response: Any, into: memoryview | None, check: Callable[[], None]) -> memoryview:
    """Return the body of a download."""
    try:
        size, wanted = int(response.headers["Content-Length"]), _crc_of(response.headers["X-Goog-Hash"])
    except (LookupError, ValueError) as error:
        raise ProtocolError("the answer does not say how many bytes it has, and which") from error
    if into is not None and len(into) != size:
        raise DamagedError(f"it has {size} bytes, not {len(into)}")
    target = memoryview(bytearray(size)) if into is None else into
    crc = done = 0
    for piece in response.raw.stream(_PIECE, decode_content=False):
        check()
        if done + len(piece) > size:
            raise ProtocolError("more bytes came than were announced")
        target[done : done + len(piece)] = piece
        crc = crc32c([piece], crc)
        done += len(piece)
    if done != size:
        raise ProtocolError(f"{done} of {size} bytes came")
    if crc != wanted:
        raise DamagedError(f"its crc32c is {crc:08x}, and {_shown(wanted)} was written")
    return target.toreadonly() if into is None else into


def _found(resource: Any) -> ObjectInfo:
    try:
        return ObjectInfo(
            name=resource["name"],
            size=int(resource.get("size", 0)),
            crc32c=_read(resource.get("crc32c")),
            generation=str(resource["generation"]),
            nonce=str(resource.get("metadata", {}).get(NONCE, "")),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ProtocolError(_STRANGE) from error


def _crc_of(header: str) -> int | None:
    pairs = (part.strip().partition("=") for part in header.split(","))
    return _read(next((text for name, _, text in pairs if name == "crc32c"), None))


def _written(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _read(text: str | None) -> int | None:
    return None if text is None else int.from_bytes(base64.b64decode(text), "big")


def _shown(crc: int | None) -> str:
    return "nothing known" if crc is None else f"{crc:08x}"
