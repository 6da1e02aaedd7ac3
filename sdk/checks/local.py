"""The checks of a plan for local mode."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from ..hardware import accelerators
from ..spec import cluster
from ..spec.findings import TENSORFLOW_RANGE, Facts, Finding, error
from ..spec.job import Job
from ..spec.policies import Local
from .vertex_hardware import one_task

# In the table of accelerators.
BACKEND = "local"


def run(job: Job, target: Local, facts: Facts) -> list[Finding]:
    checks = (_hardware, _one_task, _tensorflow, _legacy_keras, _isolation, _open_ports, _crowding, _cloud_settings)
    return [finding for check in checks for finding in check(job, target, facts)]


def _hardware(job: Job, target: Local, facts: Facts) -> list[Finding]:
    requested = job.resources.accelerator
    if requested in accelerators.names(BACKEND):
        return []
    return [
        error(
            f"Local mode has no {requested}: tasks run on this machine's CPUs; backend='vertex' has it",
            {"resources.accelerator": "cpu"},
        )
    ]


def _one_task(job: Job, target: Local, facts: Facts) -> list[Finding]:
    # The TPU stand-in follows Vertex AI's rule.
    return one_task(job)


def tpu_replicas(job: Job, environ: Mapping[str, str]) -> list[Finding]:
    """Check the number of replicas that the caller's environment requests."""
    row = accelerators.row(job.resources.accelerator)
    if row.family != "tpu" or row.name not in accelerators.names(BACKEND):
        return []
    try:
        accelerators.replicas(row, environ.get("PODLIFT_TPU_REPLICAS", ""))
    except InputError as wrong:
        return [Finding("error", str(wrong))]
    return []


def _tensorflow(job: Job, target: Local, facts: Facts) -> list[Finding]:
    if job.code.isolated:
        return []
    if facts.tensorflow is None:
        return [
            Finding(
                "warning",
                f"TensorFlow is not installed for {facts.executable}: a program that imports it will fail. "
                "Next: pip install 'podlift[tf]'.",
            )
        ]
    release = tuple(int(part) for part in facts.tensorflow.split(".")[:2])
    low, high = TENSORFLOW_RANGE
    if low <= release <= high:
        return []
    return [
        Finding(
            "warning",
            f"TensorFlow {facts.tensorflow} is outside the range that podlift is tested with: "
            f"{low[0]}.{low[1]} to {high[0]}.{high[1]}.",
        )
    ]


def _legacy_keras(job: Job, target: Local, facts: Facts) -> list[Finding]:
    if job.code.keras != "legacy" or facts.tf_keras is not None:
        return []
    return [
        Finding("error", "code_keras='legacy' needs tf_keras, which is not installed. Next: pip install 'podlift[tf]'.")
    ]


def _isolation(job: Job, target: Local, facts: Facts) -> list[Finding]:
    if target.network != "isolated" or facts.isolation is None:
        return []
    return [
        Finding("error", f"local_network='isolated' is not available here: {facts.isolation} Use local_network='host'.")
    ]


def _open_ports(job: Job, target: Local, facts: Facts) -> list[Finding]:
    if len(cluster.members(job.resources, target)) == 1 or target.network == "isolated":
        return []
    return [
        Finding(
            "note",
            "While this runs, TensorFlow's servers listen on every network interface, without authentication. On an "
            "untrusted network use local_network='isolated' (docs/explanation/security.md).",
        )
    ]


def _crowding(job: Job, target: Local, facts: Facts) -> list[Finding]:
    tasks = len(cluster.members(job.resources, target))
    if tasks <= 4 * facts.cpus:
        return []
    return [
        Finding(
            "warning",
            f"{tasks} tasks share {facts.cpus} CPUs: each step takes about {tasks / facts.cpus:.0f} times as long.",
        )
    ]


def _cloud_settings(job: Job, target: Local, facts: Facts) -> list[Finding]:
    if job.limits.max_cost_usd is None:
        return []
    return [Finding("note", "max_cost_usd: ignored in local mode, where there are no cloud machines.")]
