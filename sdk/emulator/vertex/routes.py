"""The operation of a request to Vertex AI or Cloud Logging, from its method, path and query. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ..gcs.names import words
from .errors import VertexApiError, invalid, not_emulated

_PLACE = re.compile(r"/v1/projects/([^/:]+(?::[^/:]+)?)/locations/([^/:]+)/(.*)", re.DOTALL)
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_HARMLESS = words("alt $alt prettyPrint $prettyPrint key quotaUser fields $.xgafv $httpMethod")
_QUOTA = re.compile(r"/v1beta1/projects/([^/:]+)/services/aiplatform\.googleapis\.com/consumerQuotaMetrics/([^/]+)")
_LIST = words("filter pageSize pageToken readMask")


@dataclass(frozen=True, kw_only=True)
class VertexRoute:
    """The operation, and the job or operation that it is about."""

    operation: str
    project: str = ""
    region: str = ""
    id: str = ""


def served(path: str) -> bool:
    """Return whether a path belongs to Vertex AI, Cloud Logging or Service Usage."""
    return path.startswith(("/v1/", "/v1beta1/", "/v2/"))


def find(method: str, path: str, query: Mapping[str, str]) -> VertexRoute:
    """Return the operation of a request."""
    if (method, path) == ("POST", "/v2/entries:list"):
        return VertexRoute(operation="entries.list")
    quota = _QUOTA.fullmatch(path)
    if quota is not None and method == "GET":
        return VertexRoute(operation="quotas.get", project=unquote(quota[1]), id=unquote(quota[2]))
    match = _PLACE.fullmatch(path)
    if match is None:
        raise not_emulated(f"{method} {path[:200]}")
    project, region, rest = unquote(match[1]), unquote(match[2]), unquote(match[3])
    operation, name = _operation(method, rest)
    if not operation:
        raise not_emulated(f"{method} {path[:200]}")
    if not _REGION.fullmatch(region):
        raise VertexApiError(400, f"Unsupported location: {region[:100]!r}. It is a region such as us-central1.")
    known = _HARMLESS | (_LIST if operation == "customJobs.list" else frozenset())
    for parameter in query:
        if parameter not in known:
            text = (
                f'Invalid JSON payload received. Unknown name "{parameter[:100]}": Cannot bind query parameter. '
                f"Field '{parameter[:100]}' could not be found in request message."
            )
            raise invalid([(parameter, text)])
    return VertexRoute(operation=operation, project=project, region=region, id=name)


def _operation(method: str, rest: str) -> tuple[str, str]:
    """Return the operation and the name in it; "" if there is none."""
    kind, _, name = rest.partition("/")
    if kind == "customJobs" and not name:
        return {"GET": "customJobs.list", "POST": "customJobs.create"}.get(method, ""), ""
    if "/" in name or not name:
        return "", ""
    if kind == "operations" and method == "GET":
        return "operations.get", name
    if kind != "customJobs":
        return "", ""
    if method == "POST":
        return ("customJobs.cancel", name.removesuffix(":cancel")) if name.endswith(":cancel") else ("", "")
    return {"GET": "customJobs.get", "DELETE": "customJobs.delete"}.get(method, ""), name
