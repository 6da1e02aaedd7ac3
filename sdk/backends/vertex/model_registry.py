"""Registered models in Vertex AI's Model Registry: one model, with a version for each one that was mirrored.

By REST, as jobs are: a promotion is also made by the container of a run or of a keeper, which has none of Google's libraries.
Where google-cloud-aiplatform is installed, its types judge each request first.

Sources: ModelService of google.cloud.aiplatform.v1, and Model.upload of google-cloud-aiplatform 2.7 (read 2026-11-23).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from ...clock import Clock
from ...errors import InputError, PodliftError, UnavailableError
from ...ids import check_name
from ...registry.mirrors import MirrorDraft, MirroredVersion, MirrorPlace
from ...spec.policies import Target, Vertex
from ...storage import emulator
from ...storage.retry import Retries
from . import client
from .client import OutcomeUnknownError, VertexRejectedError
from .service import check_emulator

ROLE = "roles/aiplatform.user"
_ROOT, _NAME, _VERSION, _RUN, _MANIFEST = (
    f"podlift-{each}" for each in ("root", "model", "version", "run", "manifest")
)
# Of a label's 63 characters.
_DIGEST = 32
_EXISTS, _MISSING = 409, 404
# An upload copies no file, but is an operation; its reply may be lost, and it may appear later.
_UPLOAD_S, _LOST_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 300.0, 45.0, 0.5, 8.0
_PAGE = "100"
_NUMBER = re.compile(r"\d{1,9}")


class VertexModels:
    """The mirror service of the backend called "vertex"."""

    title = "Vertex AI's Model Registry"

    def place(self, target: Target, name: str, image: str) -> MirrorPlace:
        options = Vertex.of(target)
        if not options.project:
            raise InputError(
                f"vertex_project is not set, in which {self.title} would have the model {name!r}. Next: set "
                "PODLIFT_VERTEX_PROJECT, or vertex_project in the project's file."
            )
        check_emulator()
        model = f"projects/{options.project}/locations/{options.place_regions[0]}/models/{check_name(name)}"
        return MirrorPlace(backend="vertex", model=model, image=image, emulator=emulator.asked())

    def versions(self, place: MirrorPlace, clock: Clock) -> Sequence[MirroredVersion]:
        found: list[MirroredVersion] = []
        query = {"pageSize": _PAGE}
        while True:
            try:
                page, query["pageToken"] = client.repeated(
                    f"list the versions of a model ({ROLE} is needed)",
                    lambda: client.send("GET", place.model, ":listVersions", _page, query=query),
                    clock,
                )
            except VertexRejectedError as error:
                if error.status == _MISSING:
                    return []
                raise
            found += page
            if not query["pageToken"]:
                return sorted(found, key=lambda each: int(each.id))

    def upload(self, draft: MirrorDraft, clock: Clock) -> MirroredVersion:
        made = self._sent(draft, clock)
        # Another process may have uploaded the same version at the same time: both keep the older one.
        same = [each for each in self.versions(draft.place, clock) if draft.is_of(each)]
        if same and same[0].id != made:
            self._delete(draft.place, made, clock)
        return same[0] if same else MirroredVersion(id=made, root=draft.root, number=draft.number)

    def _sent(self, draft: MirrorDraft, clock: Clock) -> str:
        """Send the request once, and return the id of the version that it has made."""
        parent, first = draft.place.model.partition("/models/")[0], not self.versions(draft.place, clock)
        body = request(draft, first=first)
        _check(body)
        try:
            operation = client.send("POST", parent, "/models:upload", dict, body=body)
            return self._made(operation, clock)
        except OutcomeUnknownError:
            found = self._appeared(draft, clock)
            if found is None:
                raise
            return found
        except VertexRejectedError as error:
            if error.status == _EXISTS and first:
                return self._sent(draft, clock)  # another process has made the model meanwhile
            raise _explained("upload a version of a model", error) from error

    def _appeared(self, draft: MirrorDraft, clock: Clock) -> str | None:
        """Return the id of a version whose upload was not answered."""
        tries = Retries.within(_LOST_S, clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        while True:
            found = next((each.id for each in self.versions(draft.place, clock) if draft.is_of(each)), None)
            if found is not None or not tries.again():
                return found

    def _made(self, operation: Mapping[str, object], clock: Clock) -> str:
        tries = Retries.within(_UPLOAD_S, clock, _FIRST_WAIT_S, longest_s=_LONGEST_WAIT_S)
        name = str(operation.get("name"))
        while not operation.get("done"):
            operation = client.repeated(
                f"look at the upload of a model ({ROLE} is needed)", lambda: client.send("GET", name, "", dict), clock
            )
            if not operation.get("done") and not tries.again():
                raise UnavailableError(f"Vertex AI has not completed the upload within {_UPLOAD_S:g} s: {name}.")
        error, response = operation.get("error"), operation.get("response")
        version = response.get("modelVersionId") if isinstance(response, Mapping) else None
        if isinstance(error, Mapping) or not version:
            text = error.get("message") if isinstance(error, Mapping) else "it names no version"
            raise PodliftError(f"Vertex AI could not upload the version: {text}")
        return str(version)

    def _delete(self, place: MirrorPlace, version: str, clock: Clock) -> None:
        try:
            client.repeated(
                f"delete a version of a model ({ROLE} is needed)",
                lambda: client.send("DELETE", f"{place.model}@{version}", ":deleteVersion", dict),
                clock,
            )
        except VertexRejectedError as error:
            if error.status != _MISSING:
                raise

    def set_alias(self, place: MirrorPlace, version: MirroredVersion, alias: str, clock: Clock) -> None:
        client.repeated(
            f"move an alias ({ROLE} is needed)",
            lambda: client.send(
                "POST", f"{place.model}@{version.id}", ":mergeVersionAliases", dict, body={"versionAliases": [alias]}
            ),
            clock,
        )


def request(draft: MirrorDraft, *, first: bool) -> Mapping[str, object]:
    """Return the body that uploads a version; the first one makes the model."""
    labels = {
        _ROOT: draft.root,
        _NAME: draft.name,
        _VERSION: str(draft.number),
        _RUN: draft.run,
        _MANIFEST: draft.manifest[:_DIGEST],
    }
    model: dict[str, object] = {"displayName": draft.name, "versionDescription": draft.about, "labels": labels}
    # Google's client refuses artifacts without a container image. Without one, the description names the files.
    if draft.place.image:
        model |= {"artifactUri": draft.files, "containerSpec": {"imageUri": draft.place.image}}
    name = draft.place.model
    return {"model": model, **({"modelId": name.rpartition("/")[2]} if first else {"parentModel": name})}


def _check(body: Mapping[str, object]) -> None:
    try:
        from google.cloud.aiplatform_v1 import UploadModelRequest
        from google.protobuf.json_format import ParseError  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return  # the containers of runs and keepers
    try:
        UploadModelRequest.from_json(json.dumps(body))
    except (ParseError, ValueError, TypeError) as error:
        raise InputError(f"This is not a valid version of a model: {error}.") from None


def _explained(what: str, error: VertexRejectedError) -> PodliftError:
    return PodliftError(f"Vertex AI refuses to {what} ({ROLE} is needed): {error}")


def _page(page: Mapping[str, object]) -> tuple[list[MirroredVersion], str]:
    models = page.get("models") or []
    if not isinstance(models, list):
        raise TypeError("its models are no list")
    return [_version(each) for each in models], str(page.get("nextPageToken") or "")


def _version(model: Mapping[str, object]) -> MirroredVersion:
    labels, aliases = model.get("labels") or {}, model.get("versionAliases") or []
    if not isinstance(labels, Mapping) or not isinstance(aliases, list):
        raise TypeError("a version has no labels or aliases")
    number = str(labels.get(_VERSION, ""))
    return MirroredVersion(
        id=str(int(str(model.get("versionId")))),
        root=str(labels.get(_ROOT, "")),
        number=int(number) if _NUMBER.fullmatch(number) else 0,
        manifest=str(labels.get(_MANIFEST, "")),
        aliases=tuple(map(str, aliases)),
    )
