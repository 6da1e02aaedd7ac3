"""Checks of a job for a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...checks import idle
from ...hardware import accelerators
from ...job.credentials import kind_of
from ...job.findings import Finding, error, note
from ...job.job import Job
from ...text import without_users
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
    for name, value in _texts("", target.raw):
        if kind := kind_of(name, value) or ("a URL with a password" if value != without_users(value) else ""):
            yield error(
                f"ray_raw: {name} looks like {kind}, and would be stored in the plan. Next: --env {name}, which copies "
                "it from this shell; or --secret"
            )
    if job.copied:
        yield note(
            f"{', '.join(job.copied)}: users of the cluster's dashboard see values that are copied from this shell"
        )


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield every text in a piece of JSON, with the nearest name above it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(str(key), inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(name, inner)
    elif isinstance(value, str):
        yield name, value


def _address(target: Ray) -> Iterator[Finding]:
    if target.headers and target.address and target.address.startswith("http://"):
        yield note(
            f"{', '.join(target.headers)}: sent without encryption to {target.address}. A reverse proxy or a tunnel gives https"
        )
