"""What the errors of Google Cloud Storage and of the way to it mean: a sentence for each, and whether to ask again."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from requests import exceptions as http
from urllib3.exceptions import HTTPError

from ...errors import AccessError, ConflictError, CorruptObjectError, MissingError, StoreError
from .metadata import TokenError
from .refusals import GcsStatusError
from .requests import DamagedError

_AGAIN = (408, 429, 500, 502, 503, 504)
_ACCOUNT = re.compile(r"[\w.+-]+@[\w.-]+\.[a-z]+")
_LOGIN = "Next: gcloud auth application-default login."
# Older ones of the libraries have no class for it.
_UNRESOLVED = re.compile("NameResolution|name resolution|resolve|Name or service not known|nodename nor servname")
# What was damaged on its way is good when it comes again; what is stored damaged stays so.
DAMAGES_TRIED = 3


class OutOfTimeError(Exception):
    """The time of the call was over in the middle of it."""


@dataclass(frozen=True, kw_only=True)
class RequestFailure:
    """What a failed request means.

    Attributes:
        kind: what to raise.
        text: the end of the sentence "Cannot write gs://bucket/x: ...", without its full stop.
        again: worth another try.
        unsure: it may have been carried out nevertheless.
        wait_s: how long the service asks to wait before that.
        answered: it was the service that said so.
    """

    kind: type[StoreError]
    text: str
    again: bool = False
    unsure: bool = False
    wait_s: float | None = None
    answered: bool = False


def of(error: Exception, bucket: str) -> RequestFailure | None:
    """Return what an error means; None if it is none of the service's or the network's.

    Args:
        error: what a library has raised.
        bucket: whom it was about.
    """
    if isinstance(error, GcsStatusError):
        return _refused(error, bucket)
    if isinstance(error, DamagedError):
        return RequestFailure(kind=CorruptObjectError, text=f"it is damaged: {error}", again=True, answered=True)
    if isinstance(error, OutOfTimeError):
        return RequestFailure(kind=StoreError, text="it goes too slowly, and the time for it is over", unsure=True)
    if isinstance(error, TokenError):
        return _without_token(error)
    # Who has raised an error of google-auth has imported it; a training image need not have it.
    auth: Any = sys.modules.get("google.auth.exceptions")
    if auth is not None and isinstance(error, auth.GoogleAuthError):
        return _unknown_to(error, auth)
    if isinstance(error, (http.RequestException, HTTPError)):
        return _unreached(error)
    return None


def _refused(error: GcsStatusError, bucket: str) -> RequestFailure:
    code, said = error.code, _message(error)
    if code == 401:
        return RequestFailure(
            kind=AccessError, text=f"the credentials are not accepted (401): {said}. {_LOGIN[:-1]}", answered=True
        )
    if code == 403 and not _is_rate(error):
        return RequestFailure(kind=AccessError, text=_forbidden(said, bucket), answered=True)
    if code == 404:
        if "bucket does not exist" in said:
            return RequestFailure(
                kind=StoreError,
                text=f"there is no bucket {bucket!r}. Next: gcloud storage buckets create gs://{bucket}, or gcloud storage ls",
                answered=True,
            )
        return RequestFailure(kind=MissingError, text="there is no such object", answered=True)
    if code == 412:
        return RequestFailure(kind=ConflictError, text="its generation is another one than expected", answered=True)
    if code in _AGAIN or code == 403:
        wait_s = _asked(error)
        what = "asks to slow down" if code in (429, 403) else "has failed"
        # Without a hint, one second: that is how often an object may be written.
        wait_s = 1.0 if wait_s is None and code == 429 else wait_s
        text = f"Google Cloud Storage {what} ({code}): {said}"
        return RequestFailure(kind=StoreError, text=text, again=True, unsure=True, wait_s=wait_s, answered=True)
    if code == 400 and re.search("crc32c|checksum", said, re.IGNORECASE):
        text = f"other bytes came there than were sent (400): {said}"
        return RequestFailure(kind=CorruptObjectError, text=text, again=True, answered=True)
    return RequestFailure(kind=StoreError, text=f"Google Cloud Storage refuses it ({code}): {said}", answered=True)


def _forbidden(said: str, bucket: str) -> str:
    account = _ACCOUNT.search(said)
    member = f"serviceAccount:{account[0]}" if account and account[0].endswith("gserviceaccount.com") else None
    member = member or (f"user:{account[0]}" if account else "MEMBER")
    return (
        f"there is no permission (403): {said}. Next, by the bucket's owner: gcloud storage buckets add-iam-policy-binding "
        f"gs://{bucket} --member={member} --role=roles/storage.objectUser"
    )


def _without_token(error: TokenError) -> RequestFailure:
    if error.again:
        return RequestFailure(kind=StoreError, text=f"there is no access token now: {error}", again=True)
    text = f"there is no access token: {error}. Next: look whether this machine has a service account"
    return RequestFailure(kind=AccessError, text=text)


def _unknown_to(error: Exception, auth: Any) -> RequestFailure:
    said = _line(str(error))
    if isinstance(error, auth.DefaultCredentialsError):
        return RequestFailure(kind=AccessError, text=f"there are no credentials here: {said}. {_LOGIN[:-1]}")
    if getattr(error, "retryable", False) or "Transport" in type(error).__name__:
        return RequestFailure(kind=StoreError, text=f"the credentials cannot be renewed now: {said}", again=True)
    what = "cannot be renewed" if isinstance(error, auth.RefreshError) else "are not accepted"
    return RequestFailure(kind=AccessError, text=f"the credentials {what}: {said}. {_LOGIN[:-1]}")


def _unreached(error: http.RequestException | HTTPError) -> RequestFailure:
    reason = _reason(error)
    if isinstance(error, http.SSLError):
        return RequestFailure(
            kind=StoreError, text=f"the connection is not to be trusted: {reason}. Next: check the proxy"
        )
    if isinstance(error, (http.InvalidURL, http.MissingSchema, http.InvalidSchema)):
        return RequestFailure(kind=StoreError, text=f"the address is none: {reason}")
    if isinstance(error, http.Timeout) or "ReadTimeout" in type(error).__name__ or "timed out" in reason:
        unsure = not isinstance(error, http.ConnectTimeout)
        text = "Google Cloud Storage gives no answer in time. Next: check the network"
        return RequestFailure(kind=StoreError, text=text, again=True, unsure=unsure)
    if _UNRESOLVED.search(reason):
        text = f"the name of the service cannot be resolved: {reason}. Next: check the network"
        return RequestFailure(kind=StoreError, text=text, again=True)
    text = f"Google Cloud Storage cannot be reached, or the connection broke: {reason}. Next: check the network"
    return RequestFailure(kind=StoreError, text=text, again=True, unsure=True)


def _inner(error: BaseException) -> Any:
    # The reason stands inside errors that only say how often was tried.
    first = error.args[0] if error.args else error
    return getattr(first, "reason", first)


def _reason(error: BaseException) -> str:
    inner = _inner(error)
    said = f"{type(inner).__name__}: {inner}" if isinstance(inner, BaseException) else str(inner)
    # Objects of the library, with their addresses in memory, say nothing to people.
    return _line(re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>:? ?|HTTPS?ConnectionPool\([^)]*\):? ?", "", said))


def _is_rate(error: GcsStatusError) -> bool:
    return any("ratelimit" in str(item.get("reason", "")).lower() for item in error.errors)


def _asked(error: GcsStatusError) -> float | None:
    given = next((value for name, value in error.headers.items() if name.lower() == "retry-after"), "")
    try:
        return max(0.0, float(given))
    except ValueError:
        return None


def _message(error: GcsStatusError) -> str:
    """Return the service's own words, those of its first item where it has any."""
    said = next((str(item["message"]) for item in error.errors if item.get("message")), "")
    return _line(said or error.message)


def _line(text: str) -> str:
    lines = text.strip().splitlines() or ["no reason given"]
    return lines[0].rstrip(".: ")[:300]
