"""Runs a plan on Vertex AI, as one custom job."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from ...checks import Facts, Finding
from ...planner import Plan
from ..base import Request
from . import spec


class Vertex:
    """The backend called "vertex"."""

    def probe(self, job: dict[str, Any]) -> Facts:
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

    def review(self, plan: Plan, *, starting: bool) -> list[Finding]:
        """Return what is not configured, and what was patched."""
        return [*(Finding("error" if starting else "warning", text) for text in spec.missing(plan)), *spec.findings(plan)]

    def render(self, plan: Plan) -> Request:
        """Return the body of the request."""
        return Request(plan=plan, body=spec.render(plan), url=spec.url(plan))
