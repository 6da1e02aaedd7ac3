"""Sends the request of a job to its target, which is this emulator or another server of this machine, never the internet."""

from __future__ import annotations

import base64
import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

_GOOGLE = re.compile(
    r"(?:(?P<region>[a-z]+-[a-z]+[0-9]+)-)?aiplatform\.googleapis\.com"
    r"|(?:storage|www|logging|cloudscheduler)\.googleapis\.com"
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOCATION = re.compile(r"/v1/projects/[^/]+/locations/([^/]+)/")
# Of google.rpc.Code, by the status of HTTP.
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 429: 8, 499: 1, 500: 13, 501: 12, 503: 14, 504: 4}
_UNKNOWN, _FAILED_PRECONDITION, _INTERNAL = 2, 9, 13
DEADLINE_EXCEEDED, UNAVAILABLE = 4, 14
_MAX_TEXT = 1000
# As Google's services answer a request without a token, and one with an OIDC token.
_NO_CREDENTIAL = "Request is missing required authentication credential. Expected OAuth 2 access token."


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a request: the code of google.rpc.Status, the status of HTTP or 0 for none, and the start of its text."""

    code: int
    http_status: int = 0
    text: str = ""

    @classmethod
    def of(cls, status: int, text: str = "") -> Outcome:
        if 200 <= status < 300:
            return cls(code=0, http_status=status, text=text)
        other = _UNKNOWN if status < 400 else _FAILED_PRECONDITION if status < 500 else _INTERNAL
        return cls(code=_CODES.get(status, other), http_status=status, text=text)


def refusal(uri: str) -> str:
    """Return why nothing is ever sent to this URI, "" if it is."""
    parts = _split(uri)
    if parts is None or not parts.hostname:
        return f"This is not a URI: {uri[:100]!r}."
    if parts.hostname in _LOOPBACK and parts.scheme == "http":
        return ""
    if _GOOGLE.fullmatch(parts.hostname) and parts.scheme == "https" and parts.port in (None, 443):
        # The administration of the emulator itself has no address at Google.
        return "" if not unquote(parts.path).startswith("/_") else f"Google serves no such path: {parts.path[:100]!r}."
    return (
        "podlift's emulator of Cloud Scheduler sends requests to https://REGION-aiplatform.googleapis.com and the other "
        f"services that it emulates, and to http://localhost, never to the internet. Received: {uri[:100]!r}."
    )


def send(target: Mapping[str, Any], headers: Mapping[str, str], own_url: str, deadline_s: float) -> Outcome:
    """Send the request of a target; `headers` come from the service. `own_url` is the emulator's, with its token."""
    uri, own = urlsplit(target["uri"]), urlsplit(own_url)
    match = _GOOGLE.fullmatch(uri.hostname or "")
    if match is not None:
        location = _LOCATION.match(uri.path)
        if match["region"] and location and location[1] != match["region"]:
            return Outcome.of(400, f"{uri.hostname} does not serve the location {location[1]}.")
    host, port = (own.hostname, own.port) if match else (uri.hostname, uri.port or 80)
    path = f"{uri.path or '/'}{'?' if uri.query else ''}{uri.query}"
    all_headers = {**target.get("headers", {}), **headers}
    if "oauthToken" in target:
        # Only the emulator itself gets its token; it checks it as it checks the token of any client.
        all_headers["Authorization"] = f"Bearer {own.path.strip('/') if match else 'podlift-emulator'}"
    elif match and "authorization" not in {name.lower() for name in all_headers}:
        return Outcome.of(401, _NO_CREDENTIAL)
    elif "oidcToken" in target:
        all_headers["Authorization"] = "Bearer podlift-emulator-oidc"
    connection = http.client.HTTPConnection(host or "", port, timeout=deadline_s)
    try:
        body = base64.b64decode(target["body"]) if "body" in target else None
        connection.request(target["httpMethod"], path, body, all_headers)
        answer = connection.getresponse()
        return Outcome.of(answer.status, answer.read(_MAX_TEXT).decode("utf-8", "replace"))
    except TimeoutError:
        return Outcome(code=DEADLINE_EXCEEDED, text=f"There was no answer within {deadline_s:g} s.")
    except (OSError, http.client.HTTPException) as error:
        return Outcome(code=UNAVAILABLE, text=f"{type(error).__name__}: {error}")
    finally:
        connection.close()


def _split(uri: str) -> SplitResult | None:
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018
    except ValueError:
        return None
    # Characters that http.client would reject, or that would end a line of the request.
    return None if re.search(r"[^\x21-\x7e]", uri) else parts
