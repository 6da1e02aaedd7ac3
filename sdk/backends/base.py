"""The seam between a plan and who runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..checks import Facts, Finding
from ..clock import Clock
from ..spec.plan import Plan
from ..status import Progress, Status


@dataclass(frozen=True, kw_only=True)
class Request:
    """What will be asked of the backend, as printable data, and the plan it comes from.

    Args:
        plan: the run.
        body: what is asked.
        url: who is asked, "" for this machine.
    """

    plan: Plan
    body: dict[str, Any]
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the backend knows of a run beyond its records.

    Args:
        supervised: False when no process can add a verdict any more; True while one can, or while nobody can tell.
        detail: the backend's own word for it.
    """

    supervised: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of one task.

    Args:
        task: whose it is.
        attempt: counts from 1.
        text: what was printed, without its end.
        end: "\\n"; or "\\r" where the next line was printed over it, as progress bars are; or "" where it has none: these were
            the last words, or a line is so long that it comes in pieces.
        time: unix time in seconds at which it was there at the latest; None where nobody looked.
    """

    task: str
    attempt: int
    text: str
    end: str = "\n"
    time: float | None = field(default=None, compare=False)


class Remote(Protocol):
    """A run that others look after than a process of this machine."""

    def refresh(self, *, logs: bool = False) -> None:
        """Read what is new, not more often than is polite; with `logs` what tasks have written too."""

    def observe(self, plan: Plan) -> Observation:
        """Say whether somebody is looking after the run."""

    def told(self, status: Status) -> Status:
        """Return what the records say together with what else is known."""

    def progress(self) -> Progress | None:
        """Return how far the training was a few seconds ago; None if it has not reported any progress."""

    def bring_outputs(self) -> None:
        """Bring what the program has left to this machine."""

    def logs(self, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines that tasks wrote; with `follow` until the run has ended."""

    def cancel(self, grace_s: float) -> None:
        """Ask for the end of the run; returns at once."""


class Backend(Protocol):
    """Who runs plans. Everything but `review` and `render` may talk to the world."""

    def warm_up(self) -> None:
        """Begin with what takes time and is needed to start a run: one will be started soon."""

    def probe(self, job: dict[str, Any], options: Mapping[str, Any]) -> Facts:
        """Ask the world what a plan has to know, for a Job and the backend's own value, both as JSON."""

    def look(self, job: dict[str, Any], options: Mapping[str, Any], root: str) -> dict[str, Any]:
        """Ask the services that the job needs, for `Facts.online`; what could not be learnt says why, and raises nothing.

        Args:
            job: the Job as JSON.
            options: the backend's own value as JSON.
            root: where the run will live.
        """

    def known(self, root: str) -> dict[str, Any]:
        """Return what is known of those services without a request, for `Facts.online`; does not block."""

    def review(self, plan: Plan, *, starting: bool) -> list[Finding]:
        """Return what only the request shows, and, as errors where it is `starting`, what a run cannot start without. Pure."""

    def render(self, plan: Plan) -> Request:
        """Return what `start` will ask for. Pure."""

    def check(self, request: Request) -> None:
        """Raise InputError for what `start` could not do. Nothing was written yet."""

    def start(self, request: Request) -> None:
        """Start a run whose directory exists. A second call for the same run starts nothing."""

    def observe(self, plan: Plan) -> Observation:
        """Say whether somebody is looking after the run."""

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines that tasks wrote; with `follow` until the run has ended."""

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Ask for the end of a run; returns at once. Cancelling twice is cancelling once."""

    def remote(self, plan: Plan, clock: Clock) -> Remote | None:
        """Return the way to a run that others look after; None for one that this machine does."""
