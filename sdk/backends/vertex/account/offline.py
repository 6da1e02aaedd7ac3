"""The facts of a plan for Vertex AI without a request: this Python, the cached location of the bucket, and prices."""

from __future__ import annotations

import os

from ....job.findings import Facts
from ....job.job import Job
from ....job.targets import Target
from ...base import own_facts
from .. import service
from . import locations, prices


def facts(job: Job, target: Target, root: str) -> Facts:
    """Return the facts of a plan that sends no requests. Tasks have no access to this machine's disk."""
    service.check()
    online = locations.cached(root, os.environ)
    return own_facts(disk=False, online=online, prices=prices.for_job(job, target, os.environ))
