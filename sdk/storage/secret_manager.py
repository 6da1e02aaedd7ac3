"""Google's Secret Manager: the newest version of a secret, and the content of a version.

Sources (read 2026-11-23): REST reference of Secret Manager v1, projects.secrets.versions.get and .access.
"""

from __future__ import annotations

import base64
import os
from functools import lru_cache
from typing import Any

import requests

from ..clock import Clock, SystemClock
from ..errors import AccessError, InputError, PodliftError, UnavailableError
from . import emulator, emulator_proof
from .checksums import crc32c
from .gcs import auth
from .retry import Retries

_ADDRESS = "https://secretmanager.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TIMEOUT_S = (5.0, 20.0)
# A request that may succeed later is repeated for this long.
_RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 45.0, 0.5, 8.0
_SLOW_DOWN, _FAILED = 429, 500


def value(version: str, *, clock: Clock | None = None) -> str:
    """Return the content of a version: `value("projects/p/secrets/s/versions/3")`; PodliftError, which never holds it."""
    payload = _get(f"{version}:access", "roles/secretmanager.secretAccessor", clock)["payload"]
    data = base64.b64decode(payload["data"])
    checksum = payload.get("dataCrc32c")
    if checksum is not None and int(checksum) != crc32c([data]):
        raise PodliftError(f"The value of {version} arrived damaged.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        # Not chained: the error of the codec quotes the value.
        raise PodliftError(f"The value of {version} is not text in UTF-8, and no variable can hold it.") from None


def newest(secret: str, *, clock: Clock | None = None) -> str:
    """Return the newest version: `newest("projects/p/secrets/s")`. It reads nothing of its value."""
    answer = _get(f"{secret}/versions/latest", "roles/secretmanager.viewer", clock)
    # The answer has the project's number: keep the user's form.
    return f"{secret}/versions/{str(answer['name']).rpartition('/')[2]}"


def _get(path: str, role: str, clock: Clock | None) -> Any:
    retries = Retries.within(_RETRY_S, clock or SystemClock(), _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
    return retries.until_answered(lambda: _answer(path, role))


def _answer(path: str, role: str) -> Any:
    address = emulator.checked_address()
    try:
        answer = _session(address).get(f"{address or _ADDRESS}/v1/{path}", timeout=_TIMEOUT_S)
    except (requests.RequestException, OSError, auth.TokenError) as error:
        raise UnavailableError(f"Secret Manager cannot be reached for {path}: {type(error).__name__}.") from error
    if answer.status_code == _SLOW_DOWN or answer.status_code >= _FAILED:
        raise UnavailableError(f"Secret Manager answers {answer.status_code} for {path}.")
    if answer.ok:
        return answer.json()
    raise _refusal(answer, path, role)


def _refusal(answer: Any, path: str, role: str) -> PodliftError:
    secret = path.partition("/versions/")[0]
    problem = f"Secret Manager refuses {path}: {answer.status_code} {_message(answer)}"
    if answer.status_code in (401, 403):
        return AccessError(f"{problem} Next: grant this account {role} on {secret}.")
    if answer.status_code in (400, 404):
        return InputError(f"{problem} Next: gcloud secrets versions list {secret}.")
    return PodliftError(problem)


def _message(answer: Any) -> str:
    try:
        return f"{str(answer.json()['error']['message']).rstrip('. ')}."
    except (ValueError, LookupError, TypeError):
        return ""


@lru_cache(maxsize=2)
def _session(emulated: str) -> requests.Session:
    return emulator_proof.session(emulated) if emulated else auth.authorized(_SCOPE)[0]


# Processes that share a connection would read each other's responses.
os.register_at_fork(after_in_child=_session.cache_clear)
