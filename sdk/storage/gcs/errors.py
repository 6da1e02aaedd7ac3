"""The meaning of errors of Cloud Storage and of the network: a message for each, and whether to retry."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from requests import exceptions as http
from urllib3.exceptions import HTTPError

from ...errors import AccessError, ConflictError, CorruptObjectError, MissingError, StoreError
from ...text import emulator_at, without_objects
from .. import emulator
from ..retry import retry_after_s
from .auth import TokenError
from .requests import DamagedError, GcsStatusError

_TRANSIENT = (408, 429, 500, 502, 503, 504)
_ACCOUNT = re.compile(r"[\w.+-]+@[\w.-]+\.[a-z]+")
_LOGIN = "Next: gcloud auth application-default login."
# Older versions of the libraries have no class for it.
_UNRESOLVED = re.compile("NameResolution|name resolution|resolve|Name or service not known|nodename nor servname")
# Damage in transit disappears on a retry; stored damage does not.
DAMAGED_TRIES = 3


class NoCredentialsError(AccessError):
    """This machine has no credentials at all."""


class OutOfTimeError(Exception):
    """The call's time ran out while it was in progress."""


@dataclass(frozen=True, kw_only=True)
class RequestFailure:
    """The meaning of a failed request."""

    kind: type[StoreError]  # what to raise
    text: str  # the end of "Cannot write gs://bucket/x: ...", without its full stop
    retry: bool = False  # another try may succeed
    unsure: bool = False  # the request may have taken effect
    wait_s: float | None = None  # how long the service demands to wait
    answered: bool = False  # the service itself reported the failure


def failure_of(error: Exception, bucket: str, *, writes: bool = True) -> RequestFailure | None:
    """Return the meaning of an error; None if it comes neither from the service nor from the network."""
    if isinstance(error, GcsStatusError):
        return _of_status(error, bucket, "roles/storage.objectUser" if writes else "roles/storage.objectViewer")
    if isinstance(error, DamagedError):
        return RequestFailure(kind=CorruptObjectError, text=f"it is damaged: {error}", retry=True, answered=True)
    if isinstance(error, OutOfTimeError):
        return RequestFailure(kind=StoreError, text="the transfer is too slow, and its time limit is over", unsure=True)
    if isinstance(error, TokenError):
        return _of_token(error)
    # google-auth is imported if it raised the error; a training image need not have it.
    auth: Any = sys.modules.get("google.auth.exceptions")
    if auth is not None and isinstance(error, auth.GoogleAuthError):
        return _of_credentials(error, auth)
    if isinstance(error, (http.RequestException, HTTPError)):
        return _of_network(error)
    return None


def _of_status(error: GcsStatusError, bucket: str, role: str) -> RequestFailure:
    code, message = error.code, _service_message(error)
    if code == 401:
        return RequestFailure(
            kind=AccessError, text=f"the credentials are not accepted (401): {message}. {_LOGIN[:-1]}", answered=True
        )
    if code == 403 and not any("ratelimit" in str(item.get("reason", "")).lower() for item in error.errors):
        return RequestFailure(kind=AccessError, text=_forbidden(message, bucket, role), answered=True)
    if code == 404:
        if "bucket does not exist" in message:
            return RequestFailure(
                kind=StoreError,
                text=f"there is no bucket {bucket!r}. Next: {_create(bucket)}",
                answered=True,
            )
        return RequestFailure(kind=MissingError, text="there is no such object", answered=True)
    if code == 412:
        return RequestFailure(kind=ConflictError, text="its generation is not the expected one", answered=True)
    if code in _TRANSIENT or code == 403:
        wait_s = retry_after_s(error.headers)
        what = "asks to slow down" if code in (429, 403) else "has failed"
        # The default is one second: the rate limit for writes to one object.
        wait_s = 1.0 if wait_s is None and code == 429 else wait_s
        text = f"{_service()} {what} ({code}): {message}"
        return RequestFailure(kind=StoreError, text=text, retry=True, unsure=True, wait_s=wait_s, answered=True)
    if code == 400 and re.search("crc32c|checksum", message, re.IGNORECASE):
        text = f"it was damaged in transit (400): {message}"
        return RequestFailure(kind=CorruptObjectError, text=text, retry=True, answered=True)
    return RequestFailure(kind=StoreError, text=f"{_service()} rejects the request ({code}): {message}", answered=True)


def _create(bucket: str) -> str:
    # gcloud would create a real one.
    if address := emulator.endpoint():
        return f"start the {emulator_at(address)} with --bucket {bucket}"
    return f"gcloud storage buckets create gs://{bucket}, or gcloud storage ls"


def _forbidden(message: str, bucket: str, role: str) -> str:
    account = _ACCOUNT.search(message)
    member = f"serviceAccount:{account[0]}" if account and account[0].endswith("gserviceaccount.com") else None
    member = member or (f"user:{account[0]}" if account else "MEMBER")
    return (
        f"permission denied (403): {message}. Next, by the bucket's owner: gcloud storage buckets add-iam-policy-binding "
        f"gs://{bucket} --member={member} --role={role}"
    )


def _of_token(error: TokenError) -> RequestFailure:
    if error.again:
        return RequestFailure(kind=StoreError, text=f"no access token is available now: {error}", retry=True)
    text = f"no access token is available: {error}. Next: check that this machine has a service account"
    return RequestFailure(kind=AccessError, text=text)


def _of_credentials(error: Exception, auth: Any) -> RequestFailure:
    message = _first_line(str(error))
    if isinstance(error, auth.DefaultCredentialsError):
        text = f"no credentials were found: {message}. {_LOGIN[:-1]}"
        return RequestFailure(kind=NoCredentialsError, text=text)
    if getattr(error, "retryable", False) or "Transport" in type(error).__name__:
        return RequestFailure(kind=StoreError, text=f"the credentials cannot be refreshed now: {message}", retry=True)
    what = "cannot be refreshed" if isinstance(error, auth.RefreshError) else "are not accepted"
    return RequestFailure(kind=AccessError, text=f"the credentials {what}: {message}. {_LOGIN[:-1]}")


def _of_network(error: http.RequestException | HTTPError) -> RequestFailure:
    reason = _reason(error)
    if isinstance(error, http.SSLError):
        return RequestFailure(
            kind=StoreError, text=f"the TLS certificate is not trusted: {reason}. Next: check the proxy"
        )
    if isinstance(error, (http.InvalidURL, http.MissingSchema, http.InvalidSchema)):
        return RequestFailure(kind=StoreError, text=f"the address is invalid: {reason}")
    if isinstance(error, http.Timeout) or "ReadTimeout" in type(error).__name__ or "timed out" in reason:
        unsure = not isinstance(error, http.ConnectTimeout)
        text = f"{_service()} did not respond in time. Next: {_check()}"
        return RequestFailure(kind=StoreError, text=text, retry=True, unsure=unsure)
    if _UNRESOLVED.search(reason):
        text = f"the host name cannot be resolved: {reason}. Next: check the network"
        return RequestFailure(kind=StoreError, text=text, retry=True)
    text = f"{_service()} cannot be reached, or the connection broke: {reason}. Next: {_check()}"
    return RequestFailure(kind=StoreError, text=text, retry=True, unsure=True)


def _service() -> str:
    """Return the name of the service in errors: an emulator is named, so that its errors are not mistaken for Google's."""
    address = emulator.endpoint()
    return f"the {emulator_at(address)}" if address else "Google Cloud Storage"


def _check() -> str:
    return "start the emulator again (podlift emulator --data DIR)" if emulator.endpoint() else "check the network"


def _inner(error: BaseException) -> Any:
    # The reason is inside an error that only counts the tries.
    first = error.args[0] if error.args else error
    return getattr(first, "reason", first)


def _reason(error: BaseException) -> str:
    inner = _inner(error)
    message = f"{type(inner).__name__}: {inner}" if isinstance(inner, BaseException) else str(inner)
    return _first_line(without_objects(message))


def _service_message(error: GcsStatusError) -> str:
    message = next((str(item["message"]) for item in error.errors if item.get("message")), "")
    return _first_line(message or error.message)


def _first_line(text: str) -> str:
    lines = text.strip().splitlines() or ["no reason given"]
    return lines[0].rstrip(".: ")[:300]
