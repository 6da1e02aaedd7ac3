"""The seam to the setup of a backend's service: what it lacks before a first run, and which settings fit what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..checks.check import Check
from ..job.job import Job
from ..job.policies import Target


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """A value for a setting of a target, and where it comes from; without a value, why, and the command that would help."""

    value: str | tuple[str, ...] | None = None
    source: str = ""
    command: str = ""
    known: bool = True  # False if it could not be asked whether there is one


class SetupService(Protocol):
    """Looks at what a user has at a service. Only reads."""

    def checks(self, job: Job, target: Target, root: str) -> Iterator[Check]:
        """Yield what was checked, in a fixed order; what may not be read is unknown.

        Args:
            job: what is to run: its accelerator decides which quotas it needs.
            target: the settings of the backend.
            root: where runs live; a placeholder if no bucket is set.
        """

    def proposed(self, given: Mapping[str, Proposed], environ: Mapping[str, str]) -> dict[str, Proposed]:
        """Return the settings for the project's file, by field of the target, in the file's order.

        Args:
            given: those that are set already, with their sources.
            environ: names the configuration of the service's own tools.
        """
