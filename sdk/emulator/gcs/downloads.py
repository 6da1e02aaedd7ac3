"""The bytes of objects, whole or in ranges, read from disk as fast as the client takes them."""

from __future__ import annotations

import os
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from . import blobs, conditions, ranges
from .call import Call
from .records import Object


class MediaResponse(Response):
    """A part of a file as an answer. It holds the file open, so that the object may be deleted meanwhile."""

    def __init__(self, call: Call, handle: int, start: int, stop: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(None, status, {**headers, "content-length": str(stop - start)})
        self._is_gone = call.is_gone
        self._handle = handle
        self._start = start
        self._stop = stop

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                for piece in blobs.read_pieces(self._handle, self._start, self._stop):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    # The server takes what is sent to nobody, however much it is.
                    if self._is_gone():
                        raise ClientDisconnect
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.close()


async def download(call: Call) -> Response:
    """Answer objects.download."""
    await call.apply_faults(call.route.object)
    wanted = conditions.parse(call.query, call.headers)
    return media(call, wanted)


def media(call: Call, wanted: conditions.Conditions) -> MediaResponse:
    """Return the bytes that a request asks for."""
    generation = conditions.requested_generation(call.query)
    found = call.state.get(call.route.bucket, call.route.object, generation, wanted)
    part = ranges.parse_range(call.headers.get("range"), found.size)
    start, stop = part or (0, found.size)
    headers = object_headers(found)
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
    handle = os.open(call.state.blobs.path(found.blob), os.O_RDONLY | os.O_CLOEXEC)
    return MediaResponse(call, handle, start, stop, 200 if part is None else 206, headers)


def object_headers(found: Object) -> dict[str, str]:
    """Return what the service says about an object beside its bytes."""
    hashes = [f"crc32c={found.crc32c}"] + ([f"md5={found.md5}"] if found.md5 else [])
    updated = datetime.fromisoformat(found.updated.replace("Z", "+00:00"))
    headers = {
        "Content-Type": str(found.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": f'"{found.etag}"',
        "Last-Modified": format_datetime(updated, usegmt=True),
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Metageneration": str(found.metageneration),
        "X-Goog-Hash": ",".join(hashes),
        "X-Goog-Storage-Class": str(found.fields.get("storageClass", "STANDARD")),
        "X-Goog-Stored-Content-Encoding": str(found.fields.get("contentEncoding", "identity")),
        "X-Goog-Stored-Content-Length": str(found.size),
    }
    for name, field in (
        ("Content-Encoding", "contentEncoding"),
        ("Content-Disposition", "contentDisposition"),
        ("Content-Language", "contentLanguage"),
        ("Cache-Control", "cacheControl"),
    ):
        if found.fields.get(field):
            headers[name] = str(found.fields[field])
    for name, text in (found.fields.get("metadata") or {}).items():
        headers[f"X-Goog-Meta-{quote(name)}"] = quote(text, safe=" !#$&'()*+,/:;=?@[]~")
    return headers
