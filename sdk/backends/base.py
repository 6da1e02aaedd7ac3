"""The seam between plans and backends: a Backend starts runs, and a RunHandle observes one."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..checks import Facts, Finding
from ..clock import Clock
from ..hardware.catalog import PriceTable
from ..job.capabilities import Capabilities
from ..job.job import Job
from ..job.plan import Plan
from ..job.targets import Target
from ..process.log_lines import LogLine as LogLine
from ..records.accounts import LiveAccount
from ..records.timeline import Moment
from ..status import Progress, Status
from .services import Services

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
    """An existing run, and the only way to observe it from this process. `FolderRun` implements it for a run in a folder."""

    def refresh(self, *, logs: bool = False) -> None:
        """Make new records readable in the run's local directory, at a limited rate; with `logs`, logs and metrics too."""

    def supervised(self) -> bool:
        """Return True while a process may still write a verdict, or if that is unknown; False once none can."""

    def end_leftovers(self) -> None:
        """End the processes that a killed supervisor left running on this machine."""

    def merge(self, status: Status) -> Status:
        """Return the status from the records, merged with the state of the service."""

    def progress(self) -> Progress | None:
        """Return the training progress of a few seconds ago, or None if none was reported."""

    def account(self) -> LiveAccount | None:
        """Return how the first task spent its time, up to a few seconds ago; None if its file is on this machine."""

    def history(self) -> Sequence[Moment]:
        """Return the actions of the service that runs it, oldest first, for an explanation.

        A moment in the present names the resource that the run waits for; its causes give the reason.
        """

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield log lines of the tasks. With `follow`, until the run has ended."""

    def cancel(self, grace_s: float) -> None:
        """Request the end of the run. Returns at once. Cancelling again has no effect."""

    def attending(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a context in which this process waits for the end of the run.

        It calls the function that the context yields again and again. The function does the work that the service leaves to its
        clients: it may submit another job after a preempted one.
        """

    def fetch_outputs(self) -> None:
        """Make the outputs of an ended run readable in its directory on this machine."""

    def settle(self, until: float | None) -> None:
        """Wait until other machines see all of an ended run, at most until this monotonic time (WaitTimeoutError)."""


class Backend(Protocol):
    """Runs plans. All methods but `review` and `render` may do I/O."""

    @property
    def capabilities(self) -> Capabilities:
        """The properties of this backend, as data."""

    @property
    def services(self) -> Services:
        """Its services in addition to running plans; `Services()` for none."""

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Return the facts about this environment that a plan needs.

        Args:
            job: what to run.
            target: the options of the backend, such as a `Vertex`.
            root: where the run will live.
            online: query the services that the job needs. Failed queries are part of the result. Otherwise, `Facts.online`
                holds the facts that need no request.
        """

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Return the findings for a job on this backend. Pure.

        Args:
            plan: the plan, still without findings.
            program: the strategies, the communication and the calls of `fit` in its program.
            starting: a missing requirement for the start is an error, else a warning.
        """

    def render(self, plan: Plan) -> Request:
        """Return the request that `start` will send. Pure."""

    def check(self, request: Request) -> None:
        """Raise InputError if `start` cannot succeed. Called before anything is written."""

    def start(self, request: Request) -> None:
        """Start a run whose directory exists. Starting it again has no effect."""

    def open(self, plan: Plan, clock: Clock) -> RunHandle:
        """Return the handle of an existing run, which may have been started by any process on any machine."""


def own_facts(*, disk: bool = True, online: Mapping[str, Any] | None = None, prices: PriceTable | None = None) -> Facts:
    """Return the facts about this process, for tasks that are not restricted to the packages that it sees."""
    return Facts(
        python=platform.python_version(),
        executable=sys.executable,
        cpus=os.cpu_count() or 1,
        disk=disk,
        online=dict(online or {}),
        prices=prices,
    )
