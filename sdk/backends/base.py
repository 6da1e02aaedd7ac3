"""The seam between plans and backends: a Backend starts runs, and a RunHandle looks at one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from ..checks import Facts, Finding
from ..checks.check import Proposed, Row
from ..clock import Clock
from ..hardware.catalog import PriceTable
from ..job.capabilities import Capabilities
from ..job.job import Job
from ..job.payload import Kill
from ..job.plan import Plan
from ..job.policies import Target
from ..process.log_lines import LogLine as LogLine
from ..records.accounts import LiveAccount
from ..records.timeline import Moment
from ..status import Progress, Status

if TYPE_CHECKING:  # it parses programs
    from ..packaging.audit.environment import Preload


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request to a backend, as printable data.

    Args:
        plan: the plan it was rendered from.
        body: the request itself.
        url: the address of the service, or "" for this machine.
    """

    plan: Plan
    body: Mapping[str, object]
    url: str = ""


class RunHandle(Protocol):
    """An existing run, seen from this process: the only way to look at it. `FolderRun` implements it for a run in a folder."""

    def refresh(self, *, logs: bool = False) -> None:
        """Make new records readable in the run's local directory, at a limited rate; with `logs`, logs and metrics too."""

    def supervised(self) -> bool:
        """Return False once no process can add a verdict any more. True while one can, or if that is unknown."""

    def end_leftovers(self) -> None:
        """End what a supervisor that was killed on this machine has left running."""

    def merge(self, status: Status) -> Status:
        """Return the status from the records, merged with what else is known."""

    def progress(self) -> Progress | None:
        """Return the training progress of a few seconds ago, or None if none was reported."""

    def account(self) -> LiveAccount | None:
        """Return what the first task has spent its time on until a few seconds ago; None if its file is on this machine."""

    def history(self) -> Sequence[Moment]:
        """Return what the service that runs it did, the oldest first, for an explanation.

        A moment of now says what the run waits for, and its causes why.
        """

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield log lines of the tasks. With `follow`, until the run has ended."""

    def cancel(self, grace_s: float) -> None:
        """Request the end of the run. Returns at once. Cancelling again has no effect."""

    def attending(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a context in which this process waits for the end of the run.

        It calls the function that the context yields again and again, which does what the service that runs it does not do: it
        may submit another job after one that was taken away.
        """

    def fetch_outputs(self) -> None:
        """Make the outputs of an ended run readable in its directory on this machine."""

    def settle(self, until: float | None) -> None:
        """Wait until other machines see all of an ended run, at most until this monotonic time (WaitTimeoutError)."""


class Backend(Protocol):
    """Runs plans. All methods but `review` and `render` may do I/O."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend is like, as data."""

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Return the facts about this environment that a plan needs.

        Args:
            job: what to run.
            target: the options of the backend, such as a `Vertex`.
            root: where the run will live.
            online: query the services that the job needs. Failed queries are part of the result. Otherwise, `Facts.online` has
                what is known without a request.
        """

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Return what speaks against a job on this backend. Pure.

        Args:
            plan: the plan, still without findings.
            program: the strategies, the communication and the calls of `fit` in its program.
            starting: what is required to start is an error, else a warning.
        """

    def render(self, plan: Plan) -> Request:
        """Return the request that `start` will send. Pure."""

    def check(self, request: Request) -> None:
        """Raise InputError if `start` cannot succeed. Called before anything is written."""

    def start(self, request: Request) -> None:
        """Start a run whose directory exists. Starting it again has no effect."""

    def open(self, plan: Plan, clock: Clock) -> RunHandle:
        """Return the handle of an existing run, which may have been started by any process on any machine."""


class PriceService(Protocol):
    """Reads the list prices of a cloud, and keeps them on this machine."""

    def refresh(self, project: str | None, environ: Mapping[str, str], clock: Clock) -> str:
        """Read all prices, store them, and return the path; nothing is stored unless every page could be read.

        Args:
            project: the project that asks.
            environ: names the cache folder.
            clock: gives the date.
        """

    def cached(self, environ: Mapping[str, str]) -> PriceTable | None:
        """Return the table that was stored last, None if there is none that can be read."""


@runtime_checkable
class Drilled(Protocol):
    """What a backend has in addition if a drill can take away more on it than processes of tasks: see `Capabilities.drills`."""

    def disturbed(self, plan: Plan, kills: Sequence[Kill]) -> AbstractContextManager[None]:
        """Return a context in which the kills of this run happen as soon as their tasks have announced them in their output.

        InputError if the service is not an emulator, or already disturbs its jobs by itself.
        """


class SetupService(Protocol):
    """Looks at what a user has at the service of a backend. Only reads."""

    def rows(self, job: Job, target: Target, root: str) -> list[Row]:
        """Return what is looked at, in a fixed order; what may not be read is unknown.

        Args:
            job: what is to run: its accelerator decides which quotas it needs.
            target: the settings of the backend.
            root: where runs live; a placeholder if no bucket is set.
        """

    def proposed(self, given: Mapping[str, Proposed], environ: Mapping[str, str]) -> list[Proposed]:
        """Return the settings for the project's file, each called as its field of the target, in the file's order.

        Args:
            given: those that are set already, by field.
            environ: names the configuration of the service's own tools.
        """


@dataclass(frozen=True, kw_only=True)
class ImageDraft:
    """What will be built: one image for one family of hardware. The fields are keys of `podlift image --json`.

    Args:
        family: "cpu", "gpu" or "tpu".
        name: its name with its tag, which is made of its content.
        parent: where it is built, and the resource below which builds are created.
        build: the request for the build.
        minutes: how long it takes, an estimate.
        usd: its price for that time, without what may be free.
        dockerfile: the path of its Dockerfile.
        service: how a sentence calls the service that builds it.
        command: what sends the request in another way, from a file called FILE.
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
    """Builds images where no Docker is needed here, for a backend whose jobs run in them."""

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

    def built(self, draft: ImageDraft, clock: Clock) -> str:
        """Return the image with this content by its digest, "" if none was built; InputError without a repository."""

    def start(self, draft: ImageDraft, clock: Clock) -> tuple[Build, bool]:
        """Start a build, or find one of the same content that has not ended; and whether it was started."""

    def look(self, draft: ImageDraft, build: Build, clock: Clock) -> Build:
        """Return what has become of a build."""
