"""Uploads in one request, `uploadType=media` and `multipart`, and what all kinds of uploads share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response

from . import blobs, conditions, multipart
from .blobs import BlobWriter, Declared
from .bodies import check_object, object_fields
from .call import Call
from .records import Object

_DEFAULT_TYPE = "application/octet-stream"


async def insert(call: Call) -> Response:
    if call.query.get("uploadType") == "multipart":
        return await _insert_multipart(call)
    name = check_object(call.query.get("name"))
    await call.apply_faults(name)
    given = {"contentType": call.headers.get("content-type"), "contentEncoding": call.query.get("contentEncoding")}
    with call.state.blobs.writer() as writer:
        await receive(call, call.pieces(), writer)
        record = commit_upload(call, writer, name, upload_fields(given), blobs.declared_hashes(call.headers))
    return call.object_response(record)


async def _insert_multipart(call: Call) -> Response:
    parser = multipart.MultipartParser(multipart.boundary_of(call.headers.get("content-type", "")))
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
    given = {"contentEncoding": call.query.get("contentEncoding"), **parser.metadata}
    fields = upload_fields(given, parser.content_type)
    with call.state.blobs.writer() as writer:
        await receive(call, _parsed(call, parser, first, body), writer)
        record = commit_upload(call, writer, name, fields, blobs.declared_hashes(parser.metadata, call.headers))
    return call.object_response(record)


async def _parsed(
    call: Call, parser: multipart.MultipartParser, first: bytes, body: AsyncIterator[bytes]
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
    """Return the piece of an upload at a position, with a byte changed if a fault says so."""
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
    """Make an object of what was written, if the hashes match and the preconditions hold. Atomic for all other requests."""
    blob = writer.finish()
    fault = call.fault("corrupt")
    with call.state.blobs.removed_on_error(blob):
        if fault is None or fault.at != "stored":
            blobs.verify(blob, hashes)
        if fault is not None and fault.at == "disk":
            call.state.blobs.flip_byte(blob.id, fault.at_byte or 0)
        preconditions = conditions.parse(call.query if query is None else query)
        return call.state.commit(call.route.bucket, name, blob, fields, preconditions)


def upload_fields(given: Mapping[str, Any], content_type: str | None = None) -> dict[str, Any]:
    return {"contentType": content_type or _DEFAULT_TYPE, **object_fields(given)}
