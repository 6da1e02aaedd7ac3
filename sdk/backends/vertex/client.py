"""Vertex AI by REST, with a timeout on each call, retries of reads, and classified errors.

Google's client takes a second to import, waits without limit for a silent server and repeats no lost request. Here, reads are
retried. A write is sent once, and its error distinguishes a rejection from a write that may have been executed. Only the caller
can decide whether to send another one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote

import requests

from ...clock import Clock, SystemClock
from ...errors import InputError, MissingError, PodliftError, UnavailableError
from ...storage import emulator, emulator_proof
from ...storage.gcs.auth import MachineToken, TokenError
from ...storage.retry import Retries, retry_after_s
from ...text import innermost
from .job.diagnose import diagnose
from .job.states import VendorJob, state_name
from .service import VERTEX_AI, quoted, sentence, service_name, stand_in
from .service import url as google_url

_WRITE_S, _READ_S = 60.0, 20.0
# Reads are retried for this long, with exponential backoff.
_RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 45.0, 0.5, 8.0
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# HTTP statuses of requests that were not executed and would be rejected again.
_REJECTIONS = frozenset({400, 401, 403, 404, 405, 409, 412, 413, 429, 501})
_FAILED = 400
_DENIALS, _SLOW_DOWN = (401, 403), 429
_PAGE = 100
# A response is read up to 64 MB: a page of jobs has some hundred KB.
_PIECE_BYTES, _PIECES = 64 << 10, 1 << 10
_MAX_CHARACTERS = 300
_LOGIN = "Next: gcloud auth application-default login."
# Responses of a proxy or of the network's login page.
_INTERCEPTED = "A proxy or login page may have intercepted the request. Next: check the network and its proxies."
# A region of a project, or a resource in it. The region is part of the host that gets the credentials, and names are read from
# buckets.
_RESOURCE = re.compile(
    r"projects/[A-Za-z0-9][\w:.-]*/locations/([a-z0-9-]+)"
    r"((?:/customJobs/[A-Za-z0-9_-][\w:.@-]*)+)?",
    re.ASCII,
)
PROJECTS = "https://cloudresourcemanager.googleapis.com"
ACCOUNTS = "https://iam.googleapis.com"
STORAGE = "https://storage.googleapis.com"
REPOSITORIES = "https://artifactregistry.googleapis.com"
BUILDS = "https://cloudbuild.googleapis.com"
APIS = "https://serviceusage.googleapis.com"
TROUBLESHOOTER = "https://policytroubleshooter.googleapis.com"
# To connect and to answer, for requests that only look.
_LOOK_S = (3.0, 8.0)
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_T = TypeVar("_T")


class VertexRejectedError(PodliftError):
    """Vertex AI rejected a request without executing it. `status` is the HTTP status, or 0 if there were no credentials."""

    def __init__(self, message: str, status: int, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.wait_s = wait_s  # how long the service demands to wait


class OutcomeUnknownError(UnavailableError):
    """There was no response, or none that shows whether the request was executed."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def session(url: str, project: str = "") -> Any:
    """Return this process's session of requests for services of Google, or for an emulator, which has no credentials.

    `project` is that to which the requests of a user without a quota project are charged: gcloud's own has few services.
    """
    authorized = url.startswith("https:") and not emulator.address()
    shared = _session("" if authorized else emulator.address() or url)
    credentials: Any = getattr(shared, "credentials", None)
    named = project and hasattr(credentials, "refresh_token") and hasattr(credentials, "with_quota_project")
    return _charged(project) if named and not credentials.quota_project_id else shared


@lru_cache(maxsize=2)
def _charged(project: str) -> Any:
    from google.auth.transport.requests import AuthorizedSession

    charged = _session("").credentials.with_quota_project(project)
    return AuthorizedSession(charged)  # type: ignore[no-untyped-call,unused-ignore]


@lru_cache(maxsize=2)
def _session(emulated: str) -> Any:
    if not emulated:
        try:
            from google.auth.transport.requests import AuthorizedSession
        except ImportError:
            # The image of a keeper has a metadata server instead.
            machine = requests.Session()
            machine.auth = MachineToken()
            return machine
        return AuthorizedSession(credentials())  # type: ignore[no-untyped-call,unused-ignore]
    return emulator_proof.session(emulated)


# Two processes that share a connection would read each other's responses.
os.register_at_fork(after_in_child=_session.cache_clear)
os.register_at_fork(after_in_child=_charged.cache_clear)


def credentials() -> Any:
    from google.auth import default
    from google.auth.exceptions import GoogleAuthError

    try:
        return default(scopes=[_SCOPE])[0]
    except GoogleAuthError as error:
        raise VertexRejectedError(
            f"There are no credentials for Google Cloud: {_reason(error)}. {_LOGIN}", 0
        ) from error


def check_body(body: Mapping[str, object]) -> None:
    """Reject a body with unknown fields, by Google's own type. Its import takes a second."""
    try:
        from google.cloud.aiplatform_v1 import CustomJob
        from google.protobuf.json_format import ParseError  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        # The container of a keeper has no such package. Its plan was checked when the schedule was created.
        return
    try:
        CustomJob.from_json(json.dumps(body))
    except (ParseError, ValueError, TypeError) as error:
        raise InputError(
            f"This is not a valid custom job of Vertex AI: {_reason(error)}. Next: check raw=; podlift plan --json shows the "
            "request."
        ) from None


class JobClient:
    def __init__(self, project: str, *, clock: Clock | None = None) -> None:
        self._project = project
        self._clock = clock or SystemClock()

    def create(self, region: str, body: Mapping[str, object]) -> VendorJob:
        return send("POST", self._parent(region), "/customJobs", _vendor_job, _WRITE_S, body=body)

    def get(self, name: str, *, within_s: float | None = None, timeout_s: float | None = None) -> VendorJob:
        """Return a job.

        Args:
            within_s: how long to repeat the request if the service does not answer.
            timeout_s: how long to wait for each answer.
        """
        try:
            return self._read("look at the job", lambda: send("GET", name, "", _vendor_job, timeout_s), within_s)
        except VertexRejectedError as error:
            if error.status == 404:
                raise MissingError(sentence(f"{service_name()} has no job {name!r}.")) from error
            raise

    def list(self, region: str, labels: Mapping[str, str], *conditions: str) -> list[VendorJob]:
        """Return the jobs in a region with these labels, for which other conditions of a filter hold, too."""
        named = [f'labels.{name}="{value}"' for name, value in labels.items()]
        query = {"filter": " AND ".join([*named, *conditions])}
        query["pageSize"] = str(_PAGE)
        listed: list[VendorJob] = []
        while True:
            jobs, query["pageToken"] = self._read(
                "list the jobs", lambda: send("GET", self._parent(region), "/customJobs", _page, query=query)
            )
            listed += jobs
            if not query["pageToken"]:
                return listed

    def cancel(self, name: str) -> None:
        """Cancel a job. Has no effect on a job that was cancelled before, has ended or does not exist."""
        try:
            self._read("cancel the job", lambda: send("POST", name, ":cancel", dict, body={}))
        except VertexRejectedError as error:
            # 400: it has ended.
            if error.status not in (400, 404, 409):
                raise

    def _parent(self, region: str) -> str:
        return f"projects/{self._project}/locations/{region}"

    def _read(self, what: str, call: Callable[[], _T], within_s: float | None = None) -> _T:
        return repeated(what, call, self._clock, within_s)


def repeated(
    what: str, call: Callable[[], _T], clock: Clock, within_s: float | None = None, *, service: str = ""
) -> _T:
    """Send a request until it is answered: for requests that may be executed twice.

    `what` follows "refuses to" in the error of a request about a job; "" for another. `service` answers, by default Vertex AI.
    """
    tries = Retries.within(_RETRY_S if within_s is None else within_s, clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
    while True:
        try:
            return call()
        except OutcomeUnknownError as error:
            if not tries.again(error.wait_s):
                raise
        except VertexRejectedError as error:
            if error.status != _SLOW_DOWN:
                raise _explained(what, error) from error
            if not tries.again(error.wait_s):
                text = f"{service or service_name()} asks to slow down (429): {error}"
                raise OutcomeUnknownError(sentence(text), error.wait_s) from error


def _explained(what: str, error: VertexRejectedError) -> VertexRejectedError:
    """Return the rejection of a request about a job, with its meaning."""
    if error.status not in _DENIALS or not what:
        return error
    text = f"{service_name()} refuses to {what}. {diagnose(str(error), error.status).message}"
    return VertexRejectedError(sentence(quoted(text)), error.status, error.wait_s)


def send(
    method: str,
    resource: str,
    suffix: str,
    convert: Callable[[Any], _T],
    timeout_s: float | None = None,
    *,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
) -> _T:
    """Send a request about a region or a resource in it, once, and return its JSON response, converted."""
    match = _RESOURCE.fullmatch(resource)
    if match is None:
        raise InputError(f"Not a job or region of Vertex AI. Received: {resource[:_MAX_CHARACTERS]!r}.")
    address = google_url(f"https://{match[1]}-aiplatform.googleapis.com")
    # The headers of Google's client.
    headers = {
        "x-goog-request-params": f"{'name' if match[2] else 'parent'}={quote(resource)}",
        "x-goog-api-client": f"gl-python/{platform.python_version()}",
    }
    url = f"{address}/v1/{resource}{suffix}"
    return exchange(method, url, convert, timeout_s or _READ_S, query=query, body=body, headers=headers)


def exchange(
    method: str,
    url: str,
    convert: Callable[[Any], _T],
    timeout_s: float,
    *,
    query: Mapping[str, str] | None = None,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    service: str = VERTEX_AI,
    project: str = "",
) -> _T:
    """Send a request to a service of Google, once, and return its response in JSON, converted. See `session`."""
    more: dict[str, object] = {"params": query, "json": body, "headers": headers, "timeout": timeout_s}
    name = service_name(service)
    try:
        # A write must not be sent twice: no redirects, which Google's APIs do not use.
        with session(url, project).request(method, url, **more, allow_redirects=False, stream=True) as response:
            data = b"".join(islice(response.iter_content(_PIECE_BYTES), _PIECES))
    except Exception as error:
        failure = _translated(error, timeout_s, name)
        if failure is None:
            raise
        raise failure from error
    if response.status_code >= _FAILED:
        raise _failure(response, data, name)
    try:
        return convert(json.loads(data))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"the response of {name} is not valid"
        raise OutcomeUnknownError(sentence(f"{what}: {_reason(error)}. {_INTERCEPTED}")) from error


def _reason(error: Exception) -> str:
    """Return the first line of an error's text without its full stop, since the sentence around it continues."""
    return str(error).partition("\n")[0].rstrip(". ")


def _unreachable(error: Exception, timeout_s: float, name: str) -> str:
    if isinstance(error, requests.ReadTimeout):
        text = f"{name} has accepted the request, but did not answer within {timeout_s:g} s. Next: try again."
        return sentence(text)
    reason = f"{type(error).__name__}: {emulator.mask_token(innermost(error))}"
    step = "start it again: podlift emulator --data DIR --port PORT" if stand_in() else "check the network"
    return sentence(f"{name} cannot be reached: {reason}. Next: {step}.")


def _failure(response: Any, data: bytes, name: str) -> PodliftError:
    status, wait_s = response.status_code, retry_after_s(response.headers)
    text = emulator.mask_token(_error_text(data) or str(response.reason or "no reason given"))
    if status in _REJECTIONS:
        return VertexRejectedError(text, status, wait_s)
    return OutcomeUnknownError(sentence(f"{name} failed: {status} {text}"), wait_s)


def _error_text(data: bytes) -> str:
    try:
        answer = json.loads(data)
        error = (answer[0] if isinstance(answer, list) else answer)["error"]
        text = str(error["message"])
        reasons = [str(detail["reason"]) for detail in error.get("details") or () if detail.get("@type") == _ERROR_INFO]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data.decode("utf-8", "replace").strip()[:_MAX_CHARACTERS]
    return f"{text} ({reasons[0]})" if reasons and reasons[0] not in text else text


def _translated(error: Exception, timeout_s: float, name: str) -> PodliftError | None:
    # google-auth is imported if it raised the error.
    auth: Any = sys.modules.get("google.auth.exceptions")
    if auth is not None and isinstance(error, auth.TransportError):
        return OutcomeUnknownError(
            f"Google's servers for credentials cannot be reached: {_reason(error)}. Next: check the network."
        )
    if auth is not None and isinstance(error, auth.GoogleAuthError):
        return VertexRejectedError(f"The credentials are not accepted: {_reason(error)}. {_LOGIN}", 401)
    if isinstance(error, TokenError) and not error.again:
        return VertexRejectedError(f"The machine's service account is not accepted: {error}.", 401)
    if isinstance(error, (requests.RequestException, OSError, TokenError)):
        return OutcomeUnknownError(_unreachable(error, timeout_s, name))
    return None


@dataclass(frozen=True, kw_only=True)
class ServiceReply:
    """A response; the status is 0 without one, and 401 without credentials. `error` explains a missing response."""

    status: int
    body: Mapping[str, object] = field(default_factory=dict)
    error: str = ""

    def items(self, name: str) -> list[Mapping[str, object]]:
        """Return the objects of a list in the response."""
        return objects(self.body, name)


def objects(answer: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """Return the objects of a list in another object; other items are left out."""
    listed = answer.get(name)
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def read(host: str, path: str, body: Mapping[str, object] | None = None, *, project: str = "") -> ServiceReply:
    """Query a service beside Vertex AI, once and for a short time: by a GET, or by a POST of a body. See `session`."""
    url = google_url(host) + path
    try:
        more: dict[str, object] = {"json": body} if body is not None else {}
        response = session(url, project).request("GET" if body is None else "POST", url, timeout=_LOOK_S, **more)
        answer = response.json()
    except Exception as error:  # of any library for credentials: nothing is known then
        reason = str(error).partition(" Next:")[0].partition("\n")[0].rstrip(". ")
        if isinstance(error, VertexRejectedError):
            return ServiceReply(status=401, error=reason)
        auth: Any = sys.modules.get("google.auth.exceptions")
        status = 401 if auth is not None and isinstance(error, auth.RefreshError) else 0
        return ServiceReply(status=status, error=emulator.mask_token(f"{type(error).__name__}: {reason}"))
    if response.status_code != 200:
        about = answer.get("error") if isinstance(answer, dict) else None
        text = about.get("message", "") if isinstance(about, dict) else ""
        message = f"{response.status_code}: {text or response.reason}".rstrip(".")
        return ServiceReply(status=response.status_code, error=message)
    if not isinstance(answer, dict):
        return ServiceReply(status=0, error="the answer is no object")
    return ServiceReply(status=200, body=answer)


def _page(page: Any) -> tuple[list[VendorJob], str]:
    """Convert a page of a list of jobs. Return its jobs, and the token of the next page."""
    return [_vendor_job(job) for job in page.get("customJobs") or ()], str(page.get("nextPageToken") or "")


def _vendor_job(job: Any) -> VendorJob:
    """Convert a CustomJob. Raises ValueError, TypeError or AttributeError if it is not one."""
    name, error = job.get("name", ""), job.get("error") or {}
    match = _RESOURCE.fullmatch(name)
    if match is None or "/customJobs/" not in name:
        raise ValueError(f"it does not name a job ({name[:_MAX_CHARACTERS]!r})")
    pools = (job.get("jobSpec") or {}).get("workerPoolSpecs") or [{}]
    return VendorJob(
        name=name,
        state=state_name(job.get("state") or 0),
        message=str(error.get("message") or ""),
        code=int(error.get("code") or 0),
        labels=dict(job.get("labels") or {}),
        args=tuple(map(str, (pools[0].get("containerSpec") or {}).get("args") or ())),
        created=unix_time(job.get("createTime")),
        started=unix_time(job.get("startTime")),
        ended=unix_time(job.get("endTime")),
    )


def unix_time(text: str | None) -> float | None:
    """Parse a timestamp in UTC with a fraction of up to nine digits."""
    if not text:
        return None
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
