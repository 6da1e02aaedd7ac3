"""What a plan for Vertex AI knows without a request: this Python, the location of the bucket in the cache, and prices."""

from __future__ import annotations

import os
import platform
import sys

from ...job.findings import Facts
from ...job.job import Job
from ...job.targets import Target
from . import locations, prices, service


def facts(job: Job, target: Target, root: str) -> Facts:
    """Return the facts of a plan that asks nothing. Tasks do not see this machine's disk."""
    service.check_emulator()
    return Facts(
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
