"""Runs a plan on Vertex AI, as one custom job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ...checks import Facts, Finding, communication, strategies
from ...clock import Clock
from ...job.capabilities import Capabilities
from ...job.job import Job
from ...job.plan import Plan
from ...job.targets import Target
from ..base import Request, RunHandle
from .checks import of_vertex
from .job import request as job_request
from .options import Vertex
from .services import VertexServices

if TYPE_CHECKING:  # it parses programs
    from ...packaging.audit.environment import Preload


class VertexBackend:
    """The backend called "vertex". To keep planning fast, the top of this file imports only `request`."""

    services = VertexServices()
    capabilities = Capabilities(
        runs_here=False,
        supervised_here=False,
        needs_bucket=True,
        keeps_logs=True,
        outputs_in_store=True,
        has_price=True,
        last_phase=True,
        drills=("process", "agent", "machine", "region"),
    )

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Query the bucket, the image and the quotas, or only the cache. Tasks do not see this machine's disk."""
        from .account import offline

        facts = offline.facts(job, target, root)
        if not online:
            return facts
        from .account import probe

        return replace(facts, online=probe.probe_online(job, Vertex.of(target), root, facts))

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Return findings for missing settings, a patched request, and everything that Vertex AI would reject."""
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
        from .job import start_run

        start_run.check(request)

    def start(self, request: Request) -> None:
        """Upload the files of the containers, and create the job, once."""
        from .job import start_run

        start_run.start(request)

    def open(self, plan: Plan, clock: Clock) -> RunHandle:
        from .job.run import VertexRun

        return VertexRun(plan, clock)
