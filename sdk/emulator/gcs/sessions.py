"""Resumable uploads: begun with a request, fed with chunks, resumed after a failure, and one object in the end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote
from weakref import WeakValueDictionary

from starlette.responses import JSONResponse, Response

from . import blobs, conditions, ranges
from .blobs import BlobWriter
from .call import Call
from .errors import StorageApiError, invalid
from .names import check_object
from .ranges import Chunk
from .records import UploadSession, object_resource
from .uploads import commit_upload, corrupted, upload_fields

_QUANTUM_BYTES = 256 << 10
_MAX_OPEN = 128


class ResumableUploads:
    """The handlers of resumable uploads, and the files that they keep open from one chunk to the next."""

    def __init__(self) -> None:
        self._writers: dict[str, BlobWriter] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Close all files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    async def start(self, call: Call) -> Response:
        """Answer uploads.start."""
        given = await call.read_json()
        name = check_object(call.query.get("name") or given.get("name"))
        await call.apply_faults(name)
        state, bucket = call.state, call.route.bucket
        state.bucket(bucket)
        given.setdefault("contentType", call.headers.get("x-upload-content-type"))
        given.setdefault("contentEncoding", call.query.get("contentEncoding"))
        upload_fields(given)
        declared = [list(pair) for pair in blobs.declared_hashes(call.headers)]
        wanted = {key: text for key, text in call.query.items() if key.startswith("if")}
        conditions.parse(wanted).check(state.find(bucket, name))
        length = call.headers.get("x-upload-content-length")
        key, blob = uuid.uuid4().hex, uuid.uuid4().hex
        total = int(length) if length and length.isdigit() else None
        state.store_session(
            UploadSession(
                id=key, bucket=bucket, name=name, blob=blob, fields=given, query=wanted, declared=declared, total=total
            )
        )
        place = f"{call.base_url}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={key}"
        return Response(headers={"Location": place, "X-GUploader-UploadID": key})

    async def chunk(self, call: Call) -> Response:
        """Answer uploads.chunk and uploads.status."""
        session = self._found(call)
        await call.apply_faults(session.name)
        lost = call.fault("lose_session")
        if lost is not None:
            self._forget(session.id)
            call.state.delete_session(session)
            raise StorageApiError(lost.status, "notFound", "The upload session is gone.")
        # A client that has given up waiting may come again while its first request is still here.
        lock = self._locks.setdefault(session.id, asyncio.Lock())
        async with lock:
            return await self._take(call, self._found(call))

    async def cancel(self, call: Call) -> Response:
        """Answer uploads.cancel."""
        session = self._found(call)
        await call.apply_faults(session.name)
        self._forget(session.id)
        call.state.delete_session(session)
        return Response(status_code=499)

    def _found(self, call: Call) -> UploadSession:
        session = call.state.session(call.query.get("upload_id", ""))
        if session is None or session.bucket != call.route.bucket:
            raise StorageApiError(404, "notFound", "No such upload session: it was lost, cancelled or never begun.")
        return session

    async def _take(self, call: Call, session: UploadSession) -> Response:
        if session.finished is not None:
            return JSONResponse(session.finished)
        said = ranges.parse_content_range(call.headers.get("content-range"))
        there = call.state.blobs.size(session.blob)
        if said.start is not None:
            there = await self._append(call, session, said, there)
        total = said.total if said.total is not None or said.stop is not None or said.start is None else there
        if total is not None and total == there:
            return await self._finish(call, session, total)
        if said.start is not None and there % _QUANTUM_BYTES:
            self._cut(call, session)
            raise invalid(
                f"Every chunk but the last one is a multiple of {_QUANTUM_BYTES} bytes. Received: {there} in all."
            )
        received = {"Range": f"bytes=0-{there - 1}"} if there else {}
        return Response(status_code=308, headers=received)

    async def _append(self, call: Call, session: UploadSession, said: Chunk, there: int) -> int:
        """Add the bytes of a request that are not there yet; return how many there are."""
        if (said.start or 0) > there:
            raise invalid(f"The chunk begins at byte {said.start}, but the upload has {there} bytes.")
        writer = await self._writer(call, session)
        try:
            async for piece in _skipping(call.pieces(), there - (said.start or 0)):
                if said.stop is not None and writer.size + len(piece) > said.stop:
                    raise invalid(
                        f"The body is longer than its Content-Range says: {call.headers.get('content-range')!r}."
                    )
                writer.write(corrupted(call, piece, writer.size))
        except BaseException:
            self._cut(call, session)
            raise
        if said.stop is not None and writer.size < said.stop:
            self._cut(call, session)
            return call.state.blobs.size(session.blob)
        return writer.size

    async def _finish(self, call: Call, session: UploadSession, total: int) -> Response:
        if session.total is not None and session.total != total:
            raise invalid(f"The upload was announced with {session.total} bytes. Received: {total}.")
        writer = await self._writer(call, session)
        await call.wait_before_commit()
        self._writers.pop(session.id, None)
        hashes = [
            *((name, text) for name, text in session.declared),
            *blobs.declared_hashes(session.fields, call.headers),
        ]
        try:
            with call.state.transaction():
                found = commit_upload(call, writer, session.name, upload_fields(session.fields), hashes, session.query)
                resource = object_resource(found, call.base_url)
                call.state.store_session(replace(session, finished=resource))
        except StorageApiError:
            call.state.delete_session(session)
            raise
        return JSONResponse(resource)

    async def _writer(self, call: Call, session: UploadSession) -> BlobWriter:
        """Return the open file of an upload; what it holds already is hashed again after an interruption or a restart."""
        writer = self._writers.pop(session.id, None)
        if writer is None:
            writer = await asyncio.to_thread(call.state.blobs.reopen, session.blob)
        self._writers[session.id] = writer
        if len(self._writers) > _MAX_OPEN:
            idle = next((key for key in self._writers if key not in self._locks), "")
            self._forget(idle)
        return writer

    def _forget(self, key: str) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.close()

    def _cut(self, call: Call, session: UploadSession) -> None:
        """Keep what the real service would have kept of an interrupted request: whole units."""
        self._forget(session.id)
        with suppress(FileNotFoundError):
            there = call.state.blobs.size(session.blob)
            call.state.blobs.truncate(session.blob, there - there % _QUANTUM_BYTES)


async def _skipping(pieces: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    """Yield all but the first bytes: those that came before are stored already."""
    async for piece in pieces:
        if count < len(piece):
            yield piece[count:] if count else piece
        count = max(count - len(piece), 0)
