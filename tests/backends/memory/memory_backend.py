"""A backend in one folder, with its option and services: this process remembers the runs that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from sdk import Plan, backends
from sdk.backends.base import Request
from sdk.backends.services import Services
from sdk.checks.check import Proposed, Row, fine, proposed
from sdk.job.findings import Finding, error
from sdk.job.job import Job
from sdk.job.policies import Resources
from sdk.job.targets import Target
from sdk.job.values import Name
from sdk.packaging.audit.environment import Preload
from sdk.testing.fake_backend import FakeBackend


@dataclass(frozen=True, kw_only=True)
class Memory(Target):
    """Where in memory a run is: `Memory(shelf="top")`.

    Args:
        shelf: Name of the shelf that remembers the run.
    """

    title: ClassVar[str] = "Memory"
    metavars: ClassVar[Mapping[str, str]] = {"shelf": "SHELF"}
    proposed: ClassVar[tuple[str, ...]] = ("shelf",)

    shelf: Name | None = None

    def lines(self, resources: Resources) -> list[tuple[str, str]]:
        return [("shelf", str(self.shelf))]


class MemorySetup:
    """Knows the shelves without asking anyone."""

    def rows(self, job: Job, target: Target, root: str) -> list[Row]:
        return [Row("shelf", lambda: [fine("shelf", f"{Memory.of(target).shelf} is free")])]

    def proposed(self, existing: Mapping[str, Proposed], environ: Mapping[str, str]) -> list[Proposed]:
        return [existing.get("shelf") or proposed("shelf", "top", "the first one")]


class MemoryServices(Services):
    setup = MemorySetup()


class MemoryBackend(FakeBackend):
    services = MemoryServices()
    shelves: ClassVar[dict[str, list[str]]] = {}

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        if Memory.of(plan.target).shelf is None:
            return [error("A run in memory needs a shelf: memory_shelf is not set", {"memory.shelf": "top"})]
        return []

    def render(self, plan: Plan) -> Request:
        request = super().render(plan)
        return replace(request, body={**request.body, "shelf": Memory.of(plan.target).shelf})

    def start(self, request: Request) -> None:
        runs = self.shelves.setdefault(str(request.body["shelf"]), [])
        if request.plan.run_id not in runs:
            runs.append(request.plan.run_id)
        super().start(request)


def register() -> None:
    backends.register("memory", MemoryBackend, options=Memory)
