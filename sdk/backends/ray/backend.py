"""Runs a plan on a Ray cluster, as one job of Ray's Jobs API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from ...checks import Facts, Finding, communication, strategies
from ...clock import Clock
from ...job.capabilities import CLUSTER
from ...job.job import Job
from ...job.plan import Plan
from ...job.targets import Target
from ..base import Request, RunHandle, own_facts
from ..services import Services
from . import request as job_request
from .checks import of_ray
from .options import Ray

if TYPE_CHECKING:  # it parses programs
    from ...packaging.audit.environment import Preload


class RayBackend:
    """The backend called "ray". To keep planning fast, the top of this file imports only `request`."""

    capabilities = CLUSTER
    services = Services()

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Query the cluster with `online`. Tasks do not see this machine's Python."""
        from . import client

        options = Ray.of(target)
        about: dict[str, object] = {"address": options.address or client.configured_address(os.environ)}
        if online:
            about["version"] = client.RayJobs(options).version()
        return own_facts(disk=False, online={"ray": about})

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Return findings for missing settings, a patched request, and features that a Ray cluster does not support."""
        level: Literal["error", "warning"] = "error" if starting else "warning"
        job, target = plan.job, Ray.of(plan.target)
        return [
            *(Finding(level, text) for text in job_request.missing(plan.root)),
            *job_request.findings(target),
            *of_ray(job, target),
            *communication.run(job, program.communications, stands_in=False),
            *strategies.roles(job, program.strategies),
            *strategies.of_fit(job, program.strategies, program.fits),
        ]

    def render(self, plan: Plan) -> Request:
        return Request(plan=plan, body=job_request.render(plan), url=f"{Ray.of(plan.target).address}/api/jobs/")

    def check(self, request: Request) -> None:
        from . import start_run

        start_run.check(request)

    def start(self, request: Request) -> None:
        """Write the files of the driver and the agents, and create the job, once."""
        from . import start_run

        start_run.start(request)

    def open(self, plan: Plan, clock: Clock) -> RunHandle:
        from .run import RayRun

        return RayRun(plan, clock)
