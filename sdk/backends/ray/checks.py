"""Checks of a job for a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator

from ...checks import idle
from ...hardware import accelerators
from ...job.credentials import raw_credentials
from ...job.findings import Finding, error, note
from ...job.job import Job
from .options import Ray

BACKEND = "ray"


def of_ray(job: Job, target: Ray) -> list[Finding]:
    """Return the findings of every check."""
    return [*_hardware(job), *idle.limit(job, BACKEND), *_credentials(job, target), *_address(target)]


def _hardware(job: Job) -> Iterator[Finding]:
    row = accelerators.row(job.resources.accelerator)
    if row.name not in accelerators.names(BACKEND):
        message = f"A run on Ray trains on CPUs or GPUs. Received: accelerator={row.name!r}"
        yield error(message, {"resources.accelerator": "cpu"})


def _credentials(job: Job, target: Ray) -> Iterator[Finding]:
    yield from raw_credentials("ray_raw", target.raw)
    if job.copied:
        yield note(
            f"{', '.join(job.copied)}: users of the cluster's dashboard see values that are copied from this shell"
        )


def _address(target: Ray) -> Iterator[Finding]:
    if target.headers and target.address and target.address.startswith("http://"):
        yield note(
            f"{', '.join(target.headers)}: sent without encryption to {target.address}. A reverse proxy or a tunnel gives https"
        )
