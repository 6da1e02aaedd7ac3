"""Calls of Cloud Build and Artifact Registry: with time limits, and repeated where that is harmless."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from ...clock import Clock
from ...errors import InputError, PodliftError, UnavailableError
from ...storage import emulator
from ...storage.retry import Retries
from . import client
from .client import OutcomeUnknownError, VertexRejectedError
from .service import named, sentence

BUILD, REGISTRY = "Cloud Build", "Artifact Registry"
_HOSTS = {BUILD: "cloudbuild.googleapis.com", REGISTRY: "artifactregistry.googleapis.com"}
_READ_S, _WRITE_S = 20.0, 60.0
_RETRY_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 45.0, 0.5, 8.0
_MISSING, _SLOW_DOWN = 404, 429
# What a text of either service means, and what helps; the first match counts.
_MEANINGS = (
    (
        r"SERVICE_DISABLED|has not been used in project|API .{0,40}(is )?disabled",
        "The API is not enabled. Next: gcloud services enable {host} --project={project}.",
    ),
    (
        r"actAs|serviceAccountUser|caller does not have permission to act as",
        "You may not let Cloud Build use this service account. Next: ask for roles/iam.serviceAccountUser on it.",
    ),
    (
        r"quota restrictions.{0,80}region|cannot run builds in this region",
        "Cloud Build runs nothing in this region for this project. Next: --region with another one; jobs can use an image of "
        "any region.",
    ),
    (
        r"artifactregistry\.\S+",
        "A right is missing. Next: ask for roles/artifactregistry.reader on the repository {project}/podlift.",
    ),
    (
        r"cloudbuild\.\S+|PERMISSION_DENIED|[Pp]ermission",
        "A right is missing. Next: ask for roles/cloudbuild.builds.editor in the project {project}.",
    ),
)

_T = TypeVar("_T")


class RejectedError(PodliftError):
    """A service rejected a request without executing it."""


class BuildCalls:
    def __init__(self, project: str, clock: Clock) -> None:
        self._project, self._clock = project, clock

    def get(
        self, service: str, name: str, convert: Callable[[Any], _T], query: Mapping[str, str] | None = None
    ) -> _T | None:
        """Return a resource, converted; None if there is none."""
        tries = Retries.within(_RETRY_S, self._clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        while True:
            try:
                return self._send(service, lambda: self._exchange("GET", service, name, convert, _READ_S, query=query))
            except UnavailableError:
                if not tries.again():
                    raise
            except RejectedError as error:
                cause = error.__cause__
                if isinstance(cause, VertexRejectedError) and cause.status == _MISSING:
                    return None
                raise

    def post(self, service: str, name: str, convert: Callable[[Any], _T], body: Mapping[str, object]) -> _T:
        """Send a request once: a second one could start a second build. OutcomeUnknownError without a valid answer."""
        return self._send(service, lambda: self._exchange("POST", service, name, convert, _WRITE_S, body=body))

    def _send(self, service: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except VertexRejectedError as error:
            raise self._failure(service, error) from error

    def _exchange(
        self, method: str, service: str, name: str, convert: Callable[[Any], _T], timeout_s: float, **more: Any
    ) -> _T:
        address = emulator.checked_address() or f"https://{_HOSTS[service]}"
        url = f"{address}/v1/{quote(name, safe='/@:')}"
        return client.exchange(method, url, convert, timeout_s, service=service, project=self._project, **more)

    def _failure(self, service: str, error: VertexRejectedError) -> PodliftError:
        name, said = sentence(named(emulator.asked(), service)), str(error)
        if error.status == _SLOW_DOWN:
            return UnavailableError(f"{name} asks to slow down: {said}")
        if not error.status:
            return InputError(said)
        found = next((text for pattern, text in _MEANINGS if re.search(pattern, said)), "")
        meant = found.format(project=self._project, host=_HOSTS[service])
        return RejectedError(f'{name} rejected the request: {error.status} "{said.rstrip(".")}." {meant}'.rstrip())


__all__ = ["BUILD", "REGISTRY", "BuildCalls", "OutcomeUnknownError", "RejectedError"]
