"""Validates the settable fields of objects and buckets: every field is known and of its type, or all mistakes are reported.

Pure. An emulator that ignores a misspelt field would let a test pass that does something else in the cloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...backends.vertex.checks import job_rules
from ...checks import buckets
from ...errors import nearest
from ..errors import is_label, words
from .errors import invalid, not_emulated
from .records import BUCKET_OUTPUT_FIELDS, DUAL_REGIONS, MULTI_REGIONS, OBJECT_OUTPUT_FIELDS

_OBJECT_TEXTS = words("cacheControl contentDisposition contentEncoding contentLanguage contentType storageClass")
# The real service enforces these; storing them without enforcing them would be misleading.
_OBJECT_REFUSED = words("customTime temporaryHold eventBasedHold retention kmsKeyName customerEncryption contexts")
_OBJECT = _OBJECT_TEXTS | _OBJECT_REFUSED | OBJECT_OUTPUT_FIELDS | {"metadata"}
_BUCKET_REFUSED = words("retentionPolicy encryption objectRetention ipFilter billing defaultEventBasedHold")
_INNER = {
    "autoclass": words("enabled toggleTime terminalStorageClass terminalStorageClassUpdateTime"),
    "customPlacementConfig": words("dataLocations"),
    "hierarchicalNamespace": words("enabled"),
    "iamConfiguration": words("uniformBucketLevelAccess bucketPolicyOnly publicAccessPrevention"),
    "lifecycle": words("rule"),
    "logging": words("logBucket logObjectPrefix"),
    "softDeletePolicy": words("retentionDurationSeconds effectiveTime"),
    "versioning": words("enabled"),
    "website": words("mainPageSuffix notFoundPage"),
}
_BUCKET = (
    _INNER.keys()
    | _BUCKET_REFUSED
    | BUCKET_OUTPUT_FIELDS
    | words("cors labels location storageClass rpo satisfiesPZI satisfiesPZS")
)
_CLASSES = words("STANDARD NEARLINE COLDLINE ARCHIVE REGIONAL MULTI_REGIONAL DURABLE_REDUCED_AVAILABILITY RAPID")
# https://cloud.google.com/storage/docs/locations (read 2026-11).
_REGIONS = words(
    "AFRICA-SOUTH1 ASIA-EAST1 ASIA-EAST2 ASIA-NORTHEAST1 ASIA-NORTHEAST2 ASIA-NORTHEAST3 ASIA-SOUTH1 ASIA-SOUTH2"
    " ASIA-SOUTHEAST1 ASIA-SOUTHEAST2 ASIA-SOUTHEAST3 AUSTRALIA-SOUTHEAST1 AUSTRALIA-SOUTHEAST2 EUROPE-CENTRAL2"
    " EUROPE-NORTH1 EUROPE-NORTH2 EUROPE-SOUTHWEST1 EUROPE-WEST1 EUROPE-WEST2 EUROPE-WEST3 EUROPE-WEST4 EUROPE-WEST6"
    " EUROPE-WEST8 EUROPE-WEST9 EUROPE-WEST10 EUROPE-WEST12 ME-CENTRAL1 ME-CENTRAL2 ME-WEST1 NORTHAMERICA-NORTHEAST1"
    " NORTHAMERICA-NORTHEAST2 NORTHAMERICA-SOUTH1 SOUTHAMERICA-EAST1 SOUTHAMERICA-WEST1 US-CENTRAL1 US-EAST1"
    " US-EAST4 US-EAST5 US-SOUTH1 US-WEST1 US-WEST2 US-WEST3 US-WEST4"
)
_LOCATIONS = _REGIONS | MULTI_REGIONS | DUAL_REGIONS
_ACTIONS = words("Delete SetStorageClass AbortIncompleteMultipartUpload")
# Of lifecycle rules, which are stored and reported, and not applied.
_CONDITIONS = words(
    "age createdBefore customTimeBefore daysSinceCustomTime daysSinceNoncurrentTime isLive matchesPrefix matchesStorageClass"
    " matchesSuffix noncurrentTimeBefore numNewerVersions"
)
_MAX_LABELS, _MAX_LABEL_CHARACTERS = 64, 63
_MAX_METADATA_BYTES = 8 << 10
_SOFT_DELETE_DAYS = (7, 90)
_PREVENTIONS = ("enforced", "inherited")
_MAX_OBJECT_BYTES = 1024


def object_fields(resource: object) -> dict[str, Any]:
    if not isinstance(resource, dict):
        raise invalid(f"The resource of an object is an object of JSON. Received: {resource!r}.")
    problems = _unknown("an object", resource, _OBJECT)
    for name in sorted(_OBJECT_TEXTS & resource.keys()):
        if not isinstance(resource[name], (str, type(None))):
            problems.append(f"The field {name!r} of an object is a string. Received: {resource[name]!r}.")
    problems += _class_problems(resource)
    custom = resource.get("metadata")
    if custom is not None and not (
        isinstance(custom, dict) and all(value is None or isinstance(value, str) for value in custom.values())
    ):
        problems.append(f"The metadata of an object map names to strings. Received: {custom!r}.")
    else:
        problems += metadata_problems(custom or {})
    _refuse(problems, "an object", resource, _OBJECT_REFUSED)
    fields = {name: value for name, value in resource.items() if value is not None and name not in OBJECT_OUTPUT_FIELDS}
    return {name: value.upper() if name == "storageClass" else value for name, value in fields.items()}


def metadata_problems(custom: Mapping[str, str | None]) -> list[str]:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for pair in custom.items() for text in pair if text)
    if size <= _MAX_METADATA_BYTES:
        return []
    return [
        f"Your metadata headers exceed the maximum allowed metadata size: {_MAX_METADATA_BYTES} bytes of names and values. "
        f"Received: {size}."
    ]


def check_bucket_fields(body: Mapping[str, Any]) -> None:
    problems = [*_unknown("a bucket", body, _BUCKET), *_class_problems(body), *_label_problems(body.get("labels"))]
    for name in sorted(_INNER.keys() & body.keys()):
        if isinstance(body[name], dict):
            problems += _unknown(f"{name} of a bucket", body[name], _INNER[name])
        elif body[name] is not None:
            problems.append(f"The field {name!r} of a bucket is an object. Received: {body[name]!r}.")
    versioned = body["versioning"].get("enabled") if isinstance(body.get("versioning"), dict) else None
    if versioned not in (None, True, False):
        problems.append(f"versioning.enabled of a bucket is true or false. Received: {versioned!r}.")
    problems += [*_location_problems(body), *_soft_delete_problems(body), *_access_problems(body)]
    problems += _lifecycle_problems(body.get("lifecycle"))
    _refuse(problems, "a bucket", body, _BUCKET_REFUSED)
    if isinstance(body.get("hierarchicalNamespace"), dict) and body["hierarchicalNamespace"].get("enabled"):
        raise not_emulated("buckets with a hierarchical namespace")


def check_fields(what: str, value: object, allowed: str) -> None:
    """Validate the names of the fields of one object of a body; `allowed` are the names for `what`, separated by spaces."""
    if not isinstance(value, dict):
        raise invalid(f"A value of {what} is an object. Received: {value!r}.")
    _refuse(_unknown(what, value, words(allowed)), what, {}, ())


def _unknown(what: str, resource: Mapping[str, Any], allowed: Iterable[str]) -> list[str]:
    names = sorted(allowed)
    return [f"Unknown name {name!r} in {what}. {nearest(name, names)}" for name in resource if name not in names]


def _refuse(problems: list[str], what: str, resource: Mapping[str, Any], refused: Iterable[str]) -> None:
    if problems:
        raise invalid(" ".join(problems))
    for name in sorted(refused):
        if resource.get(name):
            raise not_emulated(f"the field {name!r} of {what}")


def _class_problems(resource: Mapping[str, Any]) -> list[str]:
    name = resource.get("storageClass")
    if name is None or (isinstance(name, str) and name.upper() in _CLASSES):
        return []
    return [f"Invalid storage class: {name!r}. {nearest(str(name).upper(), sorted(_CLASSES))}"]


def _soft_delete_problems(resource: Mapping[str, Any]) -> list[str]:
    policy = resource.get("softDeletePolicy")
    retention = policy.get("retentionDurationSeconds") if isinstance(policy, dict) else None
    seconds, (low, high) = job_rules.number(retention), _SOFT_DELETE_DAYS
    if retention is None or seconds == 0 or (seconds is not None and low * 86_400 <= seconds <= high * 86_400):
        return []
    field, days = "softDeletePolicy.retentionDurationSeconds", f"{low} to {high} days"
    return [f"{field} of a bucket is 0, or from {low * 86_400} to {high * 86_400} ({days}). Received: {retention!r}."]


def _access_problems(resource: Mapping[str, Any]) -> list[str]:
    access = resource.get("iamConfiguration")
    access = access if isinstance(access, dict) else {}
    problems = []
    if access.get("publicAccessPrevention") not in (None, *_PREVENTIONS):
        hint = nearest(str(access["publicAccessPrevention"]), _PREVENTIONS)
        problems.append(f"publicAccessPrevention of a bucket: {hint} Received: {access['publicAccessPrevention']!r}.")
    uniform = access.get("uniformBucketLevelAccess")
    enabled = uniform.get("enabled") if isinstance(uniform, dict) else uniform
    if enabled not in (None, True, False):
        problems.append(f"uniformBucketLevelAccess.enabled of a bucket is true or false. Received: {enabled!r}.")
    return problems


def _location_problems(resource: Mapping[str, Any]) -> list[str]:
    inner = resource.get("customPlacementConfig")
    locations = inner.get("dataLocations") if isinstance(inner, dict) else None
    if locations is not None and not (isinstance(locations, list) and 1 <= len(locations) <= 2):
        return [f"dataLocations of a bucket are two regions, or a zone. Received: {locations!r}."]
    problems = []
    for location in [resource.get("location"), *(locations or [])]:
        name = str(location).upper()
        is_zone = name[-2:-1] == "-" and name[:-2] in _REGIONS and location != resource.get("location")
        if location is not None and name not in _LOCATIONS and not is_zone:
            problems.append(
                f"The specified location constraint is not valid: {location!r}. {nearest(name, sorted(_LOCATIONS))}"
            )
    return problems


def _lifecycle_problems(lifecycle: object) -> list[str]:
    rules = lifecycle.get("rule") if isinstance(lifecycle, dict) else None
    if rules is None:
        return []
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        return [f"lifecycle.rule of a bucket is a list of objects. Received: {str(rules)[:100]}."]
    problems = []
    for number, rule in enumerate(rules):
        where, action, condition = f"lifecycle.rule[{number}]", rule.get("action"), rule.get("condition")
        problems += _unknown(where, rule, ("action", "condition"))
        kind = str(action.get("type") if isinstance(action, dict) else action)
        if not isinstance(action, dict) or kind not in _ACTIONS:
            problems.append(
                f"{where} needs an action with a type: {nearest(kind, sorted(_ACTIONS))} Received: {action!r}."
            )
        else:
            problems += _unknown(f"the action of {where}", action, ("type", "storageClass"))
        if isinstance(condition, dict) and condition:
            problems += _unknown(f"the condition of {where}", condition, _CONDITIONS)
        else:
            problems.append(f"{where} needs at least one condition. Received: {condition!r}.")
    return problems


def _label_problems(labels: object) -> list[str]:
    if labels is None:
        return []
    if not isinstance(labels, dict) or len(labels) > _MAX_LABELS:
        return [f"The labels of a bucket map at most {_MAX_LABELS} names to strings. Received: {labels!r}."]
    problems = []
    for name, text in labels.items():
        is_text = text is None or (isinstance(text, str) and is_label(text, _MAX_LABEL_CHARACTERS))
        if not (name[:1].isalpha() and is_label(name, _MAX_LABEL_CHARACTERS) and is_text):
            problems.append(
                f"Invalid label: {name!r}: {text!r}. Both have at most {_MAX_LABEL_CHARACTERS} lowercase letters, digits, "
                "dashes and underscores, and the name begins with a letter."
            )
    return problems


def check_bucket(name: object) -> str:
    wrong = buckets.name_problem(name) if isinstance(name, str) else "is a string"
    if wrong or not isinstance(name, str):
        raise invalid(f"Invalid bucket name: {name!r}. The name of a bucket {wrong}.")
    return name


def check_object(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise invalid("Required: an object's name.")
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        length = _MAX_OBJECT_BYTES + 1
    bad = "\r" in name or "\n" in name or name in (".", "..") or name.startswith(".well-known/acme-challenge/")
    if bad or length > _MAX_OBJECT_BYTES:
        raise invalid(
            f"Invalid object name: {name[:100]!r}. It has 1 to {_MAX_OBJECT_BYTES} bytes of UTF-8 without line ends, and is "
            "neither '.' nor '..'."
        )
    return name
