"""Uploads in one request, `uploadType=media` and `multipart`; and what every upload does in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from . import blobs, conditions, multipart
from .blobs import BlobWriter, Declared
from .bodies import object_fields
from .call import Call
from .names import check_object
from .records import Object, object_resource

_DEFAULT_TYPE = "application/octet-stream"


async def insert(call: Call) -> Response:
    """Answer objects.insert."""
    if call.query.get("uploadType") == "multipart":
        return await _insert_multipart(call)
    name = check_object(call.query.get("name"))
    await call.apply_faults(name)
    given = {"contentType": call.headers.get("content-type"), "contentEncoding": call.query.get("contentEncoding")}
    writer = call.state.blobs.create()
    try:
        await receive(call, call.pieces(), writer)
        await call.wait_before_commit()
        found = commit_upload(call, writer, name, upload_fields(given), blobs.declared_hashes(call.headers))
    finally:
        writer.close()
    return JSONResponse(object_resource(found, call.base_url))


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
    fields = upload_fields(
        {"contentEncoding": call.query.get("contentEncoding"), **parser.metadata}, parser.content_type
    )
    writer = call.state.blobs.create()
    try:
        await receive(call, _parsed(call, parser, first, body), writer)
        await call.wait_before_commit()
        found = commit_upload(call, writer, name, fields, blobs.declared_hashes(parser.metadata, call.headers))
    finally:
        writer.close()
    return JSONResponse(object_resource(found, call.base_url))


async def _parsed(
    call: Call, parser: multipart.MultipartParser, first: bytes, body: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    # It came with the metadata, before anybody could know that it was to be slow.
    async for drop in call.throttled(first):
        yield drop
    async for piece in body:
        yield parser.feed(piece)
    parser.finish()


async def receive(call: Call, data: AsyncIterator[bytes], writer: BlobWriter) -> None:
    """Write the bytes as they arrive; the file is gone if they do not all arrive."""
    try:
        async for piece in data:
            writer.write(corrupted(call, piece, writer.size))
    except BaseException:
        writer.discard()
        raise


def corrupted(call: Call, piece: bytes, position: int) -> bytes:
    """Return the piece of an upload, or what a fault makes of it."""
    fault = call.fault("corrupt")
    if fault is None or fault.at == "disk":
        return piece
    return flip_byte(piece, (fault.at_byte or 0) - position)


def flip_byte(piece: bytes, at: int) -> bytes:
    """Return the bytes with one of them changed; as they are if it lies elsewhere."""
    return piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :] if 0 <= at < len(piece) else piece


def commit_upload(
    call: Call,
    writer: BlobWriter,
    name: str,
    fields: dict[str, Any],
    hashes: Declared,
    query: Mapping[str, str] | None = None,
) -> Object:
    """Make what was written an object, if it is what the client has sent and the conditions hold; one step to all others.

    Raises:
        ApiError: it is not, or they do not; the file is gone.
    """
    blob = writer.finish()
    fault = call.fault("corrupt")
    try:
        if fault is None or fault.at != "stored":
            blobs.verify(blob, hashes)
        if fault is not None and fault.at == "disk":
            call.state.blobs.flip_byte(blob.id, fault.at_byte or 0)
        wanted = conditions.parse(call.query if query is None else query)
        return call.state.commit(call.route.bucket, name, blob, fields, wanted)
    except BaseException:
        call.state.blobs.remove(blob.id)
        raise


def upload_fields(given: Mapping[str, Any], content_type: str | None = None) -> dict[str, Any]:
    """Return what a client sets of the metadata of an object that it uploads.

    Raises:
        ApiError: see `object_fields`.
    """
    return {"contentType": content_type or _DEFAULT_TYPE, **object_fields(given)}
