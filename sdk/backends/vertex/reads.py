"""Requests that only look, to services beside Vertex AI: short timeouts, no retries, and the reason if there is no answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...storage import emulator
from . import client

PROJECTS = "https://cloudresourcemanager.googleapis.com"
ACCOUNTS = "https://iam.googleapis.com"
STORAGE = "https://storage.googleapis.com"
REPOSITORIES = "https://artifactregistry.googleapis.com"
BUILDS = "https://cloudbuild.googleapis.com"
APIS = "https://serviceusage.googleapis.com"
TROUBLESHOOTER = "https://policytroubleshooter.googleapis.com"
_TIMEOUT_S = (3.0, 8.0)
_NOT_ACCEPTED = 401


@dataclass(frozen=True, kw_only=True)
class ServiceReply:
    """A response; the status is 0 without one, and 401 without credentials. `error` says why there is nothing."""

    status: int
    found: Mapping[str, object] = field(default_factory=dict)
    error: str = ""

    def items(self, name: str) -> list[Mapping[str, object]]:
        """Return the objects of a list in the response."""
        return objects(self.found, name)


def objects(found: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """Return the objects of a list in another object; what is no object is left out."""
    listed = found.get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def read(host: str, path: str, body: Mapping[str, object] | None = None, *, project: str = "") -> ServiceReply:
    """Send a GET, or a POST of a body; the project is that to which a user's request is charged."""
    url = (emulator.checked_address() or host) + path
    try:
        more: dict[str, object] = {"json": body} if body is not None else {}
        session = client.session(url, project)
        response = session.request("GET" if body is None else "POST", url, timeout=_TIMEOUT_S, **more)
        found = response.json()
    except Exception as error:  # of any library for credentials: nothing is known then
        reason = str(error).partition(" Next:")[0].partition("\n")[0].rstrip(". ")
        auth: Any = sys.modules.get("google.auth.exceptions")
        if isinstance(error, client.VertexRejectedError):
            return ServiceReply(status=_NOT_ACCEPTED, error=reason)
        status = _NOT_ACCEPTED if auth is not None and isinstance(error, auth.RefreshError) else 0
        return ServiceReply(status=status, error=emulator.mask_token(f"{type(error).__name__}: {reason}"))
    if response.status_code == 200 and not isinstance(found, dict):
        return ServiceReply(status=0, error="the answer is no object")
    if response.status_code != 200:
        about = found.get("error") if isinstance(found, dict) else None
        text = about.get("message", "") if isinstance(about, dict) else ""
        return ServiceReply(
            status=response.status_code, error=f"{response.status_code}: {text or response.reason}".rstrip(".")
        )
    return ServiceReply(status=200, found=found)
