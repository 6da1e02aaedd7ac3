"""Operations on buckets. Their attributes are stored and reported; the soft-delete policy is not enforced."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from ..project.state import CALLER
from . import conditions
from .bodies import check_bucket, check_bucket_fields
from .call import Call
from .errors import StorageApiError, invalid
from .objects import max_results
from .records import BUCKET_OUTPUT_FIELDS, Bucket, bucket_resource, location_type, merge_patch


async def list_buckets(call: Call) -> Response:
    await call.apply_faults("")
    prefix, after = call.query.get("prefix", ""), call.query.get("pageToken", "")
    buckets = [bucket for bucket in call.state.buckets() if bucket.name.startswith(prefix) and bucket.name > after]
    limit = max_results(call)
    answer: dict[str, Any] = {
        "kind": "storage#buckets",
        "items": [_resource(call, bucket) for bucket in buckets[:limit]],
    }
    if len(buckets) > limit:
        answer["nextPageToken"] = buckets[limit - 1].name
    return JSONResponse(answer)


async def insert(call: Call) -> Response:
    body = await call.read_json()
    await call.apply_faults("")
    bucket = call.state.create_bucket(check_bucket(body.get("name")), _fields({}, body))
    return JSONResponse(_resource(call, bucket))


async def get(call: Call) -> Response:
    return JSONResponse(_resource(call, await _bucket(call, reading=True)))


async def patch(call: Call) -> Response:
    body = await call.read_json()
    bucket = await _bucket(call)
    fields = _fields(bucket.fields if call.method == "PATCH" else {}, body)
    # A bucket stays in its location, even if a whole resource replaces the old one.
    for name in ("location", "customPlacementConfig"):
        old = bucket.fields.get(name)
        if fields.get(name, old) != old:
            raise invalid(f"The {name} of a bucket cannot be changed. Received: {body[name]!r}. It is {old!r}.")
        fields.update({} if old is None else {name: old})
    return JSONResponse(_resource(call, call.state.change_bucket(bucket, fields)))


async def delete(call: Call) -> Response:
    bucket = await _bucket(call)
    call.state.delete_bucket(bucket.name)
    return Response(status_code=204)


async def layout(call: Call) -> Response:
    bucket = await _bucket(call)
    answer = {"kind": "storage#storageLayout", "bucket": bucket.name, "location": _resource(call, bucket)["location"]}
    return JSONResponse({**answer, "locationType": location_type(bucket), "hierarchicalNamespace": {"enabled": False}})


async def managed_folders(call: Call) -> Response:
    bucket = await _bucket(call)
    access = (bucket.fields.get("iamConfiguration") or {}).get("uniformBucketLevelAccess") or {}
    if not access.get("enabled"):
        raise StorageApiError(412, "Managed folders need uniform bucket-level access, which is not enabled.")
    if call.route.object:
        raise StorageApiError(404, f"The managed folder {call.route.object!r} does not exist.")
    return JSONResponse({"kind": "storage#managedFolders"})


async def folders(call: Call) -> Response:
    await _bucket(call)
    raise StorageApiError(409, "The bucket does not support hierarchical namespace.")


async def permissions(call: Call) -> Response:
    resource = _of_policy(await _bucket(call))
    names = [permission for permission in call.query_lists.get("permissions", []) if not call.faults.denies(permission)]
    granted = [permission for permission in names if call.project.grants(CALLER, resource, permission)]
    return JSONResponse({"kind": "storage#testIamPermissionsResponse", "permissions": granted})


async def policy(call: Call) -> Response:
    stored = call.project.policy(_of_policy(await _bucket(call)))
    return JSONResponse({"kind": "storage#policy", **stored})


async def set_policy(call: Call) -> Response:
    new_policy = await call.read_json()
    if wrong := call.project.wrong(new_policy):
        raise invalid(wrong)
    changed = call.project.set_policy(_of_policy(await _bucket(call)), new_policy)
    if changed is None:
        raise StorageApiError(412, "The policy was changed since it was read.")
    return JSONResponse({"kind": "storage#policy", **changed})


def _of_policy(bucket: Bucket) -> str:
    return f"//storage.googleapis.com/projects/_/buckets/{bucket.name}"


async def _bucket(call: Call, *, reading: bool = False) -> Bucket:
    await call.apply_faults("")
    bucket = call.state.bucket(call.route.bucket)
    conditions.parse(call.query).check(bucket, reading=reading)
    return bucket


def _fields(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    check_bucket_fields(new)
    fields = merge_patch(old, new, BUCKET_OUTPUT_FIELDS)
    for name in ("location", "storageClass"):
        if isinstance(fields.get(name), str):
            fields[name] = fields[name].upper()
    return fields


def _resource(call: Call, bucket: Bucket) -> dict[str, Any]:
    return bucket_resource(bucket, call.base_url)
