"""The part of the XML API that clients of the JSON API use: objects by path, and multipart uploads."""

from __future__ import annotations

import re
import uuid
from xml.sax.saxutils import escape

from starlette.responses import Response

from ..errors import words
from . import blobs, conditions
from .bodies import check_object
from .call import Call
from .downloads import media, object_headers
from .errors import StorageApiError, invalid, not_emulated
from .records import UploadSession
from .uploads import commit_upload, receive, upload_fields

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_PART = re.compile(r"<(?:\w+:)?PartNumber>\s*(\d{1,19})\s*</(?:\w+:)?PartNumber>\s*<(?:\w+:)?ETag>\s*([^<]*?)\s*</")
_MAX_PARTS = 10_000
_META = "x-goog-meta-"
_METADATA = {
    "content-type": "contentType",
    "cache-control": "cacheControl",
    "content-disposition": "contentDisposition",
    "content-encoding": "contentEncoding",
    "content-language": "contentLanguage",
    "x-goog-storage-class": "storageClass",
}
_CONDITIONS = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
}
# Hashes are compared elsewhere; the others identify the client or control access, on which nothing here depends.
_OTHERS = words(
    "x-goog-hash x-goog-acl x-goog-api-client x-goog-user-project x-goog-project-id x-goog-request-params x-goog-date"
    " x-goog-content-sha256 x-goog-gcs-idempotency-token x-goog-allowed-resources"
) | frozenset(_CONDITIONS)
_MIN_PART_BYTES = 5 << 20


async def get(call: Call) -> Response:
    """Answer xml.get, also for HEAD."""
    await call.apply_faults(call.route.object)
    return media(call, conditions.parse(_json_conditions(call), call.headers))


async def put(call: Call) -> Response:
    name = check_object(call.route.object)
    await call.apply_faults(name)
    with call.state.blobs.writer() as writer:
        await receive(call, call.pieces(), writer)
        hashes = blobs.declared_hashes(call.headers)
        record = commit_upload(call, writer, name, _fields(call), hashes, _json_conditions(call))
    headers = object_headers(record).items()
    return Response(headers={name: text for name, text in headers if not name.startswith("Content-")})


async def delete(call: Call) -> Response:
    await call.apply_faults(call.route.object)
    generation = conditions.number(call.query)
    required = conditions.parse(_json_conditions(call), call.headers)
    record = call.state.get(call.route.bucket, call.route.object, generation, required, reading=False)
    call.state.delete(record, permanently=generation is not None)
    return Response(status_code=204)


async def start(call: Call) -> Response:
    await call.read_all()
    name, bucket = check_object(call.route.object), call.route.bucket
    await call.apply_faults(name)
    call.state.bucket(bucket)
    _refuse_conditions(call)
    session = UploadSession(id=uuid.uuid4().hex, bucket=bucket, name=name, blob="", fields=_fields(call), query={})
    call.state.store_session(session)
    return _answer("InitiateMultipartUploadResult", bucket, name, f"<UploadId>{session.id}</UploadId>")


async def part(call: Call) -> Response:
    session = _session(call)
    await call.apply_faults(session.name)
    text = call.query.get("partNumber", "")
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:19]) <= _MAX_PARTS):
        raise invalid(f"partNumber is a number from 1 to {_MAX_PARTS}. Received: {text!r}.")
    with call.state.blobs.writer() as writer:
        await receive(call, call.pieces(), writer)
        blob = writer.finish()
        blobs.verify(blob, blobs.declared_hashes(call.headers))
        call.state.store_part(_session(call), int(text), blob)
    return Response(headers={"ETag": f'"{blob.md5}"', "X-Goog-Hash": f"crc32c={blob.crc32c},md5={blob.md5}"})


async def complete(call: Call) -> Response:
    body = (await call.read_all()).decode("utf-8", "replace")
    session = _session(call)
    await call.apply_faults(session.name)
    _refuse_conditions(call)
    stored = call.state.parts(session)
    parts = [(int(number), etag.replace("&quot;", "").strip('"')) for number, etag in _PART.findall(body)]
    if not parts or [number for number, _ in parts] != sorted({number for number, _ in parts}):
        raise StorageApiError(
            400, "The parts are not named, or not in the order of their numbers.", reason="InvalidPartOrder"
        )
    for number, etag in parts:
        if number not in stored or stored[number][1] != etag:
            raise StorageApiError(400, f"Part {number} was not uploaded, or its ETag differs.", reason="InvalidPart")
    if any(stored[number][2] < _MIN_PART_BYTES for number, _ in parts[:-1]):
        text = f"Every part but the last one has at least {_MIN_PART_BYTES} bytes."
        raise StorageApiError(400, text, reason="EntityTooSmall")
    blob = await call.state.blobs.concatenate([stored[number][0] for number, _ in parts])
    with call.state.blobs.removed_on_error(blob), call.state.transaction():
        record = call.state.commit(session.bucket, session.name, blob, session.fields)
        call.state.delete_session(session)
    return _answer("CompleteMultipartUploadResult", record.bucket, record.name, f'<ETag>"{record.etag}"</ETag>')


async def abort(call: Call) -> Response:
    session = _session(call)
    await call.apply_faults(session.name)
    call.state.delete_session(session)
    return Response(status_code=204)


def _session(call: Call) -> UploadSession:
    session = call.state.session(call.query.get("uploadId", ""))
    if session is None or (session.bucket, session.name) != (call.route.bucket, call.route.object):
        raise StorageApiError(404, "No such upload: it was completed, aborted or never started.", reason="NoSuchUpload")
    return session


def _json_conditions(call: Call) -> dict[str, str]:
    """Return the preconditions, which are headers here, under the names of the JSON API."""
    return {name: call.headers[header] for header, name in _CONDITIONS.items() if header in call.headers}


def _refuse_conditions(call: Call) -> None:
    """Reject preconditions: the real service ignores them for a multipart upload, and a client must not rely on them."""
    for header in _CONDITIONS:
        if header in call.headers:
            raise not_emulated(f"the header {header!r} of a multipart upload")


def _fields(call: Call) -> dict[str, object]:
    """Return the metadata, which are headers here, under the names of the JSON API."""
    for name in call.headers:
        if name.startswith("x-goog-") and not name.startswith(_META) and name not in (*_METADATA, *_OTHERS):
            raise not_emulated(f"the header {name!r} of {call.route.operation}")
    custom = {name[len(_META) :]: text for name, text in call.headers.items() if name.startswith(_META)}
    fields = {field: call.headers[header] for header, field in _METADATA.items() if header in call.headers}
    return upload_fields({**fields, "metadata": custom or None})


def _answer(kind: str, bucket: str, name: str, inner: str) -> Response:
    text = f"<Bucket>{escape(bucket)}</Bucket><Key>{escape(name)}</Key>{inner}"
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return Response(f'{head}<{kind} xmlns="{_NAMESPACE}">{text}</{kind}>', media_type="application/xml")
