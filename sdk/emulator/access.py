"""Access control: requests need the token as the first part of their path, or as credentials. Others are rejected unread.

Every user of the machine can reach a port of the loopback interface, and so can a web page in this user's browser, under a host
name of its site that resolves to it.
"""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..process.redirect import tokens
from ..storage import emulator_proof
from .connections import Connections
from .gcs.errors import StorageApiError

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
# Their requests come through the redirect proxy; a web page cannot make such a name resolve to this machine.
GOOGLE_HOSTS = ("www.googleapis.com", "storage.googleapis.com")
# In the scope of an admitted request: the beginning of the URLs in answers. "podlift.replica" is the replica that sent it.
BASE = "podlift.base"
_UNKNOWN = (
    "This emulator answers clients that know its token, which is the first part of the path of its URL. Received: a request "
    "{what}. Next: use the whole URL that podlift emulator has printed, http://127.0.0.1:PORT/TOKEN; the token is also in "
    "the file `token` of its data folder. Each start has a new one."
)


class AccessMiddleware:
    def __init__(self, application: ASGIApp, token: str, connections: Connections) -> None:
        self._application, self._token, self._connections = application, token, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        rejected = _rejection_reason(scope)
        if not rejected and scope["path"].startswith(emulator_proof.PATH):
            # Its client sends the token once it has the answer.
            await self._proof(scope)(scope, receive, send)
            return
        authorized = rejected or self._authorized_scope(scope)
        if isinstance(authorized, str):
            await _error_response(403, authorized)(scope, receive, send)
        elif not self._connections.admit(scope):
            await _error_response(503, "Too many connections to this emulator are in use.")(scope, receive, send)
        else:
            await self._application(authorized, receive, send)

    def _proof(self, scope: Scope) -> Response:
        nonce = scope["path"].removeprefix(emulator_proof.PATH)
        if not emulator_proof.NONCE.fullmatch(nonce):
            return _error_response(400, f"The path of a proof is {emulator_proof.PATH} and 32 hex digits.")
        return PlainTextResponse(emulator_proof.proof(self._token, nonce, scope["server"][0]))

    def _authorized_scope(self, scope: Scope) -> Scope | str:
        """Return the scope to pass on, or why the request is rejected."""
        first, slash, rest = scope["raw_path"].removeprefix(b"/").partition(b"/")
        segment = first.decode("latin-1")
        base = "" if _header(scope, b"host") in GOOGLE_HOSTS else f"/{self._token}"
        # The decoded path is cut by the token's own length: no character of a token is ever percent-encoded.
        inner = {**scope, "path": scope["path"][1 + len(segment) :] or "/", "raw_path": (slash + rest) or b"/"}
        if tokens.equal(segment, self._token):
            return {**inner, BASE: base}
        if tokens.equal(_header(scope, b"authorization"), f"Bearer {self._token}"):
            return {**scope, BASE: base}
        replica = tokens.find_replica(self._token, segment)
        if replica is None:
            return _UNKNOWN.format(what="with another one" if tokens.is_token(segment) else "without it")
        if inner["path"] != "/" and not inner["path"].startswith("/computeMetadata"):
            return "The token of a replica gives access to the metadata server and nothing else."
        return {**inner, BASE: f"/{segment}", "podlift.replica": replica}


def _rejection_reason(scope: Scope) -> str | None:
    host = _header(scope, b"host")
    name, colon, port = host.partition(":")
    ours = name in _LOOPBACK_HOSTS and port.isdecimal() if colon else name in (*_LOOPBACK_HOSTS, *GOOGLE_HOSTS)
    if not ours:
        return f"This emulator is called 127.0.0.1 or localhost. Received: Host: {host[:100]!r}."
    if _header(scope, b"origin") or _header(scope, b"sec-fetch-site") not in ("", "none", "same-origin"):
        return "This emulator does not talk to web pages."
    return None


def base_url(scope: Scope) -> str:
    """Return the beginning of the URLs in an answer, so that the client can follow them."""
    host = _header(scope, b"host")
    return f"{'https' if host in GOOGLE_HOSTS else 'http'}://{host}{scope.get(BASE, '')}"


def _error_response(status: int, why: str) -> Response:
    """Return an answer after which the connection is closed: the rest of the request's body is not read."""
    return StorageApiError(status, why, {"Connection": "close"}).response()


def _header(scope: Scope, name: bytes) -> str:
    return next((text.decode("latin-1") for key, text in scope["headers"] if key == name), "")
