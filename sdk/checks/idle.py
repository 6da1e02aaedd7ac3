"""A limit on the idle time of GPUs, on each backend: only NVIDIA GPUs that are really there can be watched."""

from __future__ import annotations

from collections.abc import Iterator

from ..hardware import accelerators
from ..job.findings import Finding, error
from ..job.job import Job


def limit(job: Job, backend: str, *, stands_in: bool = False) -> Iterator[Finding]:
    """`stands_in`: a GPU of the job is no real one."""
    row = accelerators.lookup(job.resources.accelerator)
    if job.limits.idle_accelerator_s is None or (row.family == "gpu" and not stands_in):
        return
    stand_in = ", with stand-ins for GPUs" if row.family == "gpu" else ""
    received = f"backend={backend!r} with accelerator={row.name!r}{stand_in}"
    message = f"limit_idle_accelerator watches NVIDIA GPUs, and this run has none. Received: {received}"
    yield error(message, {"limits.idle_accelerator_s": None})
