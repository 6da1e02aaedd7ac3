"""Runs a plan on Vertex AI, as one custom job."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence

from ...checks import Facts, Finding, of_vertex
from ...clock import Clock, SystemClock
from ...spec import capabilities
from ...spec.job import Job
from ...spec.plan import Plan
from ...spec.policies import Target, Vertex
from ..base import LogLine, Observation, Remote, Request
from . import request as job_request


class VertexBackend:
    """The backend called "vertex". To keep planning fast, the top of this file imports only `request`."""

    capabilities = capabilities.VERTEX

    def probe(self, job: Job, target: Target, *, root: str, online: bool, starting: bool) -> Facts:
        """Query the bucket, the image and the quotas, or only the cache. Tasks do not see this machine's disk."""
        from . import locations

        if starting:
            from . import client

            client.warm_up()
        if online:
            from . import probe

            found = probe.probe_online(job, Vertex.of(target), root)
        else:
            found = locations.cached(root, os.environ)
        return Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=None,
            keras=None,
            tf_keras=None,
            cpus=os.cpu_count() or 1,
            isolation=None,
            disk=False,
            online=found,
        )

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
        """Return missing settings, a note on a patched request, and what Vertex AI would reject."""
        return [
            *(
                Finding("error" if starting else "warning", text)
                for text in job_request.missing(Vertex.of(target), root)
            ),
            *job_request.findings(Vertex.of(target)),
            *of_vertex(job, facts, target=Vertex.of(target), root=root, run_id=run_id, strategies=strategies),
        ]

    def render(self, plan: Plan) -> Request:
        """Return the request for the custom job."""
        return Request(plan=plan, body=job_request.render(plan), url=job_request.url(plan))

    def check(self, request: Request) -> None:
        """Reject missing settings, an invalid patch, missing credentials and an unusable bucket."""
        from . import start_run

        start_run.check(request)

    def start(self, request: Request) -> None:
        """Upload what the containers need, and create the job, once."""
        from . import start_run

        start_run.start(request)

    def observe(self, plan: Plan) -> Observation:
        """Return whether the run can still get a verdict."""
        return self.remote(plan, SystemClock()).observe(plan)

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines from Cloud Logging."""
        return self.remote(plan, SystemClock()).logs(task=task, attempt=attempt, follow=follow)

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Leave a cancel request in the run's directory, and cancel the job if no task would read that."""
        self.remote(plan, SystemClock()).cancel(grace_s)

    def remote(self, plan: Plan, clock: Clock) -> Remote:
        """Return the handle of the run, which is never supervised by this machine."""
        from . import run_view

        return run_view.RunView(plan, clock)
