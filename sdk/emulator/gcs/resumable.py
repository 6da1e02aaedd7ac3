"""Resumable uploads: started with a request, filled with chunks, continued after a failure, and one object in the end."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import quote
from weakref import WeakValueDictionary

from starlette.responses import JSONResponse, Response

from . import blobs, conditions
from .blobs import BlobWriter
from .bodies import check_object
from .call import Call
from .errors import StorageApiError, invalid
from .records import UploadSession, object_resource
from .uploads import commit_upload, corrupted, upload_fields

_QUANTUM_BYTES = 256 << 10
_MAX_OPEN_FILES = 128
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The bytes in the body of a request of a resumable upload; None where its Content-Range leaves a number open."""

    start: int | None
    stop: int | None
    total: int | None


def parse_content_range(header: str | None) -> Chunk:
    """Return the chunk that a Content-Range declares. Without one the body is the whole object; `bytes */...` has no bytes."""
    if header is None:
        return Chunk(start=0, stop=None, total=None)
    match = _CONTENT_RANGE.fullmatch(header.strip())
    if match is None:
        raise invalid(f"Failed to parse Content-Range header. Received: {header!r}.")
    first, last, total = match.groups()
    size = None if total == "*" else int(total)
    if first is None:
        return Chunk(start=None, stop=None, total=size)
    start, stop = int(first), int(last) + 1
    if stop <= start or (size is not None and stop > size):
        raise invalid(f"Failed to parse Content-Range header. Received: {header!r}.")
    return Chunk(start=start, stop=stop, total=size)


class ResumableUploads:
    """The handlers of resumable uploads, and the files that they keep open from one chunk to the next."""

    def __init__(self) -> None:
        self._writers: dict[str, BlobWriter] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    async def start(self, call: Call) -> Response:
        resource = await call.read_json()
        name = check_object(call.query.get("name") or resource.get("name"))
        await call.apply_faults(name)
        state, bucket = call.state, call.route.bucket
        state.bucket(bucket)
        resource.setdefault("contentType", call.headers.get("x-upload-content-type"))
        resource.setdefault("contentEncoding", call.query.get("contentEncoding"))
        upload_fields(resource)
        preconditions = {key: text for key, text in call.query.items() if key.startswith("if")}
        conditions.parse(preconditions).check(state.find(bucket, name))
        length = call.headers.get("x-upload-content-length", "")
        session = UploadSession(
            id=uuid.uuid4().hex,
            bucket=bucket,
            name=name,
            blob=uuid.uuid4().hex,
            fields=resource,
            query=preconditions,
            declared=[list(pair) for pair in blobs.declared_hashes(call.headers)],
            total=int(length) if re.fullmatch(r"\d{1,19}", length, re.ASCII) else None,
        )
        state.store_session(session)
        path = f"/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={session.id}"
        return Response(headers={"Location": call.base_url + path, "X-GUploader-UploadID": session.id})

    async def chunk(self, call: Call) -> Response:
        session = self._session(call)
        await call.apply_faults(session.name)
        fault = call.fault("lose_session")
        if fault is not None:
            self._end(call, session)
            raise StorageApiError(fault.status, "The upload session is gone.")
        # After a timeout, a client may send the next request while the first one is still being served.
        lock = self._locks.setdefault(session.id, asyncio.Lock())
        async with lock:
            return await self._receive_chunk(call, self._session(call))

    async def cancel(self, call: Call) -> Response:
        session = self._session(call)
        await call.apply_faults(session.name)
        self._end(call, session)
        return Response(status_code=499)

    def _end(self, call: Call, session: UploadSession) -> None:
        self._close_writer(session.id)
        call.state.delete_session(session)

    def _session(self, call: Call) -> UploadSession:
        session = call.state.session(call.query.get("upload_id", ""))
        if session is None or session.bucket != call.route.bucket:
            raise StorageApiError(404, "No such upload session: it was lost, cancelled or never started.")
        return session

    async def _receive_chunk(self, call: Call, session: UploadSession) -> Response:
        if session.finished is not None:
            return JSONResponse(session.finished)
        chunk = parse_content_range(call.headers.get("content-range"))
        stored = call.state.blobs.size(session.blob)
        _check_size(chunk)
        if chunk.start is not None:
            stored = await self._append(call, session, chunk, stored)
        is_whole = chunk.start is not None and chunk.stop is None and chunk.total is None
        total = stored if is_whole else chunk.total
        if total is not None and total == stored:
            return await self._finish(call, session, total)
        if chunk.start is not None and stored % _QUANTUM_BYTES:
            # The client sends the rest again, with the next bytes.
            self._truncate_to_quantum(call, session)
            stored -= stored % _QUANTUM_BYTES
        return Response(status_code=308, headers={"Range": f"bytes=0-{stored - 1}"} if stored else {})

    async def _append(self, call: Call, session: UploadSession, chunk: Chunk, stored: int) -> int:
        """Add the bytes of a request that are not stored yet; return the number of bytes stored."""
        if (chunk.start or 0) > stored:
            raise invalid(f"The chunk begins at byte {chunk.start}, but the upload has {stored} bytes.")
        writer = await self._writer(call, session)
        try:
            async for piece in _skipping(call.pieces(), stored - (chunk.start or 0)):
                if chunk.stop is not None and writer.size + len(piece) > chunk.stop:
                    content_range = call.headers.get("content-range")
                    raise invalid(f"The body is longer than its Content-Range says: {content_range!r}.")
                writer.write(corrupted(call, piece, writer.size))
        except BaseException:
            self._truncate_to_quantum(call, session)
            raise
        if chunk.stop is not None and writer.size < chunk.stop:
            self._truncate_to_quantum(call, session)
            return call.state.blobs.size(session.blob)
        return writer.size

    async def _finish(self, call: Call, session: UploadSession, total: int) -> Response:
        if session.total is not None and session.total != total:
            raise invalid(f"The upload was announced with {session.total} bytes. Received: {total}.")
        writer = await self._writer(call, session)
        await call.wait_before_commit()
        self._writers.pop(session.id, None)
        hashes = [(name, text) for name, text in session.declared]
        hashes += blobs.declared_hashes(session.fields, call.headers)
        try:
            with call.state.transaction():
                record = commit_upload(call, writer, session.name, upload_fields(session.fields), hashes, session.query)
                resource = object_resource(record, call.base_url)
                call.state.store_session(replace(session, finished=resource))
        except StorageApiError:
            call.state.delete_session(session)
            raise
        return JSONResponse(resource)

    async def _writer(self, call: Call, session: UploadSession) -> BlobWriter:
        writer = self._writers.pop(session.id, None)
        if writer is None:
            writer = await asyncio.to_thread(call.state.blobs.writer, session.blob)
        self._writers[session.id] = writer
        if len(self._writers) > _MAX_OPEN_FILES:
            self._close_writer(next((key for key in self._writers if key not in self._locks), ""))
        return writer

    def _close_writer(self, key: str) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.close()

    def _truncate_to_quantum(self, call: Call, session: UploadSession) -> None:
        """Keep as much of an interrupted request as the real service would have kept: whole units."""
        self._close_writer(session.id)
        with suppress(FileNotFoundError):
            stored = call.state.blobs.size(session.blob)
            os.truncate(call.state.blobs.path(session.blob), stored - stored % _QUANTUM_BYTES)


def _check_size(chunk: Chunk) -> None:
    if chunk.start is None or chunk.stop is None or chunk.stop == chunk.total:
        return
    size, least = chunk.stop - chunk.start, _QUANTUM_BYTES
    if size < least:
        raise invalid(
            f"Invalid request. There were {size} byte(s) in the request body. The number of bytes uploaded is required to be "
            f"equal or greater than {least}, except for the final request (it's recommended to be the exact multiple of "
            f"{least}). The received request does not meet this requirement."
        )


async def _skipping(pieces: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if count < len(piece):
            yield piece[count:] if count else piece
        count = max(count - len(piece), 0)
