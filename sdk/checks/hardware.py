"""The row of the table of hardware that a job gets, and the rule for TPUs that local mode keeps too."""

from __future__ import annotations

from collections.abc import Iterator

from ..hardware import accelerators
from ..hardware.accelerators import Accelerator
from ..job.findings import Finding, error
from ..job.job import Job
from ..job.targets import Target


def hardware(job: Job) -> Accelerator:
    """Return the row that a job gets; for a refused row, the nearest one that is available."""
    requested = accelerators.lookup(job.resources.accelerator)
    return accelerators.row(requested.instead) if requested.refused else requested


def available(job: Job) -> Iterator[Finding]:
    """An accelerator that is not available for training, also not by a stand-in."""
    requested = accelerators.lookup(job.resources.accelerator)
    if requested.refused:
        instead = {"resources.accelerator": requested.instead}
        yield error(f"accelerator={requested.name!r} is not available: {requested.refused}", instead)


def one_task(job: Job, target: Target | None = None) -> Iterator[Finding]:
    """A TPU with more than one task: Vertex AI allows one pool with one replica."""
    alone = {"workers": 1, "ps": 0, "evaluator": False}
    more = {name: getattr(job.resources, name) for name in alone if getattr(job.resources, name) != alone[name]}
    if hardware(job).family == "tpu" and more:
        received = ", ".join(f"{name}={value!r}" for name, value in more.items())
        message = f"A job with TPUs has exactly one task, whatever its topology. Received: {received}"
        yield error(message, {f"resources.{name}": alone[name] for name in more})
