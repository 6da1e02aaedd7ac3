"""Builds images with Cloud Build, into a repository of Artifact Registry. The same content is built once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ....clock import Clock
from ....errors import InputError, MissingError, PodliftError, UnavailableError
from ....job.targets import Target
from ...services import Build, ImageDraft
from .. import client, service
from ..client import BUILDS, REPOSITORIES, OutcomeUnknownError, VertexRejectedError
from ..job.create_job import SEARCH_DELAYS_S
from ..options import Vertex
from . import recipe

_NAMES = {BUILDS: "Cloud Build", REPOSITORIES: "Artifact Registry"}
_READ_S, _WRITE_S = 20.0, 60.0
_MISSING, _SLOW_DOWN = 404, 429
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_STATES = {"PENDING": "waiting", "QUEUED": "waiting", "WORKING": "working", "SUCCESS": "done"}
# Why a build ended otherwise, by its status or the type of its failure: what happened, and what to do.
_ENDS = {
    "USER_BUILD_STEP": "A line of the Dockerfile failed. Next: read the log.",
    "PUSH_NOT_AUTHORIZED": "The account of the build may not push to the repository. Next: grant it "
    "roles/artifactregistry.writer on {repository}.",
    "PUSH_FAILED": "The image could not be pushed to {repository}. Next: read the log.",
    "PUSH_IMAGE_NOT_FOUND": "The build made no image called {image}. Next: read the log.",
    "LOGGING_FAILURE": "The log could not be written. Next: grant the account of the build roles/logging.logWriter.",
    "INTERNAL_ERROR": "Cloud Build itself failed. Next: try again.",
    "TIMEOUT": "It took longer than an hour. Next: read the log.",
    "CANCELLED": "It was cancelled. Next: try again.",
    "EXPIRED": "It waited too long in the queue. Next: try again.",
}
_UNKNOWN_END = "It ended with {status}. Next: read the log."
# Error texts of both services, with meaning and advice; the first match counts.
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


class VertexImages:
    """The images of the backend called "vertex"."""

    def draft(
        self, family: str, target: Target, *, region: str | None, account: str | None, dockerfile: Path | None
    ) -> ImageDraft:
        return recipe.draft(family, Vertex.of(target), region, account, dockerfile)

    def built(self, draft: ImageDraft, clock: Clock) -> str:
        repository = recipe.repository(draft)
        if _get(draft, clock, REPOSITORIES, repository, _object) is None:
            create = recipe.create_repository(_project(draft), draft.parent.rpartition("/")[2])
            raise InputError(f"There is no repository for images, {repository}. Next: {create}.")
        tag = f"{repository}/packages/{draft.family}/tags/{draft.name.rpartition(':')[2]}"
        tagged = _get(draft, clock, REPOSITORIES, tag, _object) or {}
        return recipe.reference(draft, str(tagged.get("version", "")).rpartition("/")[2])

    def start(self, draft: ImageDraft, clock: Clock) -> tuple[Build, bool]:
        running = _running(draft, clock)
        if running is not None:
            return running, False
        try:
            return _post(draft), True
        except OutcomeUnknownError as error:
            # The reply was lost: a build that was created has the tag of this content.
            for wait_s in SEARCH_DELAYS_S:
                clock.sleep(wait_s)
                running = _running(draft, clock)
                if running is not None:
                    return running, True
            raise UnavailableError(
                f"It is unknown whether a build was started: {str(error).rstrip('.')}. Next: podlift image {draft.family} "
                "--submit again, which searches for that build before it starts one."
            ) from error

    def look(self, draft: ImageDraft, build: Build, clock: Clock) -> Build:
        name = f"{draft.parent}/builds/{build.id}"
        latest = _get(draft, clock, BUILDS, name, lambda answer: _build(draft, answer))
        if latest is None:
            raise MissingError(
                f"Cloud Build no longer has the build {build.id}. Next: podlift image {draft.family} --submit."
            )
        return latest


def _running(draft: ImageDraft, clock: Clock) -> Build | None:
    def builds(page: Any) -> list[Build]:
        return [_build(draft, item) for item in page.get("builds") or ()]

    query = {"filter": recipe.filter_of(draft)}
    listed = _get(draft, clock, BUILDS, f"{draft.parent}/builds", builds, query) or []
    return next((build for build in listed if build.state in ("waiting", "working")), None)


def _get(
    draft: ImageDraft,
    clock: Clock,
    host: str,
    name: str,
    convert: Callable[[Any], _T],
    query: Mapping[str, str] | None = None,
) -> _T | None:
    """Return a resource, converted; None if there is none."""
    send = partial(
        client.exchange, "GET", _url(host, name), convert, _READ_S,
        query=query, service=_NAMES[host], project=_project(draft),
    )  # fmt: skip
    try:
        return client.repeated("", send, clock, service="Cloud Build")
    except VertexRejectedError as error:
        if error.status == _MISSING:
            return None
        raise _failure(draft, host, error) from error


def _post(draft: ImageDraft) -> Build:
    """Create a build. Sent once: a second request could start a second one. OutcomeUnknownError without a valid answer."""

    def created_build(operation: Any) -> Build:
        return _build(draft, (operation.get("metadata") or {}).get("build"))

    try:
        return client.exchange(
            "POST", _url(BUILDS, f"{draft.parent}/builds"), created_build, _WRITE_S,
            body=draft.build, service=_NAMES[BUILDS], project=_project(draft),
        )  # fmt: skip
    except VertexRejectedError as error:
        raise _failure(draft, BUILDS, error) from error


def _url(host: str, name: str) -> str:
    return f"{service.url(host)}/v1/{quote(name, safe='/@:')}"


def _failure(draft: ImageDraft, host: str, error: VertexRejectedError) -> PodliftError:
    name, message = service.sentence(service.service_name(_NAMES[host])), str(error)
    if error.status == _SLOW_DOWN:
        return UnavailableError(f"{name} asks to slow down: {message}")
    if not error.status:
        return InputError(message)
    meaning = next((text for pattern, text in _MEANINGS if re.search(pattern, message)), "")
    meant = meaning.format(project=_project(draft), host=host.removeprefix("https://"))
    return PodliftError(f'{name} rejected the request: {error.status} "{message.rstrip(".")}." {meant}'.rstrip())


def _project(draft: ImageDraft) -> str:
    return draft.parent.split("/")[1]


def _object(answer: Any) -> dict[str, object]:
    if not isinstance(answer, dict):
        raise ValueError("it is no object")
    return answer


def _build(draft: ImageDraft, answer: Any) -> Build:
    """Convert a Build of the API. Raises ValueError, TypeError or AttributeError if it is not one."""
    if not isinstance(answer, dict) or not _ID.fullmatch(str(answer.get("id", ""))):
        raise ValueError("the answer describes no build")
    status, region = str(answer.get("status", "")), draft.parent.rpartition("/")[2]
    state, image, problem = _STATES.get(status, "failed"), "", ""
    if state == "failed":
        problem = _problem(draft, answer, status)
    elif state == "done":
        images = (answer.get("results") or {}).get("images") or ()
        digests = [str(image_made.get("digest", "")) for image_made in images if image_made.get("name") == draft.name]
        image = recipe.reference(draft, next(iter(digests), ""))
        if not image:
            state, problem = "failed", "The build has ended, but names no digest of its image. Next: try again."
    return Build(
        id=answer["id"],
        state=state,  # type: ignore[arg-type]
        # The console does not show builds of an emulator.
        log_url="" if service.stand_in() else str(answer.get("logUrl", "")),
        image=image,
        problem=problem,
        cancel=f"gcloud builds cancel {answer['id']} --region={region} --project={_project(draft)}",
    )


def _problem(draft: ImageDraft, answer: Any, status: str) -> str:
    failure = answer.get("failureInfo") or {}
    kind = str(failure.get("type") or status)
    text = _ENDS.get(kind, _UNKNOWN_END).format(
        repository=recipe.repository(draft), image=draft.name, status=kind or "no status"
    )
    detail = " ".join(str(answer.get("statusDetail") or failure.get("detail") or "").split()).rstrip(".")
    what, _, step = text.partition(" Next: ")
    return f"{what}{f' Cloud Build says: {detail}.' if detail else ''} Next: {step}"
