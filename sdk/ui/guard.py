"""Who may see the page: a browser of this machine that has opened the printed URL. Everything else is refused here."""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .request_heads import RequestHeads

# Whether a request may change runs, in its scope.
MAY_ACT = "podlift.may_act"
_HOSTS = ("127.0.0.1", "localhost", "::1")
# The page runs its own scripts and styles, and talks to its own server only.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": with it, browsers send the forms of the page without its origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PageGuard:
    """Passes on requests that have the token, or the cookie for which it is exchanged.

    With a second token, `acting`, requests with its cookie may also change runs, from this page only.
    """

    def __init__(
        self, app: ASGIApp, token: str, port: int, acting: str = "", heads: RequestHeads | None = None
    ) -> None:
        self._app, self._token, self._acting = app, token, acting
        self._heads = heads or RequestHeads()
        # Cookies of a host are shared by its ports.
        self._cookie, self._key = f"podlift-ui-{port}", secrets.token_urlsafe(32)
        self._act_cookie, self._act_key = f"podlift-act-{port}", secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(Request(scope)) or self._app
        await answer(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that is not passed on."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or _name(f"//{hosts[0]}") not in _HOSTS:
            return PlainTextResponse("This page is served to 127.0.0.1 and localhost only.", 403)
        if any(origin != f"http://{hosts[0]}" for origin in request.headers.getlist("origin")):
            return PlainTextResponse("Requests of other sites are refused.", 403)
        acts = bool(self._acting) and request.method == "POST"
        if request.method not in ("GET", "HEAD") and not acts:
            return PlainTextResponse("This page is read-only.", 405)
        token = None if acts else request.query_params.get("token")
        if token is not None and _same(token, self._token):
            # One slash: two would name another host.
            target = str(request.url.remove_query_params(["token", "actions"]).replace(scheme="", netloc=""))
            answer = RedirectResponse(f"/{target.lstrip('/')}", 303)
            answer.set_cookie(self._cookie, self._key, httponly=True, samesite="strict", path="/")
            if self._acting and _same(request.query_params.get("actions", ""), self._acting):
                answer.set_cookie(self._act_cookie, self._act_key, httponly=True, samesite="strict", path="/")
            return self._admitted(request) or answer
        if not _same(self._sent(request, self._cookie), self._key):
            return PlainTextResponse("Open the URL that podlift ui has printed: it holds the token.", 403)
        may_act = bool(self._acting) and _same(self._sent(request, self._act_cookie), self._act_key)
        # A form of this page has its origin; a program that sends none is no browser with this page.
        if acts and not (may_act and request.headers.getlist("origin")):
            return PlainTextResponse(
                "Open the URL for actions that podlift ui has printed: it holds a second token.", 403
            )
        request.scope[MAY_ACT] = may_act
        return self._admitted(request)

    def _admitted(self, request: Request) -> Response | None:
        """Let the connection of a request stay open; the answer if there are too many of these."""
        if self._heads.admit(request.scope):
            return None
        return PlainTextResponse("Too many connections to this page are in use.", 503, {"Connection": "close"})

    def _sent(self, request: Request, cookie: str) -> str:
        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(cookie)
        except CookieError:
            return ""
        return morsel.value if morsel else ""


def _same(received: str, expected: str) -> bool:
    return secrets.compare_digest(received.encode("utf-8", "surrogatepass"), expected.encode())


def _name(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
