"""The checks of a plan for local mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import InputError
from ..hardware import accelerators
from ..spec import cluster
from ..spec.findings import TENSORFLOW_RANGE, Facts, Finding, error, note, warning
from ..spec.job import Job
from ..spec.policies import Local
from .vertex_hardware import one_task

# In the table of accelerators.
BACKEND = "local"


def run(job: Job, target: Local, facts: Facts) -> Iterator[Finding]:
    requested = job.resources.accelerator
    if requested not in accelerators.names(BACKEND):
        message = f"Local mode has no {requested}: tasks run on this machine's CPUs; backend='vertex' has it"
        yield error(message, {"resources.accelerator": "cpu"})
    # The TPU stand-in follows Vertex AI's rule.
    yield from one_task(job)
    if not job.code.isolated:
        yield from _tensorflow(facts)
    if job.code.keras == "legacy" and facts.tf_keras is None:
        yield error("code_keras='legacy' needs tf_keras, which is not installed. Next: pip install 'podlift[tf]'")
    if target.isolated and facts.isolation is not None:
        yield error(f"local_network='isolated' is not available here: {facts.isolation} Use local_network='host'")
    tasks = len(cluster.members(job.resources, target))
    if tasks > 1 and not target.isolated:
        yield note(
            "While this runs, TensorFlow's servers listen on every network interface, without authentication. On an "
            "untrusted network use local_network='isolated' (docs/explanation/security.md)"
        )
    if tasks > 4 * facts.cpus:
        times = f"{tasks / facts.cpus:.0f} times as long"
        yield warning(f"{tasks} tasks share {facts.cpus} CPUs: each step takes about {times}")
    if job.limits.max_cost_usd is not None:
        yield note("max_cost_usd: ignored in local mode, where there are no cloud machines")


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


def _tensorflow(facts: Facts) -> Iterator[Finding]:
    if facts.tensorflow is None:
        yield warning(
            f"TensorFlow is not installed for {facts.executable}: a program that imports it will fail. "
            "Next: pip install 'podlift[tf]'"
        )
        return
    release = tuple(int(part) for part in facts.tensorflow.split(".")[:2])
    low, high = TENSORFLOW_RANGE
    if not low <= release <= high:
        tested = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
        yield warning(f"TensorFlow {facts.tensorflow} is outside the range that podlift is tested with: {tested}")
