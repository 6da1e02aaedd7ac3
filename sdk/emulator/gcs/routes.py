"""The operation of a request, from its method, path and query.

An unknown parameter is an error: an emulator that ignores a misspelt precondition would let a test pass that loses data
in the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from ...errors import nearest
from ..errors import words
from .errors import StorageApiError, invalid, not_emulated

_META = words("ifMetagenerationMatch ifMetagenerationNotMatch")
_CONDITIONS = _META | words("ifGenerationMatch ifGenerationNotMatch")
_SOURCE = frozenset(name.replace("if", "ifSource", 1) for name in _CONDITIONS)
# Access control and the form of the answer: the emulator has no access control, and always answers in full.
_HARMLESS = words(
    "alt fields prettyPrint projection key quotaUser userProject userIp callback access_token oauth_token $.xgafv"
    " predefinedAcl predefinedDefaultObjectAcl destinationPredefinedAcl"
)
_COPY = _CONDITIONS | _SOURCE | {"sourceGeneration"}
_REWRITE = _COPY | words("rewriteToken maxBytesRewrittenPerCall")
_FOLDERS = _META | words("prefix pageSize pageToken")
# includeFoldersAsPrefixes is about managed folders, and there are none.
_LIST = words(
    "prefix delimiter maxResults pageToken startOffset endOffset versions includeTrailingDelimiter matchGlob softDeleted"
    " includeFoldersAsPrefixes"
)
_UPLOAD = _CONDITIONS | {"name", "uploadType", "upload_id", "contentEncoding"}
_ONE = _CONDITIONS | {"generation"}
# Operation, method, path below /storage/v1/b, parameters.
_ROUTES = (
    ("buckets.list", "GET", "", words("project prefix maxResults pageToken")),
    ("buckets.insert", "POST", "", words("project enableObjectRetention")),
    ("buckets.get", "GET", "{bucket}", _META),
    ("buckets.patch", "PATCH", "{bucket}", _META),
    ("buckets.update", "PUT", "{bucket}", _META),
    ("buckets.delete", "DELETE", "{bucket}", _META),
    ("buckets.layout", "GET", "{bucket}/storageLayout", words("prefix")),
    ("buckets.permissions", "GET", "{bucket}/iam/testPermissions", words("permissions")),
    ("buckets.policy", "GET", "{bucket}/iam", words("optionsRequestedPolicyVersion")),
    ("buckets.set_policy", "PUT", "{bucket}/iam", words("")),
    ("buckets.managed_folders", "GET", "{bucket}/managedFolders", _FOLDERS),
    ("buckets.managed_folders", "GET", "{bucket}/managedFolders/{object}", _FOLDERS),
    ("buckets.folders", "GET", "{bucket}/folders", _FOLDERS | words("delimiter startOffset endOffset")),
    ("buckets.folders", "GET", "{bucket}/folders/{object}", _FOLDERS | words("delimiter startOffset endOffset")),
    ("objects.list", "GET", "{bucket}/o", _LIST),
    ("objects.get", "GET", "{bucket}/o/{object}", _ONE | {"softDeleted"}),
    ("objects.patch", "PATCH", "{bucket}/o/{object}", _ONE),
    ("objects.update", "PUT", "{bucket}/o/{object}", _ONE),
    ("objects.delete", "DELETE", "{bucket}/o/{object}", _ONE),
    ("objects.compose", "POST", "{bucket}/o/{object}/compose", _CONDITIONS),
    ("objects.rewrite", "POST", "{bucket}/o/{object}/rewriteTo/b/{to_bucket}/o/{to_object}", _REWRITE),
    ("objects.copy", "POST", "{bucket}/o/{object}/copyTo/b/{to_bucket}/o/{to_object}", _COPY),
    ("objects.move", "POST", "{bucket}/o/{object}/moveTo/o/{to_object}", _CONDITIONS | _SOURCE),
)
PARAMETERS = {
    **{operation: parameters for operation, _, _, parameters in _ROUTES},
    **dict.fromkeys(("objects.insert", "uploads.start", "uploads.chunk", "uploads.status", "uploads.cancel"), _UPLOAD),
    **dict.fromkeys(("batch", "xml.put"), words("")),
    **dict.fromkeys(("xml.get", "xml.delete"), words("generation")),
    **dict.fromkeys(("xml.complete", "xml.abort"), words("uploadId")),
    "xml.start": words("uploads"),
    "xml.part": words("partNumber uploadId"),
    "objects.download": _ONE,
}


@dataclass(frozen=True, kw_only=True)
class StorageRoute:
    """The operation and its target; the object of an upload may be named in its body only."""

    operation: str
    bucket: str = ""
    object: str = ""
    to_bucket: str = ""
    to_object: str = ""


def find(method: str, raw_path: bytes, query: Mapping[str, str], headers: Mapping[str, str]) -> StorageRoute:
    route = _find(method, _parts(raw_path), query, headers)
    allowed = PARAMETERS[route.operation] | (_HARMLESS if not route.operation.startswith("xml.") else frozenset())
    for name in query:
        if name not in allowed:
            raise invalid(f"{route.operation} has no parameter {name!r}. {nearest(name, sorted(allowed))}")
    for name in headers:
        if name.startswith("x-goog-encryption-") or name.startswith("x-goog-copy-source"):
            raise not_emulated(f"the header {name!r}")
    return route


def _parts(raw_path: bytes) -> list[str]:
    """Return the decoded parts; split before decoding, because a slash within a name is written %2F."""
    try:
        return [unquote_to_bytes(part).decode("utf-8") for part in raw_path.lstrip(b"/").split(b"/")]
    except UnicodeDecodeError:
        raise invalid("The path is not UTF-8.") from None


def _find(method: str, parts: list[str], query: Mapping[str, str], headers: Mapping[str, str]) -> StorageRoute:
    if parts[:1] == ["resumable"]:
        parts = parts[1:]
    if parts[0] == "batch":
        return StorageRoute(operation="batch")
    if parts[:4] == ["upload", "storage", "v1", "b"] and len(parts) == 6 and parts[5] == "o":
        return StorageRoute(operation=_upload(method, query, headers), bucket=parts[4], object=query.get("name", ""))
    if parts[:3] == ["download", "storage", "v1"]:
        parts, query = parts[1:], {**query, "alt": "media"}
    if parts[:2] == ["storage", "v1"] and parts[2:3] == ["b"]:
        return _json(method, parts[3:], query)
    if parts[0] in ("storage", "upload", "download"):
        raise not_emulated(f"{method} /{'/'.join(parts)}")
    return _xml(method, parts, query)


def _upload(method: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    kind = query.get("uploadType")
    if "upload_id" in query:
        if method == "DELETE":
            return "uploads.cancel"
        if method in ("PUT", "POST"):
            status = headers.get("content-range", "").strip() == "bytes */*"
            return "uploads.status" if status else "uploads.chunk"
    elif method in ("POST", "PUT"):
        if kind == "resumable":
            return "uploads.start"
        if kind in ("media", "multipart"):
            return "objects.insert"
        raise invalid(f"uploadType is media, multipart or resumable. Received: {kind!r}.")
    raise StorageApiError(405, f"{method} is not a method of an upload.")


def _json(method: str, parts: list[str], query: Mapping[str, str]) -> StorageRoute:
    parts = parts[:-1] if parts[-1:] == [""] else parts
    for operation, verb, template, _ in _ROUTES:
        names = _matched(template.split("/"), parts or [""]) if verb == method else None
        if names is not None:
            is_download = operation == "objects.get" and query.get("alt") == "media"
            return StorageRoute(operation="objects.download" if is_download else operation, **names)
    raise not_emulated(f"{method} /storage/v1/b/{'/'.join(parts)}")


def _matched(template: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(template) != len(parts):
        return None
    names = {}
    for pattern, part in zip(template, parts, strict=True):
        if pattern.startswith("{") and part:
            names[pattern[1:-1]] = part
        elif pattern != part:
            return None
    return names


def _xml(method: str, parts: list[str], query: Mapping[str, str]) -> StorageRoute:
    bucket, name = parts[0], "/".join(parts[1:])
    operation = {"GET": "xml.get", "HEAD": "xml.get", "PUT": "xml.put", "DELETE": "xml.delete"}.get(method)
    if method == "POST" and "uploads" in query:
        operation = "xml.start"
    elif "uploadId" in query:
        operation = {"PUT": "xml.part", "POST": "xml.complete", "DELETE": "xml.abort"}.get(method)
    if operation is None or not name:
        raise not_emulated(f"{method} /{'/'.join(parts)}")
    return StorageRoute(operation=operation, bucket=bucket, object=name)
