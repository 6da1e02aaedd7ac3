"""The bytes of objects, whole or in ranges, read from disk as fast as the client reads them."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import format_datetime
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from . import blobs, conditions
from .call import Call
from .errors import StorageApiError
from .records import Object

_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


class MediaResponse(Response):
    """A part of a file as an answer. It holds the file open, so that the object may be deleted meanwhile."""

    def __init__(self, call: Call, file: BinaryIO, start: int, stop: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(None, status, {**headers, "content-length": str(stop - start)})
        self._is_closed, self._file, self._start, self._stop = call.is_closed, file, start, stop

    def close(self) -> None:
        self._file.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                for piece in blobs.read_pieces(self._file.fileno(), self._start, self._stop):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    # The server accepts data for a closed connection without an error.
                    if self._is_closed():
                        raise ClientDisconnect
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.close()


async def download(call: Call) -> Response:
    await call.apply_faults(call.route.object)
    return media(call, conditions.parse(call.query, call.headers))


def media(call: Call, preconditions: conditions.Conditions) -> MediaResponse:
    generation = conditions.number(call.query)
    record = call.state.get(call.route.bucket, call.route.object, generation, preconditions)
    part = parse_range(call.headers.get("range"), record.size)
    start, stop = part or (0, record.size)
    headers = object_headers(record)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{record.size}"
    file = call.state.blobs.path(record.blob).open("rb", buffering=0)
    return MediaResponse(call, file, start, stop, 200 if part is None else 206, headers)


def object_headers(record: Object) -> dict[str, str]:
    hashes = [f"crc32c={record.crc32c}"] + ([f"md5={record.md5}"] if record.md5 else [])
    updated = datetime.fromisoformat(record.updated.replace("Z", "+00:00"))
    headers = {
        "Content-Type": str(record.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": f'"{record.etag}"',
        "Last-Modified": format_datetime(updated, usegmt=True),
        "X-Goog-Generation": str(record.generation),
        "X-Goog-Metageneration": str(record.metageneration),
        "X-Goog-Hash": ",".join(hashes),
        "X-Goog-Storage-Class": str(record.fields.get("storageClass", "STANDARD")),
        "X-Goog-Stored-Content-Encoding": str(record.fields.get("contentEncoding", "identity")),
        "X-Goog-Stored-Content-Length": str(record.size),
    }
    for field in ("contentEncoding", "contentDisposition", "contentLanguage", "cacheControl"):
        if record.fields.get(field):
            headers[re.sub("([A-Z])", r"-\1", field).title()] = str(record.fields[field])
    for name, text in (record.fields.get("metadata") or {}).items():
        headers[f"X-Goog-Meta-{quote(name)}"] = quote(text, safe=" !#$&'()*+,/:;=?@[]~")
    return headers


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (start, stop) of the bytes that a Range names; None for all of them, even if the Range is malformed."""
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= stop:
        message = "The requested range cannot be satisfied."
        raise StorageApiError(416, message, {"Content-Range": f"bytes */{size}"})
    return start, stop
