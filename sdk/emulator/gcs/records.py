"""The stored records of buckets, objects and unfinished uploads, and their resources as the real service shows them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any, TypeVar
from urllib.parse import quote

from ..errors import words

T = TypeVar("T", bound="_Record")
R = TypeVar("R", bound="_Resource")
# The service sets these fields; they are ignored when a client sends them back with a resource.
OBJECT_OUTPUT_FIELDS = words(
    "kind id selfLink mediaLink name bucket generation metageneration size md5Hash crc32c etag timeCreated updated timeDeleted"
    " timeFinalized timeStorageClassUpdated componentCount owner acl softDeleteTime hardDeleteTime retentionExpirationTime"
)
BUCKET_OUTPUT_FIELDS = words(
    "kind id selfLink name metageneration etag timeCreated updated projectNumber locationType generation acl"
    " defaultObjectAcl owner"
)
MULTI_REGIONS = words("US EU ASIA")
# Pairs of regions that Google has chosen.
DUAL_REGIONS = words("ASIA1 EUR4 EUR5 EUR7 EUR8 NAM4")
_DEFAULT_LOCATION, _DEFAULT_CLASS = "US", "STANDARD"
_SOFT_DELETE_S = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class _Record:
    def to_json(self) -> str:
        return json.dumps(vars(self), ensure_ascii=False)

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        names = {column.name for column in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in names})


@dataclass(frozen=True, kw_only=True)
class _Resource(_Record):
    name: str
    created: str
    updated: str
    fields: dict[str, Any]
    metageneration: int = 1

    def changed(self: R, fields: dict[str, Any], now: str) -> R:
        return replace(self, fields=fields, metageneration=self.metageneration + 1, updated=now)


@dataclass(frozen=True, kw_only=True)
class Bucket(_Resource):
    @property
    def versioned(self) -> bool:
        """Whether an object that is replaced or deleted stays as a noncurrent generation."""
        return bool((self.fields.get("versioning") or {}).get("enabled"))

    @property
    def storage_class(self) -> str:
        """The class of its objects, unless an upload names another one."""
        return str(self.fields.get("storageClass", _DEFAULT_CLASS))

    @property
    def location(self) -> str:
        return str(self.fields.get("location", _DEFAULT_LOCATION)).upper()


@dataclass(frozen=True, kw_only=True)
class Object(_Resource):
    """One generation of an object; `blob` is the file of its bytes, `deleted` is set for a noncurrent one."""

    bucket: str
    generation: int
    blob: str
    size: int
    crc32c: str
    md5: str | None
    deleted: str | None = None
    components: int | None = None

    @property
    def storage_class(self) -> str:
        return str(self.fields.get("storageClass", _DEFAULT_CLASS))

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()


@dataclass(frozen=True, kw_only=True)
class UploadSession(_Record):
    """A resumable upload: its target, preconditions and hashes, and in the end the resource of the object."""

    id: str
    bucket: str
    name: str
    blob: str
    fields: dict[str, Any]
    query: dict[str, str]
    declared: list[list[str]] = field(default_factory=list)
    total: int | None = None
    finished: dict[str, Any] | None = None


def timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def object_resource(record: Object, base_url: str) -> dict[str, Any]:
    path = f"b/{quote(record.bucket, safe='')}/o/{quote(record.name, safe='')}"
    resource = {
        "kind": "storage#object",
        "id": f"{record.bucket}/{record.name}/{record.generation}",
        "selfLink": f"{base_url}/storage/v1/{path}",
        "mediaLink": f"{base_url}/download/storage/v1/{path}?generation={record.generation}&alt=media",
        "name": record.name,
        "bucket": record.bucket,
        "generation": str(record.generation),
        "metageneration": str(record.metageneration),
        "storageClass": record.storage_class,
        "size": str(record.size),
        "md5Hash": record.md5,
        "crc32c": record.crc32c,
        "etag": record.etag,
        "timeCreated": record.created,
        "updated": record.updated,
        "timeStorageClassUpdated": record.created,
        "timeFinalized": record.created,
        "timeDeleted": record.deleted,
        "componentCount": record.components,
        **record.fields,
    }
    return {name: value for name, value in resource.items() if value is not None}


def bucket_resource(bucket: Bucket, base_url: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base_url}/storage/v1/b/{bucket.name}",
        "name": bucket.name,
        "projectNumber": "0",
        "metageneration": str(bucket.metageneration),
        "etag": base64.b64encode(str(bucket.metageneration).encode()).decode(),
        "timeCreated": bucket.created,
        "updated": bucket.updated,
        "location": bucket.location,
        "storageClass": bucket.storage_class,
        # The default of the real service, which `doctor` has to find here too.
        "softDeletePolicy": {"retentionDurationSeconds": str(_SOFT_DELETE_S), "effectiveTime": bucket.created},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "inherited"},
        **bucket.fields,
        "locationType": location_type(bucket),
    }


def location_type(bucket: Bucket) -> str:
    """Return "zone" for a Rapid bucket, else the kind of its location."""
    if str(bucket.fields.get("storageClass", "")).upper() == "RAPID":
        return "zone"
    if bucket.fields.get("customPlacementConfig") or bucket.location in DUAL_REGIONS:
        return "dual-region"
    return "multi-region" if bucket.location in MULTI_REGIONS else "region"


def merge_patch(old: dict[str, Any], changes: dict[str, Any], outputs: frozenset[str]) -> dict[str, Any]:
    """Return the fields after a PATCH: null removes a field, an object is merged into the old one."""
    result = dict(old)
    for name, value in changes.items():
        if name in outputs:
            continue
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            before = result.get(name)
            result[name] = merge_patch(before if isinstance(before, dict) else {}, value, frozenset())
        else:
            result[name] = value
    return result
