"""What is stored about buckets, objects and unfinished uploads, and how the real service would describe it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, TypeVar
from urllib.parse import quote

from .names import words

T = TypeVar("T", bound="_Record")
# The service tells these; a client that sends them back with a resource does not set them.
OBJECT_OUTPUT_FIELDS = words(
    "kind id selfLink mediaLink name bucket generation metageneration size md5Hash crc32c etag timeCreated updated timeDeleted"
    " timeFinalized timeStorageClassUpdated componentCount owner acl softDeleteTime hardDeleteTime retentionExpirationTime"
)
BUCKET_OUTPUT_FIELDS = words(
    "kind id selfLink name metageneration etag timeCreated updated projectNumber locationType generation acl"
    " defaultObjectAcl owner"
)
_MULTI_REGIONS = {"US", "EU", "ASIA"}
_SOFT_DELETE_S = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class _Record:
    def to_json(self) -> str:
        """Return the record as text; `from_json` reads it."""
        return json.dumps(vars(self), ensure_ascii=False)

    @classmethod
    def from_json(cls: type[T], text: str) -> T:
        """Return the record that `to_json` wrote."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


@dataclass(frozen=True, kw_only=True)
class Bucket(_Record):
    """A bucket; `fields` holds what its owner has set."""

    name: str
    metageneration: int
    created: str
    updated: str
    fields: dict[str, Any]

    @property
    def versioned(self) -> bool:
        """True if an object that is replaced or deleted stays as an old generation."""
        return bool((self.fields.get("versioning") or {}).get("enabled"))


@dataclass(frozen=True, kw_only=True)
class Object(_Record):
    """One generation of an object; `blob` is the file of its bytes, `deleted` is set for one that is not live any more."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    blob: str
    size: int
    crc32c: str
    md5: str | None
    created: str
    updated: str
    fields: dict[str, Any]
    deleted: str | None = None
    components: int | None = None

    @property
    def etag(self) -> str:
        """What changes with the bytes and with the metadata."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()


@dataclass(frozen=True, kw_only=True)
class UploadSession(_Record):
    """A resumable upload: where it goes, on which conditions, with which hashes, and in the end the object that it became."""

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
    """Return a Unix time as the service writes it."""
    return datetime.fromtimestamp(time_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def object_resource(found: Object, base_url: str) -> dict[str, Any]:
    """Return the object as the JSON API describes it."""
    path = f"b/{quote(found.bucket, safe='')}/o/{quote(found.name, safe='')}"
    told = {
        "kind": "storage#object",
        "id": f"{found.bucket}/{found.name}/{found.generation}",
        "selfLink": f"{base_url}/storage/v1/{path}",
        "mediaLink": f"{base_url}/download/storage/v1/{path}?generation={found.generation}&alt=media",
        "name": found.name,
        "bucket": found.bucket,
        "generation": str(found.generation),
        "metageneration": str(found.metageneration),
        "storageClass": "STANDARD",
        "size": str(found.size),
        "md5Hash": found.md5,
        "crc32c": found.crc32c,
        "etag": found.etag,
        "timeCreated": found.created,
        "updated": found.updated,
        "timeStorageClassUpdated": found.created,
        "timeFinalized": found.created,
        "timeDeleted": found.deleted,
        "componentCount": found.components,
        **found.fields,
    }
    return {name: value for name, value in told.items() if value is not None}


def bucket_resource(found: Bucket, base_url: str) -> dict[str, Any]:
    """Return the bucket as the JSON API describes it."""
    return {
        "kind": "storage#bucket",
        "id": found.name,
        "selfLink": f"{base_url}/storage/v1/b/{found.name}",
        "name": found.name,
        "projectNumber": "0",
        "metageneration": str(found.metageneration),
        "etag": base64.b64encode(str(found.metageneration).encode()).decode(),
        "timeCreated": found.created,
        "updated": found.updated,
        "location": "US",
        "storageClass": "STANDARD",
        # As the real service does for whoever says nothing: `doctor` has to find it here too.
        "softDeletePolicy": {"retentionDurationSeconds": str(_SOFT_DELETE_S), "effectiveTime": found.created},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "inherited"},
        **found.fields,
        "locationType": location_type(found),
    }


def location_type(found: Bucket) -> str:
    """Return "zone" for a Rapid bucket, else what its location is."""
    if str(found.fields.get("storageClass", "")).upper() == "RAPID":
        return "zone"
    if found.fields.get("customPlacementConfig"):
        return "dual-region"
    return "multi-region" if str(found.fields.get("location", "US")).upper() in _MULTI_REGIONS else "region"


def merge_patch(old: dict[str, Any], changes: dict[str, Any], outputs: frozenset[str]) -> dict[str, Any]:
    """Return the fields after a PATCH: null removes a field, an object is merge_patch into the old one."""
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
