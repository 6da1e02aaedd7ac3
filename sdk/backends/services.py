"""The services of a backend in addition to running plans: each is an object, or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # a training image imports this file, too
    from ..checks.check import Proposed, Row
    from ..clock import Clock
    from ..hardware.catalog import PriceTable
    from ..job.job import Job
    from ..job.payload import Kill
    from ..job.plan import Plan
    from ..job.targets import Target
    from .deliveries import Deliveries
    from .triggers import TriggerService


class Services:
    """The additional services of a backend, each created when it is read. A subclass overrides the services of its backend."""

    @property
    def triggers(self) -> TriggerService | None:
        """Starts schedules; without it, `podlift schedule serve` does."""
        return None

    @property
    def deliveries(self) -> Deliveries | None:
        """The trigger service, for the container of a keeper."""
        return None

    @property
    def images(self) -> ImageService | None:
        """Builds the images in which jobs run."""
        return None

    @property
    def setup(self) -> SetupService | None:
        """Inspects the account at the service before a first run, and proposes the settings in `Target.proposed`."""
        return None

    @property
    def prices(self) -> PriceService | None:
        """Reads the list prices of the machines that the backend rents."""
        return None

    @property
    def manifests(self) -> ManifestService | None:
        """Writes the objects of a run for another tool, which starts it."""
        return None

    def warm(self, plan: Plan) -> AbstractContextManager[None]:
        """Return a context in which many runs of a plan's program are started, with one import of its modules if possible."""
        return nullcontext()

    def most_runs(self, plan: Plan) -> int | None:
        """Return how many runs of a plan the quotas allow at the same time; None if they are not known."""
        return None

    @property
    def drills(self) -> DrillService | None:
        """Preempts machines and regions for a drill, not only processes of tasks: see `Capabilities.drills`."""
        return None


class ManifestService(Protocol):
    """Writes the objects that start a run as a file, such as for `kubectl apply -f`."""

    def manifest(self, plan: Plan) -> str:
        """Return the very objects with which a run of this plan starts, as YAML. Pure but for the caches of this machine."""

    def store(self, plan: Plan) -> str:
        """Write what the tasks of a stored run read, and return its manifest: it starts no task."""

    def how_to_start(self, plan: Plan, path: str) -> str:
        """Return the command that starts the run of a manifest."""


class PriceService(Protocol):
    """Reads the list prices of a cloud, and keeps them on this machine."""

    def refresh(self, project: str | None, environ: Mapping[str, str], clock: Clock) -> str:
        """Read all prices, store them, and return the path; nothing is stored unless every page could be read.

        Args:
            project: the project of the requests.
            environ: names the cache folder.
            clock: gives the date.
        """

    def cached(self, environ: Mapping[str, str]) -> PriceTable | None:
        """Return the last stored table, None if none is readable."""


class DrillService(Protocol):
    """Takes agents, machines or regions away from a run."""

    def disturbed(self, plan: Plan, kills: Sequence[Kill]) -> AbstractContextManager[None]:
        """Return a context in which the kills of this run happen as soon as their tasks have announced them in their output.

        InputError if the service is not an emulator, or already disturbs its jobs by itself.
        """


class SetupService(Protocol):
    """Inspects a user's account at the service of a backend. Read-only."""

    def rows(self, job: Job, target: Target, root: str) -> list[Row]:
        """Return the results of the checks, in a fixed order; a resource that the caller may not read is unknown.

        Args:
            job: the job to run: its accelerator decides which quotas it needs.
            target: the settings of the backend.
            root: where runs live; a placeholder if no bucket is set.
        """

    def proposed(self, existing: Mapping[str, Proposed], environ: Mapping[str, str]) -> list[Proposed]:
        """Return the settings for the project's file, each named like its field of the target, in the file's order.

        Args:
            existing: the existing settings, by field.
            environ: names the configuration of the service's own tools.
        """


@dataclass(frozen=True, kw_only=True)
class ImageDraft:
    """The image to build, for one family of hardware. The fields are keys of `podlift image --json`.

    Args:
        family: "cpu", "gpu" or "tpu".
        name: its name with its tag, a digest of its content.
        parent: the resource of its location, below which builds are created.
        build: the request for the build.
        minutes: the estimated time of the build.
        usd: the price for that time, without a free tier.
        dockerfile: the path of its Dockerfile.
        service: the name of the service that builds it, for a sentence.
        command: another way to send the request, from a file called FILE.
    """

    family: str
    name: str
    parent: str
    build: Mapping[str, object]
    minutes: int
    usd: float
    dockerfile: str
    service: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build as its service describes it: with the name of its image by the digest, or why it failed and what to do."""

    id: str
    state: Literal["waiting", "working", "done", "failed"]
    log_url: str = ""
    image: str = ""
    problem: str = ""
    cancel: str = ""  # the command for it


class ImageService(Protocol):
    """Builds images for the jobs of a backend, without Docker on this machine."""

    def draft(
        self, family: str, target: Target, *, region: str | None, account: str | None, dockerfile: Path | None
    ) -> ImageDraft:
        """Return the image to build, without a request. Raises InputError with every mistake.

        Args:
            family: the family of hardware, which is the target of the Dockerfile.
            target: the options of the backend, which name the project and the region.
            region: the region of the repository and of the build, if not the target's first one.
            account: the service account of the build.
            dockerfile: another Dockerfile than podlift's.
        """

    def built(self, draft: ImageDraft, clock: Clock) -> str:
        """Return the image with this content by its digest, "" if none was built; InputError without a repository."""

    def start(self, draft: ImageDraft, clock: Clock) -> tuple[Build, bool]:
        """Start a build, or find one of the same content that has not ended; and whether it was started."""

    def look(self, draft: ImageDraft, build: Build, clock: Clock) -> Build:
        """Return the current state of a build."""
