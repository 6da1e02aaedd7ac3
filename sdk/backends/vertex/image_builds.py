"""Builds images with Cloud Build, into a repository of Artifact Registry. The same content is built once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...clock import Clock
from ...errors import InputError, MissingError, UnavailableError
from ...job.policies import Target, Vertex
from ...storage import emulator
from ..images import Build, ImageDraft
from . import image_recipe
from .build_calls import BUILD, REGISTRY, BuildCalls, OutcomeUnknownError
from .create_job import SEARCH_DELAYS_S

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
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


class VertexImages:
    """The images of the backend called "vertex"."""

    def draft(
        self, family: str, target: Target, *, region: str | None, account: str | None, dockerfile: Path | None
    ) -> ImageDraft:
        return image_recipe.draft(family, Vertex.of(target), region, account, dockerfile)

    def reference(self, draft: ImageDraft, digest: str) -> str:
        return image_recipe.reference(draft, digest, emulated=bool(emulator.asked()))

    def built(self, draft: ImageDraft, clock: Clock) -> str:
        calls = BuildCalls(_project(draft), clock)
        if calls.get(REGISTRY, draft.repository, _object) is None:
            region, name = draft.place.rpartition("/")[2], draft.repository.rpartition("/")[2]
            raise InputError(
                f"There is no repository for images, {draft.repository}. Next: gcloud artifacts repositories create {name} "
                f"--repository-format=docker --location={region} --project={_project(draft)}."
            )
        found = calls.get(REGISTRY, f"{draft.repository}/packages/{draft.family}/tags/{draft.tag}", _object) or {}
        digest = str(found.get("version", "")).rpartition("/")[2]
        return digest if _DIGEST.fullmatch(digest) else ""

    def start(self, draft: ImageDraft, clock: Clock) -> tuple[Build, bool]:
        calls = BuildCalls(_project(draft), clock)
        running = self._running(draft, calls)
        if running is not None:
            return running, False
        try:
            made = calls.post(
                BUILD,
                f"{draft.place}/builds",
                lambda operation: _build(draft, (operation.get("metadata") or {}).get("build")),
                draft.build,
            )
            return made, True
        except OutcomeUnknownError as error:
            # The reply was lost: a build that was created has the tag of this content.
            for wait_s in SEARCH_DELAYS_S:
                clock.sleep(wait_s)
                running = self._running(draft, calls)
                if running is not None:
                    return running, True
            raise UnavailableError(
                f"It is unknown whether a build was started: {str(error).rstrip('.')}. Next: podlift image {draft.family} "
                "--submit again, which looks for that build before it starts one."
            ) from error

    def _running(self, draft: ImageDraft, calls: BuildCalls) -> Build | None:
        def builds(page: Any) -> list[Build]:
            return [_build(draft, each) for each in page.get("builds") or ()]

        found = calls.get(BUILD, f"{draft.place}/builds", builds, {"filter": image_recipe.filter_of(draft)}) or []
        return next((each for each in found if each.state in ("waiting", "working")), None)

    def look(self, draft: ImageDraft, build: Build, clock: Clock) -> Build:
        name = f"{draft.place}/builds/{build.id}"
        found = BuildCalls(_project(draft), clock).get(BUILD, name, lambda answer: _build(draft, answer))
        if found is None:
            raise MissingError(
                f"Cloud Build has no build {build.id} any more. Next: podlift image {draft.family} --submit."
            )
        return found

    def cancel_command(self, draft: ImageDraft, build: Build) -> str:
        region = draft.place.rpartition("/")[2]
        return f"gcloud builds cancel {build.id} --region={region} --project={_project(draft)}"


def _project(draft: ImageDraft) -> str:
    return draft.place.split("/")[1]


def _object(answer: Any) -> dict[str, object]:
    if not isinstance(answer, dict):
        raise ValueError("it is no object")
    return answer


def _build(draft: ImageDraft, found: Any) -> Build:
    """Convert a Build of the API. Raises ValueError, TypeError or AttributeError if it is not one."""
    if not isinstance(found, dict) or not _ID.fullmatch(str(found.get("id", ""))):
        raise ValueError("the answer describes no build")
    status = str(found.get("status", ""))
    state = _STATES.get(status, "failed")
    digest = next(iter(_digests(draft, found)), "") if state == "done" else ""
    problem = "" if state != "failed" else _problem(draft, found, status)
    if state == "done" and not digest:
        state, problem = "failed", "The build has ended, but names no digest of its image. Next: try again."
    # The console knows nothing of an emulator's builds.
    url = "" if emulator.asked() else str(found.get("logUrl", ""))
    return Build(id=found["id"], state=state, log_url=url, digest=digest, problem=problem)  # type: ignore[arg-type]


def _digests(draft: ImageDraft, found: Any) -> Iterator[str]:
    for each in (found.get("results") or {}).get("images") or ():
        if each.get("name") == draft.name and _DIGEST.fullmatch(str(each.get("digest", ""))):
            yield each["digest"]


def _problem(draft: ImageDraft, found: Any, status: str) -> str:
    failure = found.get("failureInfo") or {}
    kind = str(failure.get("type") or status)
    text = _ENDS.get(kind, _UNKNOWN_END).format(
        repository=draft.repository, image=draft.name, status=kind or "no status"
    )
    said = " ".join(str(found.get("statusDetail") or failure.get("detail") or "").split()).rstrip(".")
    what, _, step = text.partition(" Next: ")
    return f"{what}{f' Cloud Build says: {said}.' if said else ''} Next: {step}"
