"""Vertex AI's job service: Google's client, with a timeout on each call, retries for reads, and classified errors.

Google's client has none of these: a call waits for ever on a silent server, and lost requests are not repeated. Here, reads are
retried. A write is sent once, and its error tells whether it was rejected or may have been executed. Only the caller can decide
whether to send another one.
"""

from __future__ import annotations

import json
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from ...clock import Clock, SystemClock
from ...errors import InputError, MissingError, PodliftError
from ...storage import emulator
from ...storage.retry import Retries
from .states import VendorJob, state_name

_WRITE_S, _READ_S = 60.0, 20.0
# Reads are retried for this long, with exponential backoff.
_RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 45.0, 0.5, 8.0
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# HTTP statuses of requests that were not executed and would be rejected again.
_REJECTIONS = frozenset({400, 401, 403, 404, 405, 409, 412, 413, 429, 501})
_PAGE = 100
_LOGIN = "Next: gcloud auth application-default login."
# Responses of a proxy or of the network's login page.
_INTERCEPTED = "A proxy or login page may have intercepted the request. Next: check the network and its proxies."
_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/customJobs/[^/]+")
_T = TypeVar("_T")


class VertexRejectedError(PodliftError):
    """Vertex AI rejected a request without executing it. `status` is the HTTP status, or 0 if there were no credentials."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class OutcomeUnknownError(PodliftError):
    """There was no response, or one that does not tell whether the request was executed."""


def credentials() -> Any:
    """Return the credentials of this machine, or anonymous ones for an emulator."""
    if emulator.address():
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials()  # type: ignore[no-untyped-call,unused-ignore]
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError

    try:
        return default(scopes=[_SCOPE])[0]
    except GoogleAuthError as error:
        raise VertexRejectedError(f"There are no credentials for Google Cloud: {error}. {_LOGIN}", 0) from error


def session(url: str) -> Any:
    """Return a session of requests for a service of Google, or for an emulator, which has no TLS."""
    if url.startswith("https:"):
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(credentials())  # type: ignore[no-untyped-call,unused-ignore]
    import requests

    plain = requests.Session()
    # Ignore proxies and .netrc of this machine.
    plain.trust_env = False
    return plain


def warm_up() -> None:
    """Start to import Google's client, which takes a second, while the code is packed."""
    threading.Thread(target=_library, daemon=True, name="podlift-import").start()


def _library() -> Any:
    from google.cloud import aiplatform_v1

    return aiplatform_v1


@lru_cache(maxsize=8)
def _service(region: str, emulated: str) -> Any:
    address = emulated or f"{region}-aiplatform.googleapis.com"
    return _library().JobServiceClient(
        transport="rest", credentials=credentials(), client_options={"api_endpoint": address}
    )


# Two processes that share a connection would read each other's responses.
os.register_at_fork(after_in_child=_service.cache_clear)


def to_custom_job(body: Mapping[str, object]) -> Any:
    """Return a request's body as Google's type. Raises InputError if it has unknown fields."""
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped,unused-ignore]

    try:
        return _library().CustomJob.from_json(json.dumps(body))
    except (ParseError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"This is not a valid custom job of Vertex AI: {reason} Next: check raw=; podlift plan --json shows the request."
        ) from None


class JobClient:
    def __init__(
        self, project: str, *, clock: Clock | None = None, service: Callable[[str], Any] | None = None
    ) -> None:
        self._project = project
        self._clock = clock or SystemClock()
        self._service = service or (lambda region: _service(region, emulator.checked_address()))

    def create(self, region: str, job: Any) -> VendorJob:
        parent = f"projects/{self._project}/locations/{region}"
        service = self._service(region)
        with _translated_errors():
            return _vendor_job(service.create_custom_job(parent=parent, custom_job=job, timeout=_WRITE_S))

    def get(self, name: str) -> VendorJob:
        service = self._service(name.split("/")[3])
        try:
            return self._read(lambda: _vendor_job(service.get_custom_job(name=name, timeout=_READ_S)))
        except VertexRejectedError as error:
            if error.status == 404:
                raise MissingError(f"Vertex AI has no job {name!r}.") from error
            raise

    def list(self, region: str, labels: Mapping[str, str]) -> list[VendorJob]:
        """Return the jobs in a region with these labels."""
        service = self._service(region)
        wanted = " AND ".join(f'labels.{name}="{value}"' for name, value in labels.items())
        request = {
            "parent": f"projects/{self._project}/locations/{region}",
            "filter": wanted,
            "page_size": _PAGE,
        }
        return self._read(
            lambda: [_vendor_job(job) for job in service.list_custom_jobs(request=request, timeout=_READ_S)]
        )

    def cancel(self, name: str) -> None:
        """Cancel a job. Has no effect on a job that was cancelled before, has ended or does not exist."""
        service = self._service(name.split("/")[3])
        try:
            self._read(lambda: service.cancel_custom_job(name=name, timeout=_READ_S))
        except VertexRejectedError as error:
            # 400: it has ended.
            if error.status not in (400, 404, 409):
                raise

    def _read(self, call: Callable[[], _T]) -> _T:
        tries = Retries.within(_RETRY_S, self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        while True:
            try:
                with _translated_errors():
                    return call()
            except (VertexRejectedError, OutcomeUnknownError) as error:
                busy = isinstance(error, OutcomeUnknownError) or error.status == 429
                if not busy or not tries.again():
                    raise


@contextmanager
def _translated_errors() -> Iterator[None]:
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped,unused-ignore]
    from requests import RequestException

    try:
        with warnings.catch_warnings():
            # A state that this version of the client does not know is represented by its number.
            warnings.filterwarnings("ignore", message="Unrecognized .* enum value")
            yield
    except GoogleAPICallError as error:
        status, text = int(error.code or 0), _error_text(error)
        if status in _REJECTIONS:
            raise VertexRejectedError(text, status) from error
        raise OutcomeUnknownError(f"Vertex AI failed: {status} {text}") from error
    except TransportError as error:
        raise OutcomeUnknownError(
            f"Google's servers for credentials cannot be reached: {error}. Next: check the network."
        ) from error
    except GoogleAuthError as error:
        raise VertexRejectedError(f"The credentials are not accepted: {error}. {_LOGIN}", 401) from error
    except (RequestException, RetryError, OSError) as error:
        raise OutcomeUnknownError(
            f"Vertex AI cannot be reached: {type(error).__name__}: {emulator.mask_token(str(error))}. Next: check the network."
        ) from error
    except (ParseError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise OutcomeUnknownError(f"Vertex AI's response is not valid: {reason}. {_INTERCEPTED}") from error


def _error_text(error: Any) -> str:
    text = str(getattr(error, "message", "") or error)
    for lead in ("POST ", "GET ", "DELETE "):
        if text.startswith(lead) and ": " in text:
            text = text.partition(": ")[2]
    reason, text = getattr(error, "reason", None), emulator.mask_token(text)
    return f"{text} ({reason})" if reason and str(reason) not in text else text


def _vendor_job(job: Any) -> VendorJob:
    """Convert a job of Google's client. Raises ValueError if it is not one."""
    if not _NAME.fullmatch(job.name):
        raise ValueError(f"it does not name a job ({str(job.name)!r})")
    return VendorJob(
        name=str(job.name),
        state=state_name(job.state),
        message=str(job.error.message) if job.error else "",
        code=int(job.error.code) if job.error else 0,
        labels=dict(job.labels),
        created=_seconds(job.create_time),
        started=_seconds(job.start_time),
        ended=_seconds(job.end_time),
    )


def _seconds(time: Any) -> float | None:
    return None if time is None else float(time.timestamp())
