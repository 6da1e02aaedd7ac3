"""Runs a plan on Vertex AI, as one custom job."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ...checks import Facts, Finding, communication, of_vertex, strategies
from ...clock import Clock
from ...job import capabilities
from ...job.job import Job
from ...job.plan import Plan
from ...job.policies import Target, Vertex
from ..base import Request, RunHandle
from . import request as job_request
from .services import VertexServices

if TYPE_CHECKING:  # it parses programs
    from ...packaging.audit.environment import Preload


class VertexBackend:
    """The backend called "vertex". To keep planning fast, the top of this file imports only `request`."""

    capabilities = capabilities.VERTEX
    services = VertexServices()

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Query the bucket, the image and the quotas, or only the cache. Tasks do not see this machine's disk."""
        from . import locations, prices, service

        service.check_emulator()
        facts = Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=None,
            keras=None,
            tf_keras=None,
            cpus=os.cpu_count() or 1,
            isolation=None,
            disk=False,
            online=locations.cached(root, os.environ),
            prices=prices.for_job(job, target, os.environ),
        )
        if not online:
            return facts
        from . import probe

        return replace(facts, online=probe.probe_online(job, Vertex.of(target), root, facts))

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Return missing settings, a note on a patched request, and what Vertex AI would reject."""
        level: Literal["error", "warning"] = "error" if starting else "warning"
        job, target = plan.job, Vertex.of(plan.target)
        return [
            *(Finding(level, text) for text in job_request.missing(target, job.resources, plan.root)),
            *job_request.findings(target),
            *communication.run(job, program.communications, stands_in=bool(plan.emulator)),
            *strategies.of_fit(job, program.strategies, program.fits),
            *of_vertex(
                job,
                plan.facts,
                target=target,
                root=plan.root,
                run_id=plan.run_id,
                strategies=program.strategies,
                emulator=plan.emulator,
            ),
        ]

    def render(self, plan: Plan) -> Request:
        return Request(plan=plan, body=job_request.render(plan), url=job_request.url(plan))

    def check(self, request: Request) -> None:
        from . import start_run

        start_run.check(request)

    def start(self, request: Request) -> None:
        """Upload what the containers need, and create the job, once."""
        from . import start_run

        start_run.start(request)

    def open(self, plan: Plan, clock: Clock) -> RunHandle:
        from .run import VertexRun

        return VertexRun(plan, clock)
