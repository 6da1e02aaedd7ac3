"""Buckets: made, found, changed, deleted. Their attributes are kept and told; soft delete is not done."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from . import conditions
from .bodies import check_bucket_fields
from .call import Call
from .errors import StorageApiError, invalid
from .names import check_bucket
from .objects import max_results
from .records import BUCKET_OUTPUT_FIELDS, Bucket, bucket_resource, location_type, merge_patch


async def list_buckets(call: Call) -> Response:
    """Answer buckets.list."""
    await call.apply_faults("")
    prefix, after = call.query.get("prefix", ""), call.query.get("pageToken", "")
    found = [each for each in call.state.buckets() if each.name.startswith(prefix) and each.name > after]
    limit = max_results(call)
    shown: dict[str, Any] = {"kind": "storage#buckets", "items": [_told(call, each) for each in found[:limit]]}
    if len(found) > limit:
        shown["nextPageToken"] = found[limit - 1].name
    return JSONResponse(shown)


async def insert(call: Call) -> Response:
    """Answer buckets.insert."""
    given = await call.read_json()
    await call.apply_faults("")
    made = call.state.create_bucket(check_bucket(given.get("name")), _fields({}, given))
    return JSONResponse(_told(call, made))


async def get(call: Call) -> Response:
    """Answer buckets.get."""
    return JSONResponse(_told(call, await _found(call, reading=True)))


async def patch(call: Call) -> Response:
    """Answer buckets.patch and buckets.update."""
    given = await call.read_json()
    found = await _found(call)
    fields = _fields(found.fields if call.method == "PATCH" else {}, given)
    # A bucket stays where it was made, also where a whole resource takes the place of the old one.
    for name in ("location", "customPlacementConfig"):
        old = found.fields.get(name)
        if fields.get(name, old) != old:
            raise invalid(f"The {name} of a bucket cannot be changed. Received: {given[name]!r}. It is {old!r}.")
        fields.update({} if old is None else {name: old})
    return JSONResponse(_told(call, call.state.change_bucket(found, fields)))


async def delete(call: Call) -> Response:
    """Answer buckets.delete."""
    found = await _found(call)
    call.state.delete_bucket(found.name)
    return Response(status_code=204)


async def layout(call: Call) -> Response:
    """Answer buckets.layout: what a client asks that wants to know whether there are real folders."""
    found = await _found(call)
    told = {"kind": "storage#storageLayout", "bucket": found.name, "location": _told(call, found)["location"]}
    return JSONResponse({**told, "locationType": location_type(found), "hierarchicalNamespace": {"enabled": False}})


async def managed_folders(call: Call) -> Response:
    """Answer buckets.managed_folders: there are none, and only a bucket with uniform access could have any."""
    found = await _found(call)
    access = (found.fields.get("iamConfiguration") or {}).get("uniformBucketLevelAccess") or {}
    if not access.get("enabled"):
        raise StorageApiError(
            412, "conditionNotMet", "Managed folders need uniform bucket-level access, which is not enabled."
        )
    if call.route.object:
        raise StorageApiError(404, "notFound", f"The managed folder {call.route.object!r} does not exist.")
    return JSONResponse({"kind": "storage#managedFolders"})


async def folders(call: Call) -> Response:
    """Answer buckets.folders: no bucket has real ones."""
    await _found(call)
    raise StorageApiError(409, "conflict", "The bucket does not support hierarchical namespace.")


async def permissions(call: Call) -> Response:
    """Answer buckets.permissions: everybody may do everything here."""
    await _found(call)
    asked = call.query_lists.get("permissions", [])
    return JSONResponse({"kind": "storage#testIamPermissionsResponse", "permissions": asked})


async def _found(call: Call, *, reading: bool = False) -> Bucket:
    await call.apply_faults("")
    found = call.state.bucket(call.route.bucket)
    conditions.parse(call.query).check(found, reading=reading)
    return found


def _fields(old: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    check_bucket_fields(given)
    fields = merge_patch(old, given, BUCKET_OUTPUT_FIELDS)
    for name in ("location", "storageClass"):
        if isinstance(fields.get(name), str):
            fields[name] = fields[name].upper()
    return fields


def _told(call: Call, found: Bucket) -> dict[str, Any]:
    return bucket_resource(found, call.base_url)
