"""The seam between plans and backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..checks import Facts, Finding
from ..clock import Clock
from ..spec.capabilities import Capabilities
from ..spec.job import Job
from ..spec.plan import Plan
from ..spec.policies import Target
from ..status import Progress, Status


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request to a backend, as printable data.

    Args:
        plan: the plan it was rendered from.
        body: the request itself.
        url: the address of the service, or "" for this machine.
    """

    plan: Plan
    body: dict[str, Any]
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the backend knows about a run in addition to its records.

    Args:
        supervised: False once no process can add a verdict any more. True while one can, or if that is unknown.
        detail: the backend's own description.
    """

    supervised: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of one task.

    Args:
        task: the task's name.
        attempt: counts from 1.
        text: the printed text, without its end.
        end: "\\n"; "\\r" if the next line overwrites it, as progress bars do; "" for an unterminated last line and for parts of
            a very long line.
        time: Unix time in seconds at which the line existed at the latest, if known.
    """

    task: str
    attempt: int
    text: str
    end: str = "\n"
    time: float | None = field(default=None, compare=False)


class Remote(Protocol):
    """A run supervised from another machine or by a cloud."""

    def refresh(self, *, logs: bool = False) -> None:
        """Read what is new, at a limited rate. With `logs`, include what tasks have written."""

    def observe(self, plan: Plan) -> Observation:
        """Return whether the run is supervised."""

    def merge(self, status: Status) -> Status:
        """Return the status from the records, merged with what else is known."""

    def progress(self) -> Progress | None:
        """Return the training progress of a few seconds ago, or None if none was reported."""

    def download_outputs(self) -> None:
        """Download the outputs to this machine."""

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield log lines of the tasks. With `follow`, until the run has ended."""

    def cancel(self, grace_s: float) -> None:
        """Request the end of the run. Returns at once."""


class Backend(Protocol):
    """Runs plans. All methods but `review` and `render` may do I/O."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend is like, as data."""

    def probe(self, job: Job, target: Target, *, root: str, online: bool, starting: bool) -> Facts:
        """Return the facts about this environment that a plan needs.

        Args:
            job: what to run.
            target: the options of the backend, such as a `Vertex`.
            root: where the run will live.
            online: query the services that the job needs. Failed queries are part of the result. Otherwise, `Facts.online` has
                what is known without a request.
            starting: the plan is executed at once: what takes time, as importing a client library, may begin in the background.
        """

    def review(
        self,
        job: Job,
        target: Target,
        facts: Facts,
        *,
        root: str,
        run_id: str,
        strategies: Sequence[str],
        starting: bool,
    ) -> list[Finding]:
        """Return what speaks against a job on this backend. Pure.

        Args:
            job: what to run.
            target: the options of the backend.
            facts: the probed facts.
            root: where the run will live.
            run_id: its id.
            strategies: the names of distribution strategies that the program uses.
            starting: what is required to start is an error, else a warning.
        """

    def render(self, plan: Plan) -> Request:
        """Return the request that `start` will send. Pure."""

    def check(self, request: Request) -> None:
        """Raise InputError if `start` cannot succeed. Called before anything is written."""

    def start(self, request: Request) -> None:
        """Start a run whose directory exists. Starting it again has no effect."""

    def observe(self, plan: Plan) -> Observation:
        """Return whether the run is supervised."""

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield log lines of the tasks. With `follow`, until the run has ended."""

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Request the end of a run. Returns at once. Cancelling again has no effect."""

    def remote(self, plan: Plan, clock: Clock) -> Remote | None:
        """Return the handle of a run supervised from another machine or by a cloud, or None if this machine supervises it."""
