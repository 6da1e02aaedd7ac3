"""Ray's Jobs API by plain HTTP: its five routes, with a timeout on each call, retries, and classified errors.

The client needs neither the Ray package nor the cluster's version of it. The creator names the job, and a cluster accepts a
name only once: after a lost answer, the client looks the job up by its name, and never creates a second one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import requests

from ...clock import Clock, SystemClock
from ...errors import InputError, MissingError, PodliftError, UnavailableError
from ...storage.retry import Retries
from ...text import innermost
from ..job_run import RejectedError
from .options import VARIABLE, Ray

DEFAULT_ADDRESS, ADDRESS_VARIABLE = "http://127.0.0.1:8265", "RAY_API_SERVER_ADDRESS"
_TIMEOUT_S, _RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 20.0, 30.0, 0.25, 4.0
_CREATE_S, _TRIES = 60.0, 4
_FAILED, _UNKNOWN, _DENIALS, _MISSING = 400, 500, (401, 403), 404
# A certificate that is not trusted: nothing was sent.
_UNTRUSTED = 495
_NO_TOKEN = 401
# Where Ray keeps the token of this user. `ray.init()` makes one, and then `ray start` expects it.
_TOKEN_FILE, _TOKEN_CHARACTERS = "~/.ray/auth_token", 4096
_MAX_CHARACTERS = 300
_EXISTS = re.compile(r"already exists")
# Tracebacks of the server end with the line that matters.
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)
_T = TypeVar("_T")


class RayUnavailableError(UnavailableError):
    """There was no answer, or none that shows whether the request was executed."""


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """A job as the cluster describes it."""

    id: str
    status: str  # PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED
    message: str = ""
    started: float | None = None  # unix time
    ended: float | None = None

    @property
    def over(self) -> bool:
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")

    @property
    def failed(self) -> bool:
        return self.status == "FAILED"

    @property
    def is_waiting(self) -> bool:
        return self.status == "PENDING"


def configured_address(environ: Mapping[str, str]) -> str:
    """Return the default address of the cluster."""
    return (environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS).rstrip("/")


class RayJobs:
    """The jobs of one cluster. `environ` has the variables that headers name."""

    def __init__(self, target: Ray, *, clock: Clock | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.address = target.address or configured_address(environ)
        self._clock = clock or SystemClock()
        self._headers = target.headers
        self._environ = environ
        self._token = ""  # the machine's, once the cluster has demanded one

    def version(self) -> str:
        """Return the version of Ray; InputError if there is no such server, or none that has the Jobs API."""
        try:
            answer = self._repeated(lambda: self._send("GET", "/api/version", _object), within_s=1.0)
            version = str(answer["ray_version"])
        except (RayUnavailableError, RejectedError) as error:
            if isinstance(error, RejectedError) and error.status not in (*_DENIALS, _UNTRUSTED):
                raise InputError(self._not_ray(str(error))) from error
            raise InputError(str(error)) from error
        except KeyError as error:
            raise InputError(self._not_ray("it reports no version of Ray")) from error
        self._check_jobs_api(version)
        return version

    def _check_jobs_api(self, version: str) -> None:
        try:
            self._send("GET", "/api/jobs/", lambda answer: answer)
        except RejectedError as error:
            if error.status == _MISSING:
                raise InputError(
                    f"The cluster at {self.address} runs Ray {version}, which has no Jobs API. Next: upgrade it to Ray 2.10 "
                    "or later, with the package ray[default]."
                ) from error
            raise InputError(str(error)) from error
        except RayUnavailableError as error:
            raise InputError(str(error)) from error

    def _not_ray(self, why: str) -> str:
        return (
            f"The server at {self.address} is not the dashboard of a Ray cluster: {why}. Next: --ray-address with the URL that "
            "`ray start --head` prints for the dashboard, such as http://HOST:8265."
        )

    def create(self, body: Mapping[str, object]) -> RayJob:
        """Create the job of this body, once, and return it, or the existing one."""
        name = str(body["submission_id"])
        tries = 0
        while True:
            tries += 1
            try:
                self._send("POST", "/api/jobs/", _object, _CREATE_S, body=body)
                return self.get(name)
            except (RayUnavailableError, RejectedError) as error:
                # An answer may be lost, or say that an earlier request has created it.
                with suppress(MissingError):
                    return self.get(name)
                if (isinstance(error, RejectedError) and error.status < _UNKNOWN) or tries == _TRIES:
                    raise
                self._clock.sleep(_FIRST_WAIT_S * 2**tries)

    def get(self, name: str, *, within_s: float | None = None) -> RayJob:
        """Return a job, or raise MissingError. `within_s`: how long to repeat the request if there is no answer."""
        try:
            return self._repeated(lambda: self._send("GET", f"/api/jobs/{name}", _job), within_s)
        except RejectedError as error:
            if error.status == _MISSING:
                raise MissingError(f"The cluster at {self.address} has no job {name!r}.") from error
            raise

    def logs(self, name: str) -> str:
        """Return the output of the driver of a job."""
        answer = self._repeated(lambda: self._send("GET", f"/api/jobs/{name}/logs", _object), within_s=3.0)
        return str(answer.get("logs") or "")

    def stop(self, name: str) -> None:
        """Stop a job. Has no effect on an ended or missing job."""
        try:
            self._repeated(lambda: self._send("POST", f"/api/jobs/{name}/stop", _object))
        except RejectedError as error:
            if error.status != _MISSING:
                raise

    def _repeated(self, call: Callable[[], _T], within_s: float | None = None) -> _T:
        limit_s = _RETRY_S if within_s is None else within_s
        tries = Retries.within(limit_s, self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        return tries.until_answered(call)

    def _filled(self) -> dict[str, str]:
        """Return the headers with the values of the variables that they name."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in self._environ:
                raise RejectedError(
                    f"ray_headers: the variable {name} is not set here, and a header needs it. Next: export {name}=...",
                    401,
                )
            return self._environ[name]

        headers = {name: VARIABLE.sub(value, text) for name, text in self._headers.items()}
        return {**headers, **({"Authorization": f"Bearer {self._token}"} if self._token else {})}

    def _send(
        self,
        method: str,
        path: str,
        convert: Callable[[Any], _T],
        timeout_s: float = _TIMEOUT_S,
        *,
        body: Mapping[str, object] | None = None,
    ) -> _T:
        content = None if body is None else json.dumps(body)
        try:
            answer = self._answer(method, path, content, timeout_s)
            if answer.status_code == _NO_TOKEN and (token := self._machines_token()):
                self._token = token
                answer = self._answer(method, path, content, timeout_s)
        except requests.RequestException as error:
            raise self._unreachable(error, timeout_s) from error
        text = answer.text
        if answer.is_redirect or answer.status_code in _DENIALS:
            raise RejectedError(self._denied(answer.status_code, text), answer.status_code)
        if answer.status_code >= _FAILED:
            message = self._masked((_ERROR.findall(text) or [text.strip()])[-1][:_MAX_CHARACTERS] or answer.reason)
            if answer.status_code < _UNKNOWN or _EXISTS.search(text):
                raise RejectedError(
                    f"the cluster at {self.address} answers {answer.status_code}: {message}", answer.status_code
                )
            raise RayUnavailableError(f"The cluster at {self.address} answers {answer.status_code}: {message}.")
        try:
            return convert(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RejectedError(
                f"it answers {method} {path} with no JSON of Ray ({text.strip()[:60]!r})", 406
            ) from error

    def _answer(self, method: str, path: str, content: str | None, timeout_s: float) -> requests.Response:
        headers = self._filled()
        if content is not None:
            headers["Content-Type"] = "application/json"
        with requests.Session() as session:
            # Credentials of Google or a .netrc are not for this server; a proxy may be.
            session.auth = _no_auth
            return session.request(
                method, self.address + path, data=content, headers=headers, timeout=timeout_s, allow_redirects=False
            )

    def _machines_token(self) -> str:
        """Return the token that Ray's own clients on this machine would send; "" for none, or if the user gives one."""
        if self._token or any(name.lower() == "authorization" for name in self._headers):
            return ""
        if token := self._environ.get("RAY_AUTH_TOKEN", "").strip():
            return token
        path = self._environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser(_TOKEN_FILE)
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            return file.read(_TOKEN_CHARACTERS).strip()
        return ""

    def _masked(self, text: str) -> str:
        for value in (*self._filled().values(), self._token):
            text = text.replace(value, "***") if value else text
        return text

    def _denied(self, status: int, text: str) -> str:
        what = text.strip().partition("\n")[0][:_MAX_CHARACTERS].rstrip(".")
        return self._masked(
            f"The cluster at {self.address} does not accept this client ({status}{f': {what}' if what else ''}). Next: give it "
            "its token, which `ray get-auth-token` prints there: export RAY_AUTH_TOKEN=...; or a proxy's token: "
            '--ray-headers \'{"Authorization": "Bearer $PROXY_TOKEN"}\', with PROXY_TOKEN in the environment.'
        )

    def _unreachable(self, error: requests.RequestException, timeout_s: float) -> PodliftError:
        if isinstance(error, requests.exceptions.SSLError):
            return RejectedError(
                f"The certificate of {self.address} is not accepted: {innermost(error)}. Next: name the file of its authority: "
                "REQUESTS_CA_BUNDLE=FILE, or use the http:// address if the cluster has no TLS.",
                _UNTRUSTED,
            )
        if isinstance(error, requests.Timeout):
            return RayUnavailableError(
                f"The cluster at {self.address} did not answer within {timeout_s:g} s. Next: try again."
            )
        return RayUnavailableError(
            f"No Ray cluster can be reached at {self.address}: {self._masked(innermost(error))}. Next: start one (ray start "
            "--head), or name the URL of its dashboard: --ray-address http://HOST:8265; for KubeRay, kubectl port-forward "
            "service/NAME-head-svc 8265."
        )


def _no_auth(request: Any) -> Any:
    return request


def _object(answer: Any) -> Mapping[str, object]:
    if not isinstance(answer, dict):
        raise TypeError("not an object")
    return answer


def _job(job: Any) -> RayJob:
    start, end = job.get("start_time"), job.get("end_time")
    return RayJob(
        id=str(job["submission_id"]),
        status=str(job["status"]),
        message=str(job.get("message") or ""),
        started=start and start / 1000,
        ended=end and end / 1000,
    )
