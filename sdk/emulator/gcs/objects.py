"""Operations on existing objects: get, list, patch, delete, compose, copy and move."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from . import conditions
from .blobs import Blob
from .bodies import check_fields, check_object, metadata_problems, object_fields
from .call import Call
from .errors import invalid, not_emulated
from .listing import MAX_RESULTS, Cursor, ListQuery, glob_pattern, list_page, read_token
from .records import OBJECT_OUTPUT_FIELDS, Object, merge_patch, object_resource

_MAX_SOURCES = 32


async def get(call: Call) -> Response:
    await call.apply_faults(call.route.object)
    return call.object_response(_requested(call, reading=True))


async def list_objects(call: Call) -> Response:
    await call.apply_faults("")
    if call.state.catch_up is not None:
        await asyncio.to_thread(call.state.catch_up)
    query, bucket, versions = call.query, call.route.bucket, flag(call, "versions")
    if flag(call, "softDeleted"):
        raise not_emulated("softDeleted of a listing")
    call.state.bucket(bucket)
    list_query = ListQuery(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start=query.get("startOffset", ""),
        end=query.get("endOffset", ""),
        glob=glob_pattern(query["matchGlob"]) if query.get("matchGlob") else None,
        trailing_delimiter=flag(call, "includeTrailingDelimiter"),
        limit=max_results(call),
        after=read_token(query["pageToken"]) if query.get("pageToken") else Cursor(),
    )
    page = list_page(partial(call.state.scan, bucket, versions=versions), list_query)
    items = [object_resource(Object.from_json(item.record), call.base_url) for item in page.items]
    answer = {"items": items, "prefixes": page.prefixes, "nextPageToken": page.token}
    return JSONResponse({"kind": "storage#objects", **{name: value for name, value in answer.items() if value}})


async def patch(call: Call) -> Response:
    changes = await call.read_json()
    await call.apply_faults(call.route.object)
    record = _requested(call)
    object_fields(changes)
    fields = merge_patch(record.fields if call.method == "PATCH" else {}, changes, OBJECT_OUTPUT_FIELDS)
    fields.setdefault("storageClass", record.storage_class)
    if problems := metadata_problems(fields.get("metadata") or {}):
        raise invalid(" ".join(problems))
    return call.object_response(call.state.change(record, fields))


async def delete(call: Call) -> Response:
    await call.apply_faults(call.route.object)
    call.state.delete(_requested(call), permanently=conditions.number(call.query) is not None)
    return Response(status_code=204)


async def compose(call: Call) -> Response:
    body = await call.read_json()
    name = check_object(call.route.object)
    await call.apply_faults(name)
    check_fields("a compose", body, "kind destination sourceObjects deleteSourceObjects")
    sources = body.get("sourceObjects")
    if not isinstance(sources, list) or not 1 <= len(sources) <= _MAX_SOURCES:
        raise invalid(f"The number of source components provided must be from 1 to {_MAX_SOURCES}.")
    if body.get("deleteSourceObjects"):
        raise not_emulated("deleteSourceObjects of a compose")
    # The result has the metadata that the request names, and nothing of its sources: by default it has no type.
    fields = object_fields(body.get("destination") or {})
    records = [_source(call, source) for source in sources]
    classes = {record.storage_class for record in records} | {
        fields.setdefault("storageClass", records[0].storage_class)
    }
    if len(classes) > 1:
        class_names = ", ".join(sorted(classes))
        raise invalid(f"All objects of a compose, and its result, have one storage class. Received: {class_names}.")
    blob = await call.state.blobs.concatenate([record.blob for record in records])
    components = sum(record.components or 1 for record in records)
    with call.state.blobs.removed_on_error(blob):
        preconditions = conditions.parse(call.query)
        new_object = call.state.commit(call.route.bucket, name, blob, fields, preconditions, components)
    return call.object_response(new_object)


def _source(call: Call, part: Any) -> Object:
    check_fields("a source of a compose", part, "name generation objectPreconditions")
    check_fields("objectPreconditions", part.get("objectPreconditions") or {}, "ifGenerationMatch")
    generation = conditions.number(part) if part.get("generation") else None
    required = conditions.number(part.get("objectPreconditions") or {}, "ifGenerationMatch")
    preconditions = conditions.Conditions(generation=required)
    return call.state.get(call.route.bucket, check_object(part.get("name")), generation, preconditions, reading=False)


async def copy(call: Call) -> Response:
    """Answer objects.rewrite and objects.copy: in one step, whatever the size."""
    body = await call.read_json()
    await call.apply_faults(call.route.to_object, call.route.to_bucket)
    new_object = _copy(call, body)
    if call.route.operation == "objects.copy":
        return call.object_response(new_object)
    size = str(new_object.size)
    answer = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
    return JSONResponse({**answer, "resource": object_resource(new_object, call.base_url)})


async def move(call: Call) -> Response:
    """Answer objects.move: in one step."""
    await call.read_all()
    await call.apply_faults(call.route.object)
    if call.route.object == call.route.to_object:
        raise invalid("An object cannot be moved onto itself.")
    old = call.state.get(call.route.bucket, call.route.object)
    with call.state.transaction():
        new_object = _copy(call, {})
        call.state.delete(old, permanently=False)
    return call.object_response(new_object)


def _copy(call: Call, resource: dict[str, Any]) -> Object:
    route, state = call.route, call.state
    name = check_object(route.to_object)
    source_preconditions = conditions.parse(call.query, prefix="ifSource")
    generation = conditions.number(call.query, "sourceGeneration")
    source = state.get(route.bucket, route.object, generation, source_preconditions, reading=False)
    source_fields = {
        name: value
        for name, value in source.fields.items()
        if name != "storageClass" or route.operation == "objects.move"
    }
    fields = object_fields(resource) if set(resource) - OBJECT_OUTPUT_FIELDS else source_fields
    blob = Blob(id=state.blobs.link(source.blob), size=source.size, crc32c=source.crc32c, md5=source.md5)
    with state.blobs.removed_on_error(blob):
        preconditions = conditions.parse(call.query)
        return state.commit(route.to_bucket or route.bucket, name, blob, fields, preconditions, source.components)


def flag(call: Call, name: str) -> bool:
    text = call.query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise invalid(f"{name} is true or false. Received: {text!r}.")
    return text == "true"


def max_results(call: Call) -> int:
    text = call.query.get("maxResults", str(MAX_RESULTS))
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise invalid(f"maxResults is a whole number. Received: {text!r}.")
    return min(int(text), MAX_RESULTS) or MAX_RESULTS


def _requested(call: Call, *, reading: bool = False) -> Object:
    preconditions = conditions.parse(call.query, call.headers)
    generation = conditions.number(call.query)
    return call.state.get(call.route.bucket, call.route.object, generation, preconditions, reading=reading)
