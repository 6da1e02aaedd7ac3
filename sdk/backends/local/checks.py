"""The checks of a plan for local mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...checks import idle
from ...checks.hardware import available, one_task
from ...errors import InputError
from ...hardware import accelerators
from ...job import cluster
from ...job.findings import TENSORFLOW_RANGE, Facts, Finding, error, note, warning
from ...job.job import Job
from ...text import counted
from .options import Local

# In the table of accelerators.
BACKEND = "local"


def of_local(job: Job, facts: Facts, *, target: Local | None = None) -> Iterator[Finding]:
    """Yield the findings of every check of local mode."""
    target = target or Local()
    yield from available(job)
    # The TPU stand-in follows Vertex AI's rule.
    yield from one_task(job)
    if not job.code.isolated:
        yield from _tensorflow(facts)
    if job.code.keras == "legacy" and facts.tf_keras is None:
        yield error("code_keras='legacy' needs tf_keras, which is not installed. Next: pip install 'podlift[tf]'")
    if target.isolated and facts.isolation is not None:
        yield error(f"local_network='isolated' is not available here: {facts.isolation} Use local_network='host'")
    yield from _gpus(job, target, facts)
    tasks = len(cluster.members(job.resources, target))
    if tasks > 1 and not target.isolated:
        yield note(
            "While this runs, TensorFlow's servers listen on every network interface, without authentication. On an "
            "untrusted network use local_network='isolated' (docs/explanation/security.md)"
        )
    yield from idle.limit(job, BACKEND, stands_in=not target.real_gpus)
    yield from _shared_cpus(job, target, facts)
    if target.cores.isdecimal() and int(target.cores) > facts.cpus:
        yield warning(
            f"local_cores={target.cores}: each task gets {counted(facts.cpus, 'thread')}, as many as this run may use CPUs"
        )
    if job.limits.max_cost_usd is not None:
        yield note("max_cost_usd: ignored in local mode, where there are no cloud machines")


def _gpus(job: Job, target: Local, facts: Facts) -> Iterator[Finding]:
    """The devices for a job with GPUs: logical CPU devices, or this machine's own GPUs if the job requests them."""
    row = accelerators.lookup(job.resources.accelerator)
    gpus = accelerators.per_task(row)
    needed = gpus * (job.resources.workers + job.resources.evaluator)
    if target.real_gpus and row.family != "gpu":
        yield error(
            f"local_gpus='real' is for an accelerator with GPUs. Received: accelerator={row.name!r}",
            {"local.gpus": "stand-in"},
        )
    elif target.real_gpus and facts.gpus < needed:
        message = (
            f"local_gpus='real' needs {needed} GPUs of this machine, {gpus} for each task. Received: {facts.gpus} GPUs"
        )
        yield error(message, {"local.gpus": "stand-in"})
    elif target.real_gpus:
        yield note(f"Each task has {counted(gpus, 'GPU')} of this machine, of the type that is here")
    elif row.family == "gpu" and facts.gpus:
        yield note(f"The {counted(facts.gpus, 'GPU')} of this machine stay unused: local_gpus='real' uses them")


def _shared_cpus(job: Job, target: Local, facts: Facts) -> Iterator[Finding]:
    tasks = len(cluster.members(job.resources, target))
    gpus = 1 if target.real_gpus else accelerators.per_task(accelerators.lookup(job.resources.accelerator))
    computing = tasks if gpus == 1 else gpus * job.resources.workers
    if computing > 4 * facts.cpus:
        what = f"{tasks} tasks" if gpus == 1 else f"{computing} replicas"
        yield warning(
            f"{what} share {facts.cpus} CPUs: each step takes about {computing / facts.cpus:.0f} times as long"
        )


def replicas(job: Job, environ: Mapping[str, str]) -> list[Finding]:
    """Check the number of replicas in each task that the caller's environment requests."""
    row = accelerators.row(job.resources.accelerator)
    if row.family == "cpu" or row.name not in accelerators.names(BACKEND):
        return []
    try:
        count, most = accelerators.replicas(row, environ), accelerators.per_task(row)
    except InputError as wrong:
        return [Finding("error", str(wrong))]
    fewer = (
        f"PODLIFT_{row.family.upper()}_REPLICAS={count}: each task has {counted(count, 'replica')} instead of {most}"
    )
    return [note(fewer)] if count < most else []


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
