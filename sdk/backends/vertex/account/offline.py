"""What a plan for Vertex AI knows without a request: this Python, the location of the bucket in the cache, and prices."""

from __future__ import annotations

import os

from ....job.findings import Facts
from ....job.job import Job
from ....job.targets import Target
from ...base import own_facts
from .. import service
from . import locations, prices


def facts(job: Job, target: Target, root: str) -> Facts:
    """Return the facts of a plan that asks nothing. Tasks do not see this machine's disk."""
    service.check()
    known = locations.cached(root, os.environ)
    return own_facts(disk=False, online=known, prices=prices.for_job(job, target, os.environ))
