"""Who comes in: requests that have the token as the first part of their path, or as credentials. Others are refused unread.

Every user of the machine can reach a port of the loopback interface, and so can a page in this user's browser, under a name
of its own that leads there.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..process.redirect import tokens
from ..process.redirect.tokens import ReplicaIdentity
from .gcs.replies import Connections

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
# Their requests come through `gcs.redirect`; no page can make such a name lead here.
GOOGLE_HOSTS = ("www.googleapis.com", "storage.googleapis.com")
# In the scope of a request that was let in: what URLs of answers begin with, and which replica asks, if one does.
BASE, REPLICA = "podlift.base", "podlift.replica"
_UNKNOWN = (
    "This emulator answers those who know its token, which is the first part of the path of its URL. Received: a request "
    "{what}. Next: use the whole URL that podlift emulator has printed, http://127.0.0.1:PORT/TOKEN; the token is also in "
    "the file `token` of its data folder."
)


class AccessMiddleware:
    """The application that a server runs: it passes on who may come in, without the token in the path.

    Args:
        application: gets what is passed on.
        token: the emulator's.
        connections: those of the server; a client without the token is one of few that wait, for some seconds.
    """

    def __init__(self, application: ASGIApp, token: str, connections: Connections) -> None:
        self._application, self._token, self._connections = application, token, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        found = rejection_reason(scope) or self._authorized_scope(scope)
        if isinstance(found, str):
            await error_response(403, found)(scope, receive, send)
        elif not self._connections.admit(scope):
            await error_response(503, "Too many connections to this emulator are in use.")(scope, receive, send)
        else:
            await self._application(found, receive, send)

    def _authorized_scope(self, scope: Scope) -> Scope | str:
        """Return the scope to pass on, or why there is none."""
        first, slash, rest = scope["raw_path"].removeprefix(b"/").partition(b"/")
        given = first.decode("latin-1")
        base = "" if _header(scope, b"host") in GOOGLE_HOSTS else f"/{self._token}"
        if tokens.equal(given, self._token):
            # What is decoded already is cut by its own length: the token has no character that is written otherwise.
            path = scope["path"][1 + len(given) :] or "/"
            return {**scope, "path": path, "raw_path": (slash + rest) or b"/", BASE: base}
        if tokens.equal(_header(scope, b"authorization"), f"Bearer {self._token}"):
            return {**scope, BASE: base}
        replica = tokens.find_replica(self._token, given)
        if replica is None:
            return _UNKNOWN.format(what="with another one" if tokens.is_token(given) else "without it")
        path = scope["path"][1 + len(given) :] or "/"
        if path != "/" and not path.startswith("/computeMetadata"):
            return "The token of a replica opens the metadata server and nothing else."
        return {**scope, "path": path, "raw_path": (slash + rest) or b"/", BASE: f"/{given}", REPLICA: replica}


def rejection_reason(scope: Scope) -> str | None:
    """Return why a request of that name or from that page is not looked at; None if it may be."""
    host = _header(scope, b"host")
    if host.rpartition(":")[0] not in _LOOPBACK_HOSTS and host not in (*_LOOPBACK_HOSTS, *GOOGLE_HOSTS):
        return f"This emulator is called 127.0.0.1 or localhost. Received: Host: {host[:100]!r}."
    if _header(scope, b"origin") or _header(scope, b"sec-fetch-site") not in ("", "none", "same-origin"):
        return "This emulator does not talk to web pages."
    return None


def replica_identity(scope: Scope) -> ReplicaIdentity:
    """Return the replica that asks."""
    found: ReplicaIdentity = scope.get(REPLICA) or ReplicaIdentity()
    return found


def base_url(scope: Scope) -> str:
    """Return what the URLs in an answer begin with, so that their reader can follow them."""
    host = _header(scope, b"host")
    return f"{'https' if host in GOOGLE_HOSTS else 'http'}://{host}{scope.get(BASE, '')}"


def error_response(status: int, why: str) -> JSONResponse:
    """Return an answer after which the connection ends: what was not read of the request is not waited for."""
    reason = "forbidden" if status == 403 else "tooLarge" if status == 413 else "unavailable"
    about = {"message": why, "domain": "global", "reason": reason}
    return JSONResponse({"error": {"code": status, **about, "errors": [about]}}, status, {"Connection": "close"})


def _header(scope: Scope, name: bytes) -> str:
    return next((text.decode("latin-1") for each, text in scope["headers"] if each == name), "")
