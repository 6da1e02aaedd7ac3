"""Access tokens of the machine's service account, from the metadata server that every machine of Google's can ask.

A training image need not hold google-auth, which cannot be brought along: it needs a compiled library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import requests

from ...clock import Clock, SystemClock

_HOST = "metadata.google.internal"
_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_TIMEOUT_S = 10.0
# A token that ends so soon is replaced: the machine's own server has a new one by then.
_EARLY_S = 240.0


class TokenError(Exception):
    """The metadata server gives no token.

    Args:
        message: why.
        again: whether another try may help.
    """

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class MachineToken(requests.auth.AuthBase):
    """Puts the token into every request of a session; one session may be used by many threads.

    Args:
        environ: the process's variables; `GCE_METADATA_HOST` names another server.
        clock: what time it is.
        ask: returns the answer of the server at a URL.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        ask: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> None:
        host = (os.environ if environ is None else environ).get("GCE_METADATA_HOST", "").strip() or _HOST
        self._url = f"http://{host}{_PATH}"
        self._clock = clock or SystemClock()
        self._ask = ask or _asked
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def __call__(self, request: Any) -> Any:
        """Return the request with the token."""
        request.headers["Authorization"] = f"Bearer {self.token()}"
        return request

    def token(self) -> str:
        """Return a token that is valid for some minutes.

        Raises:
            TokenError: there is none.
        """
        with self._lock:
            now = self._clock.monotonic()
            if not self._token or now >= self._until:
                answer = self._ask(self._url)
                try:
                    lasts_s = float(answer["expires_in"])
                    self._token = str(answer["access_token"])
                except (LookupError, TypeError, ValueError):
                    raise TokenError(f"{self._url} gives something else than a token", again=False) from None
                # Where it is given out shortly before its end, it is asked for again at the next request.
                self._until = now + max(0.0, lasts_s - _EARLY_S)
            return self._token


def _asked(url: str) -> Mapping[str, Any]:
    session = requests.Session()
    # No proxy of this machine leads to its own server.
    session.trust_env = False
    try:
        with session.get(url, headers={"Metadata-Flavor": "Google"}, timeout=_TIMEOUT_S) as response:
            if response.status_code == 200:
                found: Mapping[str, Any] = response.json()
                return found
            said = response.text.strip()[:200]
            raise TokenError(f"{url} says {response.status_code} {said}", again=response.status_code >= 429)
    except requests.RequestException as error:
        raise TokenError(f"{url} cannot be reached ({type(error).__name__})", again=True) from error
    except ValueError:
        raise TokenError(f"{url} gives something else than a token", again=False) from None
