"""Checks of a job for a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator

from ...checks import idle
from ...hardware import accelerators
from ...job.credentials import raw_credentials
from ...job.findings import Finding, error
from ...job.plan import Plan
from .options import Kubernetes

BACKEND = "kubernetes"
# The names of pods have at most 63 characters: after the run's id "-99-evaluator-0-0-" and five random ones. JobSet checks it.
_LONGEST_ID = 40


def of_kubernetes(plan: Plan) -> list[Finding]:
    """Return the findings of every check."""
    target = Kubernetes.of(plan.target)
    return [
        *_hardware(plan),
        *_name(plan),
        *idle.limit(plan.job, BACKEND),
        *raw_credentials("kubernetes_raw", target.raw),
    ]


def _hardware(plan: Plan) -> Iterator[Finding]:
    row = accelerators.row(plan.job.resources.accelerator)
    if row.name not in accelerators.names(BACKEND):
        instead = row.instead if row.instead in accelerators.names(BACKEND) else "cpu"
        message = (
            "A run on Kubernetes trains on CPUs, on NVIDIA GPUs, or on a TPU v5e of one machine (GKE). Received: "
            f"accelerator={row.name!r}"
        )
        yield error(message, {"resources.accelerator": instead})
    elif row.family == "tpu" and plan.job.resources.workers > 1:
        yield error("TensorFlow trains on one TPU machine. Received: several workers", {"resources.workers": 1})


def _name(plan: Plan) -> Iterator[Finding]:
    if len(plan.run_id) > _LONGEST_ID:
        name = plan.run_id.rpartition("-")[0]
        yield error(
            f"The name of the run is too long for the names of its pods. Received: {name!r}. Next: --name with at most "
            f"{_LONGEST_ID - 7} characters, such as {name[: _LONGEST_ID - 7].rstrip('-')!r}"
        )
