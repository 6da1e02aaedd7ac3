"""The seam to a service that builds container images: what a backend may offer whose jobs run in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ..clock import Clock
from ..job.policies import Target


@dataclass(frozen=True, kw_only=True)
class ImageDraft:
    """What will be built: one image for one family of hardware.

    Args:
        family: "cpu", "gpu" or "tpu".
        name: its name with its tag, which is made of its content.
        repository: the name of its repository in the API.
        tag: the tag alone.
        build: the request for the build.
        place: where it is built, and the resource below which builds are created.
        minutes: how long it takes, an estimate.
        usd: its price for that time, without what may be free.
        dockerfile: the path of its Dockerfile.
        service: how a sentence calls the service that builds it.
        command: what sends the request in another way, from a file called FILE.
    """

    family: str
    name: str
    repository: str
    tag: str
    build: Mapping[str, object]
    place: str
    minutes: int
    usd: float
    dockerfile: str
    service: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build as its service describes it. `digest` is that of its image, and `problem` why it failed and what to do."""

    id: str
    state: Literal["waiting", "working", "done", "failed"]
    log_url: str = ""
    digest: str = ""
    problem: str = ""


class ImageService(Protocol):
    """Builds images where no Docker is needed here."""

    def draft(
        self, family: str, target: Target, *, region: str | None, account: str | None, dockerfile: Path | None
    ) -> ImageDraft:
        """Return what will be built, without a request; InputError with every mistake.

        Args:
            family: the family of hardware, which is the target of the Dockerfile.
            target: the options of the backend, which name the project and the region.
            region: the region of the repository and of the build, if not the target's first one.
            account: the service account of the build.
            dockerfile: another Dockerfile than podlift's.
        """

    def reference(self, draft: ImageDraft, digest: str) -> str:
        """Return the name of a built image by its digest, as jobs use it."""

    def built(self, draft: ImageDraft, clock: Clock) -> str:
        """Return the digest of the image with this content, "" if none was built; InputError without a repository."""

    def start(self, draft: ImageDraft, clock: Clock) -> tuple[Build, bool]:
        """Start a build, or find one of the same content that has not ended; and whether it was started."""

    def look(self, draft: ImageDraft, build: Build, clock: Clock) -> Build:
        """Return what has become of a build."""

    def cancel_command(self, draft: ImageDraft, build: Build) -> str:
        """Return the command that cancels a build."""
