"""Vertex AI's job service: Google's own client, with a time limit on every call, and our own view of what an answer means.

The client has neither: a call waits for ever on a server that is silent, and what was lost on the way is not asked again.
Reads are asked again here. A write is sent once, and whoever sent it learns whether it was refused or may have been carried
out: only then is it known whether another one may follow.
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
from .states import VendorJob, state_name

_WRITE_S, _READ_S = 60.0, 20.0
# Reads are asked again so long, with waits that double.
_PATIENCE_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 45.0, 0.5, 8.0
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# HTTP statuses behind which nothing was done, and that the same request would get again.
_REFUSALS = frozenset({400, 401, 403, 404, 405, 409, 412, 413, 429, 501})
_PAGE = 100
_LOGIN = "Next: gcloud auth application-default login."
# A proxy or a login page of the network gives such answers.
_FOREIGN = (
    "Something between here and Vertex AI may have answered in its place. Next: check the network and its proxies."
)
_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/customJobs/[^/]+")
_T = TypeVar("_T")


class RefusedError(PodliftError):
    """Vertex AI has refused a request: nothing was done.

    Args:
        message: its own words.
        status: of HTTP; 0 where the request was never sent for want of credentials.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class UnsureError(PodliftError):
    """No answer came, or one that leaves open whether the request was carried out."""


def credentials() -> Any:
    """Return what Google's libraries find on this machine; none are needed for an emulator.

    Raises:
        RefusedError: there are none.
    """
    if emulator.address():
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials()  # type: ignore[no-untyped-call,unused-ignore]
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError

    try:
        return default(scopes=[_SCOPE])[0]
    except GoogleAuthError as error:
        raise RefusedError(f"There are no credentials for Google Cloud: {error}. {_LOGIN}", 0) from error


def warm_up() -> None:
    """Begin to import Google's client, which takes a second: it is needed when the code is packed."""
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


# Two processes that speak through one connection read each other's answers.
os.register_at_fork(after_in_child=_service.cache_clear)


def checked(body: Mapping[str, Any]) -> Any:
    """Return a request's body as Google's own type.

    Raises:
        InputError: it is none: a name that `raw` has put there is unknown.
    """
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped,unused-ignore]

    try:
        return _library().CustomJob.from_json(json.dumps(body))
    except (ParseError, ValueError, TypeError) as error:
        said = str(error).partition("\n")[0]
        shown = "podlift plan --json shows it all"
        raise InputError(f"Vertex AI knows no such job: {said} Next: look at raw=; {shown}.") from None


class Jobs:
    """The custom jobs of a project.

    Args:
        project: its id.
        clock: what time it is.
        service: returns Google's client for a region; for tests.
    """

    def __init__(
        self, project: str, *, clock: Clock | None = None, service: Callable[[str], Any] | None = None
    ) -> None:
        self._project = project
        self._clock = clock or SystemClock()
        self._service = service or (lambda region: _service(region, emulator.asked()))

    def create(self, region: str, job: Any) -> VendorJob:
        """Ask once for a job.

        Args:
            region: where.
            job: what `checked` returns.

        Raises:
            RefusedError: there is none.
            UnsureError: there may be one.
        """
        parent = f"projects/{self._project}/locations/{region}"
        service = self._service(region)
        with _told():
            return _seen(service.create_custom_job(parent=parent, custom_job=job, timeout=_WRITE_S))

    def get(self, name: str) -> VendorJob:
        """Return what there is to know of a job.

        Raises:
            MissingError: there is no such job.
            RefusedError, UnsureError: it cannot be known.
        """
        service = self._service(name.split("/")[3])
        try:
            return self._read(lambda: _seen(service.get_custom_job(name=name, timeout=_READ_S)))
        except RefusedError as error:
            if error.status == 404:
                raise MissingError(f"Vertex AI knows no job {name!r}.") from error
            raise

    def list(self, region: str, labels: Mapping[str, str]) -> list[VendorJob]:
        """Return the jobs of a region that have these labels.

        Raises:
            RefusedError, UnsureError: it cannot be known.
        """
        service = self._service(region)
        wanted = " AND ".join(f'labels.{name}="{value}"' for name, value in labels.items())
        request = {
            "parent": f"projects/{self._project}/locations/{region}",
            "filter": wanted,
            "page_size": _PAGE,
        }
        return self._read(lambda: [_seen(job) for job in service.list_custom_jobs(request=request, timeout=_READ_S)])

    def cancel(self, name: str) -> None:
        """Ask for the end of a job; asked twice, or of one that has ended or is gone, nothing happens.

        Raises:
            RefusedError, UnsureError: it was refused, or may not have arrived.
        """
        service = self._service(name.split("/")[3])
        try:
            self._read(lambda: service.cancel_custom_job(name=name, timeout=_READ_S))
        except RefusedError as error:
            # 400: it has ended. Whoever asks looks at its state anyhow.
            if error.status not in (400, 404, 409):
                raise

    def _read(self, call: Callable[[], _T]) -> _T:
        """Return what a call returns that does nothing, or does the same when it is sent twice."""
        until, wait_s = self._clock.monotonic() + _PATIENCE_S, _FIRST_WAIT_S
        while True:
            try:
                with _told():
                    return call()
            except (RefusedError, UnsureError) as error:
                busy = isinstance(error, UnsureError) or error.status == 429
                if not busy or self._clock.monotonic() + wait_s > until:
                    raise
            self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@contextmanager
def _told() -> Iterator[None]:
    """Raise what a call raises as one of our two kinds."""
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.protobuf.json_format import ParseError  # type: ignore[import-untyped,unused-ignore]
    from requests import RequestException

    try:
        with warnings.catch_warnings():
            # A state that this version of the client does not know is kept as its number.
            warnings.filterwarnings("ignore", message="Unrecognized .* enum value")
            yield
    except GoogleAPICallError as error:
        status, said = int(error.code or 0), _words(error)
        if status in _REFUSALS:
            raise RefusedError(said, status) from error
        raise UnsureError(f"Vertex AI gives no good answer: {status} {said}") from error
    except TransportError as error:
        raise UnsureError(
            f"Google's servers for credentials cannot be reached: {error}. Next: check the network."
        ) from error
    except GoogleAuthError as error:
        raise RefusedError(f"The credentials are not accepted: {error}. {_LOGIN}", 401) from error
    except (RequestException, RetryError, OSError) as error:
        raise UnsureError(
            f"Vertex AI cannot be reached: {type(error).__name__}: {emulator.masked(str(error))}. Next: check the network."
        ) from error
    except (ParseError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise UnsureError(f"Vertex AI's answer is not what its service says: {said}. {_FOREIGN}") from error


def _words(error: Any) -> str:
    """Return the service's own words, with the reason that stands beside them."""
    said = str(getattr(error, "message", "") or error)
    for lead in ("POST ", "GET ", "DELETE "):
        said = said.partition(": ")[2] if said.startswith(lead) and ": " in said else said
    reason, said = getattr(error, "reason", None), emulator.masked(said)
    return f"{said} ({reason})" if reason and str(reason) not in said else said


def _seen(job: Any) -> VendorJob:
    """Return our view of a job as the client gives it, or raise ValueError for what is none."""
    if not _NAME.fullmatch(job.name):
        raise ValueError(f"it names no job ({str(job.name)!r})")
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
