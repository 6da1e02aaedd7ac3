"""Connections to Cloud Storage: one pool per process and address, with a slot for every thread.

They use the JSON API directly, with the credentials of Google's libraries if those are installed. google-cloud-storage joins
all bytes of an upload in memory, reads a download in pieces of 8 KiB, and sends requests about the bucket from its own threads.
A training image need not have google-auth, which depends on a compiled library and cannot be bundled; there the token comes
from the metadata server of the machine.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

import requests
from requests.adapters import HTTPAdapter

from ...clock import Clock, SystemClock
from .. import emulator, emulator_proof
from .download import GOOGLE, open_url, token_url

_POOL = 64
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_TIMEOUT_S = 10.0
# A token that expires this soon is replaced: the metadata server has a new one by then.
_EARLY_S = 240.0


@dataclass(frozen=True, kw_only=True)
class GcsConnection:
    """A session with credentials, and its address, such as "https://storage.googleapis.com"."""

    session: requests.Session
    address: str


def connection(anonymous: bool = False) -> GcsConnection:
    return _connect(emulator.storage_address(), anonymous)


@lru_cache(maxsize=8)
def _connect(emulated: str, anonymous: bool) -> GcsConnection:
    if emulated:
        session = emulator_proof.session(emulated, pool_connections=4, pool_maxsize=_POOL)
        return GcsConnection(session=session, address=emulated)
    if anonymous:
        session, address = requests.Session(), GOOGLE
    else:
        session, domain = authorized(_SCOPE)
        address = f"https://storage.{domain}" if domain else GOOGLE
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_POOL))
    return GcsConnection(session=session, address=address)


def authorized(scope: str) -> tuple[requests.Session, str]:
    """Return a session with this machine's credentials, and the domain of its services, "" with the metadata server."""
    try:
        from google.auth import default
        from google.auth.transport.requests import AuthorizedSession
    except ImportError:
        # A training image has a metadata server instead.
        session = requests.Session()
        session.auth = MachineToken()
        return session, ""
    credentials: Any = default(scopes=[scope])[0]
    with_credentials = AuthorizedSession(credentials)  # type: ignore[no-untyped-call,unused-ignore]
    return with_credentials, getattr(credentials, "universe_domain", "googleapis.com")


# Processes that share a connection would read each other's responses.
os.register_at_fork(after_in_child=_connect.cache_clear)


# --- The token of a machine -----------------------------------------------------------------------------------------


class TokenError(Exception):
    """The metadata server did not return a token; `again` is true if a retry may help."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class MachineToken(requests.auth.AuthBase):
    """Adds the access token of the machine's service account to each request of a session; thread-safe."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        request: Callable[[str], Mapping[str, object]] | None = None,
    ) -> None:
        self._url = token_url(os.environ if environ is None else environ)
        self._clock = clock or SystemClock()
        self._request = request or _request_token
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self.token()}"
        return request

    def token(self) -> str:
        """Return a token that is valid for some minutes, or raise TokenError."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._token or now >= self._until:
                answer = self._request(self._url)
                try:
                    lasts_s = float(str(answer["expires_in"]))
                    self._token = str(answer["access_token"])
                except (LookupError, TypeError, ValueError):
                    raise TokenError(f"{self._url} did not return a token", again=False) from None
                # A token that is about to expire is used once and requested again.
                self._until = now + max(0.0, lasts_s - _EARLY_S)
            return self._token


def _request_token(url: str) -> Mapping[str, object]:
    try:
        with open_url(url, {"Metadata-Flavor": "Google"}, _TIMEOUT_S) as response:
            token: Mapping[str, object] = json.load(response)
            return token
    except HTTPError as error:
        answer = error.read(200).decode("utf-8", "replace").strip()
        raise TokenError(f"{url} returned {error.code} {answer}", again=error.code >= 429) from error
    except (OSError, HTTPException) as error:
        raise TokenError(f"{url} cannot be reached ({type(error).__name__})", again=True) from error
    except ValueError:
        raise TokenError(f"{url} did not return a token", again=False) from None
