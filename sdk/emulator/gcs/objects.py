"""What is done to objects that are there: look, list, change, delete, compose, copy and move."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import JSONResponse, Response

from . import conditions
from .blobs import Blob
from .bodies import check_fields, object_fields
from .call import Call
from .errors import invalid, not_emulated
from .listing import MAX_RESULTS, Cursor, ListedObject, ListQuery, glob_pattern, list_page, read_token
from .names import check_object
from .records import OBJECT_OUTPUT_FIELDS, Object, merge_patch, object_resource

_MAX_SOURCES = 32


async def get(call: Call) -> Response:
    """Answer objects.get."""
    await call.apply_faults(call.route.object)
    wanted = conditions.parse(call.query, call.headers)
    return _told(call, call.state.get(call.route.bucket, call.route.object, _generation(call), wanted))


async def list_objects(call: Call) -> Response:
    """Answer objects.list."""
    await call.apply_faults("")
    query, bucket = call.query, call.route.bucket
    versions = flag(call, "versions")
    if flag(call, "softDeleted"):
        raise not_emulated("softDeleted of a listing")
    call.state.bucket(bucket)

    def scan(name: str, generation: int, limit: int) -> list[ListedObject]:
        return call.state.scan(bucket, name, generation, limit, versions=versions)

    asked = ListQuery(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start=query.get("startOffset", ""),
        end=query.get("endOffset", ""),
        glob=glob_pattern(query["matchGlob"]) if query.get("matchGlob") else None,
        trailing_delimiter=flag(call, "includeTrailingDelimiter"),
        limit=max_results(call),
        after=read_token(query["pageToken"]) if query.get("pageToken") else Cursor(),
    )
    page = list_page(scan, asked)
    items = [object_resource(Object.from_json(entry.record), call.base_url) for entry in page.items]
    shown: dict[str, Any] = {"kind": "storage#objects"}
    shown.update({"items": items} if items else {})
    shown.update({"prefixes": page.prefixes} if page.prefixes else {})
    shown.update({"nextPageToken": page.token} if page.token else {})
    return JSONResponse(shown)


async def patch(call: Call) -> Response:
    """Answer objects.patch and objects.update."""
    changes = await call.read_json()
    await call.apply_faults(call.route.object)
    wanted = conditions.parse(call.query, call.headers)
    found = call.state.get(call.route.bucket, call.route.object, _generation(call), wanted, reading=False)
    object_fields(changes)
    old = found.fields if call.method == "PATCH" else {}
    return _told(call, call.state.change(found, merge_patch(old, changes, OBJECT_OUTPUT_FIELDS)))


async def delete(call: Call) -> Response:
    """Answer objects.delete."""
    await call.apply_faults(call.route.object)
    wanted, generation = conditions.parse(call.query, call.headers), _generation(call)
    found = call.state.get(call.route.bucket, call.route.object, generation, wanted, reading=False)
    call.state.delete(found, permanently=generation is not None)
    return Response(status_code=204)


async def compose(call: Call) -> Response:
    """Answer objects.compose."""
    given = await call.read_json()
    name = check_object(call.route.object)
    await call.apply_faults(name)
    check_fields("a compose", given, "kind destination sourceObjects deleteSourceObjects")
    sources = given.get("sourceObjects")
    if not isinstance(sources, list) or not 1 <= len(sources) <= _MAX_SOURCES:
        raise invalid(f"The number of source components provided must be from 1 to {_MAX_SOURCES}.")
    if given.get("deleteSourceObjects"):
        raise not_emulated("deleteSourceObjects of a compose")
    # The result has the metadata that the request names, and nothing of its sources: without a type, it has none.
    fields = object_fields(given.get("destination") or {})
    found = [_source(call, source) for source in sources]
    state = call.state
    # Links, so that a source may be deleted while its bytes are read in another thread.
    held = [state.blobs.link(each.blob) for each in found]
    try:
        blob = await asyncio.to_thread(state.blobs.concatenate, held)
    finally:
        for each in held:
            state.blobs.remove(each)
    components = sum(each.components or 1 for each in found)
    try:
        made = state.commit(call.route.bucket, name, blob, fields, conditions.parse(call.query), components)
    except BaseException:
        state.blobs.remove(blob.id)
        raise
    return _told(call, made)


def _source(call: Call, given: Any) -> Object:
    check_fields("a source of a compose", given, "name generation objectPreconditions")
    check_fields("objectPreconditions", given.get("objectPreconditions") or {}, "ifGenerationMatch")
    generation = conditions.requested_generation(
        {"generation": str(given["generation"])} if given.get("generation") else {}
    )
    wanted = conditions.source_conditions(given.get("objectPreconditions"))
    return call.state.get(call.route.bucket, check_object(given.get("name")), generation, wanted, reading=False)


async def copy(call: Call) -> Response:
    """Answer objects.rewrite and objects.copy: at once, whatever the size."""
    given = await call.read_json()
    await call.apply_faults(call.route.to_object, call.route.to_bucket)
    made = _copy(call, given)
    resource = object_resource(made, call.base_url)
    if call.route.operation == "objects.copy":
        return JSONResponse(resource)
    size = str(made.size)
    told = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
    return JSONResponse({**told, "resource": resource})


async def move(call: Call) -> Response:
    """Answer objects.move: one step."""
    await call.read_all()
    await call.apply_faults(call.route.object)
    if call.route.object == call.route.to_object:
        raise invalid("An object cannot be moved onto itself.")
    old = call.state.get(call.route.bucket, call.route.object)
    with call.state.transaction():
        made = _copy(call, {})
        call.state.delete(old, permanently=False)
    return _told(call, made)


def _copy(call: Call, given: dict[str, Any]) -> Object:
    route, state = call.route, call.state
    name = check_object(route.to_object)
    source_wanted = conditions.parse(call.query, prefix="ifSource")
    generation = conditions.requested_generation(call.query, "sourceGeneration")
    source = state.get(route.bucket, route.object, generation, source_wanted, reading=False)
    fields = object_fields(given) if set(given) - OBJECT_OUTPUT_FIELDS else source.fields
    blob = Blob(id=state.blobs.link(source.blob), size=source.size, crc32c=source.crc32c, md5=source.md5)
    try:
        return state.commit(route.to_bucket, name, blob, fields, conditions.parse(call.query), source.components)
    except BaseException:
        state.blobs.remove(blob.id)
        raise


def flag(call: Call, name: str) -> bool:
    """Return a parameter that is true or false.

    Raises:
        ApiError: it is neither.
    """
    text = call.query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise invalid(f"{name} is true or false. Received: {text!r}.")
    return text == "true"


def max_results(call: Call) -> int:
    """Return how many entries a page may have.

    Raises:
        ApiError: it is no number.
    """
    text = call.query.get("maxResults", str(MAX_RESULTS))
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise invalid(f"maxResults is a whole number. Received: {text!r}.")
    return min(int(text), MAX_RESULTS) or MAX_RESULTS


def _generation(call: Call) -> int | None:
    return conditions.requested_generation(call.query)


def _told(call: Call, found: Object) -> Response:
    return JSONResponse(object_resource(found, call.base_url))
