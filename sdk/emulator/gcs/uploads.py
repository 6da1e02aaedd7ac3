"""Uploads in one request, `uploadType=media` and `multipart`, and the common part of all uploads."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response

from . import blobs, conditions
from .blobs import BlobWriter, Declared
from .bodies import check_object, object_fields
from .call import Call, json_object
from .errors import StorageApiError, invalid
from .records import Object

_MAX_HEAD_BYTES = 1 << 20
_BOUNDARY = re.compile(r"""boundary=(?:"([^"\r\n]+)"|'([^'\r\n]+)'|([^\s;"']+))""", re.IGNORECASE)
# A boundary, headers, the metadata, a boundary, headers: the groups are the kind of line end, the metadata, the second headers.
_HEAD = rb".*?MARK[ \t]*(\r?\n)(?:[^\r\n][^\n]*\n)*\1(.*?)\1MARK[ \t]*\r?\n((?:[^\r\n][^\n]*\n)*)\1"
_DEFAULT_TYPE = "application/octet-stream"


def boundary_of(content_type: str) -> bytes:
    match = _BOUNDARY.search(content_type)
    boundary = next((group for group in match.groups() if group), "") if match else ""
    if not boundary or len(boundary) > 200 or not boundary.isascii():
        raise _malformed(f"its Content-Type names no boundary: {content_type!r}")
    return boundary.encode()


class MultipartParser:
    """Accepts the body in pieces of any size and returns the bytes of the object.

    Usage: `data = parser.feed(piece)` for each piece, then `parser.finish()`. `metadata` and `content_type` are known as soon
    as `started` is true. It never holds more than the metadata and a boundary.
    """

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"--" + boundary
        self._head = re.compile(_HEAD.replace(b"MARK", re.escape(self._mark)), re.DOTALL)
        self._buffer = b""
        self._delimiter = b""
        self._ended = False
        self.started = False
        self.metadata: dict[str, Any] = {}
        self.content_type: str | None = None

    def feed(self, piece: bytes) -> bytes:
        """Accept the next piece of the body; return the bytes that certainly belong to the object."""
        if self._ended:
            return b""
        self._buffer += piece
        if not self.started and not self._read_head():
            return b""
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            self._ended = True
            data, self._buffer = self._buffer[:at], b""
            return data
        # The delimiter may have begun in the last bytes.
        keep = min(len(self._delimiter) - 1, len(self._buffer))
        data, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        return data

    def finish(self) -> None:
        if not self._ended:
            raise _malformed("it ends before its last boundary" if self.started else "it ends within its metadata")

    def _read_head(self) -> bool:
        """Read both headers and the metadata once all of it has arrived."""
        match = self._head.match(self._buffer)
        if match is None:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise _malformed(f"no metadata within its first {_MAX_HEAD_BYTES} bytes")
            return False
        newline, metadata, headers = match.groups()
        pairs = (line.partition(":") for line in headers.decode("latin-1").split("\n"))
        self.metadata = _json_object(metadata)
        self.content_type = {name.strip().lower(): value.strip() for name, _, value in pairs}.get("content-type")
        self._delimiter = newline + self._mark
        self._buffer = self._buffer[match.end() :]
        self.started = True
        return True


def _json_object(text: bytes) -> dict[str, Any]:
    if (value := json_object(text)) is None:
        raise _malformed("its metadata is not a JSON object")
    return value


def _malformed(why: str) -> StorageApiError:
    return invalid(f"Multipart body is malformed: {why}.")


async def insert(call: Call) -> Response:
    if call.query.get("uploadType") == "multipart":
        return await _insert_multipart(call)
    name = check_object(call.query.get("name"))
    await call.apply_faults(name)
    resource = {"contentType": call.headers.get("content-type"), "contentEncoding": call.query.get("contentEncoding")}
    with call.state.blobs.writer() as writer:
        await receive(call, call.pieces(), writer)
        record = commit_upload(call, writer, name, upload_fields(resource), blobs.declared_hashes(call.headers))
    return call.object_response(record)


async def _insert_multipart(call: Call) -> Response:
    parser = MultipartParser(boundary_of(call.headers.get("content-type", "")))
    body = call.pieces()
    first = b""
    async for piece in body:
        first = parser.feed(piece)
        if parser.started:
            break
    if not parser.started:
        parser.finish()
    name = check_object(call.query.get("name") or parser.metadata.get("name"))
    await call.apply_faults(name)
    resource = {"contentEncoding": call.query.get("contentEncoding"), **parser.metadata}
    fields = upload_fields(resource, parser.content_type)
    with call.state.blobs.writer() as writer:
        await receive(call, _parsed(call, parser, first, body), writer)
        record = commit_upload(call, writer, name, fields, blobs.declared_hashes(parser.metadata, call.headers))
    return call.object_response(record)


async def _parsed(
    call: Call, parser: MultipartParser, first: bytes, body: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    # The first piece came with the metadata, before the faults of this request were known.
    async for slice_ in call.throttled(first):
        yield slice_
    async for piece in body:
        yield parser.feed(piece)
    parser.finish()


async def receive(call: Call, data: AsyncIterator[bytes], writer: BlobWriter) -> None:
    async for piece in data:
        writer.write(corrupted(call, piece, writer.size))
    await call.wait_before_commit()


def corrupted(call: Call, piece: bytes, position: int) -> bytes:
    fault = call.fault("corrupt")
    if fault is None or fault.at == "disk":
        return piece
    return flip_byte(piece, (fault.at_byte or 0) - position)


def flip_byte(piece: bytes, at: int) -> bytes:
    """Return the bytes with one of them changed, or as they are if `at` lies outside of them."""
    return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :] if 0 <= at < len(piece) else piece


def commit_upload(
    call: Call,
    writer: BlobWriter,
    name: str,
    fields: dict[str, Any],
    hashes: Declared,
    query: Mapping[str, str] | None = None,
) -> Object:
    """Make an object of the written bytes, if the hashes match and the preconditions hold. Atomic for all other requests."""
    blob = writer.finish()
    fault = call.fault("corrupt")
    with call.state.blobs.removed_on_error(blob):
        if fault is None or fault.at != "stored":
            blobs.verify(blob, hashes)
        if fault is not None and fault.at == "disk":
            call.state.blobs.flip_byte(blob.id, fault.at_byte or 0)
        preconditions = conditions.parse(call.query if query is None else query)
        return call.state.commit(call.route.bucket, name, blob, fields, preconditions)


def upload_fields(resource: Mapping[str, Any], content_type: str | None = None) -> dict[str, Any]:
    return {"contentType": content_type or _DEFAULT_TYPE, **object_fields(resource)}
