"""The metadata server: the part that client libraries and training programs use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import PlainTextResponse, Response

from .environment import project_number
from .errors import VertexApiError

PATH = "/computeMetadata/v1/"
_FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_TOKEN_S = 3599


def is_metadata_request(path: str, headers: Mapping[str, str]) -> bool:
    """Return whether a path is the metadata server's: one of its own, or the root by which clients detect it."""
    return path.startswith("/computeMetadata") or (path == "/" and "metadata-flavor" in headers)


def respond(
    path: str, headers: Mapping[str, str], query: Mapping[str, str], *, project: str, account: str, preempted: bool
) -> Response:
    """Return the answer."""
    if headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in headers:
        text = "Your client does not have permission to get this URL: it needs the header Metadata-Flavor: Google."
        return PlainTextResponse(text, 403, _FLAVOR)
    if path in ("/", "/computeMetadata", "/computeMetadata/", PATH.rstrip("/"), PATH):
        return PlainTextResponse("computeMetadata/\n", 200, _FLAVOR)
    email = account or f"service-{project}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
    found: Any = _tree(project, email, preempted=preempted)
    for part in path.removeprefix(PATH).strip("/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    if found is None:
        raise VertexApiError(404, f"The metadata server has no {path!r}.", headers=_FLAVOR)
    if isinstance(found, _Json):
        return Response(json.dumps(found), 200, _FLAVOR, "application/json")
    if not isinstance(found, dict):
        return PlainTextResponse(str(found), 200, _FLAVOR)
    if query.get("recursive", "").lower() == "true":
        shown = {name: value for name, value in found.items() if not isinstance(value, _Json)}
        return Response(json.dumps(shown), 200, _FLAVOR, "application/json")
    lines = "".join(f"{name}/\n" if isinstance(value, dict) else f"{name}\n" for name, value in found.items())
    return PlainTextResponse(lines, 200, _FLAVOR)


class _Json(dict[str, Any]):
    """A leaf that is JSON itself."""


def _tree(project: str, email: str, *, preempted: bool) -> dict[str, Any]:
    account = {
        "aliases": ["default"],
        "email": email,
        "scopes": [_SCOPES],
        "token": _Json(access_token="podlift-emulator", expires_in=_TOKEN_S, token_type="Bearer"),  # noqa: S106
    }
    # As in the cloud, a job runs in a project of Google's, and a program that takes it for the user's own fails.
    tenant = project_number(f"{project}-tp")
    return {
        "project": {"project-id": f"t{tenant}-tp", "numeric-project-id": tenant},
        "instance": {
            "service-accounts": {"default": account, email: account},
            "preempted": "TRUE" if preempted else "FALSE",
        },
        "universe": {"universe-domain": "googleapis.com", "universe_domain": "googleapis.com"},
    }
