"""Runs a plan on Vertex AI, as one custom job."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ...checks import Facts, Finding
from ...clock import Clock, SystemClock
from ...spec.plan import Plan
from ..base import LogLine, Observation, Remote, Request
from . import request as spec


class Vertex:
    """The backend called "vertex". A plan loads nothing but `spec`: whoever waits for a plan waits for every import."""

    def warm_up(self) -> None:
        """Begin to import Google's client."""
        from . import client

        client.warm_up()

    def probe(self, job: dict[str, Any], options: Mapping[str, Any]) -> Facts:
        """Say what is known without asking anybody: the tasks see neither this machine's disk nor its environment."""
        return Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=None,
            keras=None,
            tf_keras=None,
            cpus=os.cpu_count() or 1,
            isolation=None,
            disk=False,
        )

    def look(self, job: dict[str, Any], options: Mapping[str, Any], root: str) -> dict[str, Any]:
        """Ask for the bucket, the image and the quotas."""
        from . import probe as online

        return online.look(job, options, root)

    def known(self, root: str) -> dict[str, Any]:
        """Say where the bucket lies, if it was looked at before."""
        from . import locations

        return locations.known(root, os.environ)

    def review(self, plan: Plan, *, starting: bool) -> list[Finding]:
        """Return what is not configured, and what was patched."""
        return [
            *(Finding("error" if starting else "warning", text) for text in spec.missing(plan)),
            *spec.findings(plan),
        ]

    def render(self, plan: Plan) -> Request:
        """Return the body of the request."""
        return Request(plan=plan, body=spec.render(plan), url=spec.url(plan))

    def check(self, request: Request) -> None:
        """Raise for what is not configured, a patch that Vertex AI does not know, credentials and a bucket that are not there.

        Raises:
            InputError: names each.
        """
        from . import start_run as starting

        starting.check(request)

    def start(self, request: Request) -> None:
        """Bring what the containers read to the bucket, and make the job, once.

        Raises:
            PodliftError: Vertex AI has refused it, or gives no answer.
        """
        from . import start_run as starting

        starting.start(request)

    def observe(self, plan: Plan) -> Observation:
        """Say whether something can still become of the run."""
        return self.remote(plan, SystemClock()).observe(plan)

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the tasks' lines, from Cloud Logging."""
        return self.remote(plan, SystemClock()).logs(task=task, attempt=attempt, follow=follow)

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Leave the wish in the run's directory; ask the vendor where no task would see it."""
        self.remote(plan, SystemClock()).cancel(grace_s)

    def remote(self, plan: Plan, clock: Clock) -> Remote:
        """Return the way to the run: nobody of this machine looks after it."""
        from . import run_view

        return run_view.Watch(plan, clock)
