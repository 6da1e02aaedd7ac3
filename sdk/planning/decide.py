"""The last step of planning: makes the Plan from the settings, the readings and the code. Pure."""

from __future__ import annotations

from dataclasses import replace

from .. import backends
from ..checks import Facts
from ..hardware import accelerators
from ..job import cluster
from ..job.findings import warning
from ..job.job import Job
from ..job.plan import Plan
from ..job.values import changed
from ..packaging.audit.environment import Preload
from .look import World
from .pack import Packed
from .validate import RunRequest


def decide(request: RunRequest, world: World, packed: Packed, run_id: str, *, starting: bool) -> Plan:
    """Decide everything about a run; with `starting`, findings that only prevent a start are errors."""
    job, preload = request.job, packed.preload
    if world.secrets:
        job = changed(job, env={**job.env, **world.secrets})
    target, of_regions = request.target.located(job.resources, world.facts)
    fresh = _why_fresh(request, world.facts, preload)
    plan = Plan(
        run_id=run_id,
        root=world.root,
        job=job,
        target=target,
        facts=world.facts,
        local=world.local,
        backend=request.backend,
        capabilities=request.capabilities,
        code=packed.code,
        tasks=[task.name for task in cluster.members(job.resources, target)],
        findings=(),
        inputs=dict(world.inputs),
        preload=[] if fresh else list(preload.modules),
        fresh=fresh,
        warm_start=world.warm_start,
        initial=world.initial,
        emulator=world.emulator,
    )
    reviewed = backends.load(request.backend).review(plan, preload, starting=starting)
    findings = [*request.notes, *world.notes, *of_regions, *packed.notes, *reviewed]
    if fresh and target.start in ("fork", "standby"):
        findings.append(warning(f"local_start={target.start!r} is ignored: {fresh}"))
    if (together := len(cluster.in_step(plan.tasks))) > 1 and preload.fits and not preload.connects:
        alone = f"unless a package makes one, each of the {together} tasks trains its own model on all of the data"
        why = f"{preload.fits[0]} calls fit, and no module that the program imports names a tf.distribute strategy: {alone}"
        findings.append(warning(f"{why}. Next: make the model in sdk.context().strategy.scope()"))
    return replace(plan, findings=tuple(findings))


def _why_fresh(request: RunRequest, facts: Facts, preload: Preload) -> str:
    """Return why each task starts its own Python, "" if tasks are forked from one process."""
    job, target = request.job, request.target
    if not request.capabilities.runs_here:
        # There, a later attempt is forked from a process that did the imports during the previous attempt.
        on_tpu = accelerators.lookup(job.resources.accelerator).family == "tpu"
        return "a TPU has one process" if on_tpu else preload.blocked_by or preload.doubt or _other_keras(job)
    if target.start == "spawn":
        return "local_start='spawn'"
    if preload.blocked_by:
        return preload.blocked_by
    if other := _other_keras(job):
        return other
    if target.start != "fork" and preload.doubt:
        return preload.doubt
    if facts.tensorflow is None and not job.code.isolated:
        return "TensorFlow is not installed"
    if target.real_gpus:
        return "forking is not tested with real GPUs"
    if target.start in ("auto", "anew") and len(cluster.members(job.resources, target)) == 1:
        return "a single task has no imports to share"
    return ""


def _other_keras(job: Job) -> str:
    return "" if job.env.get("KERAS_BACKEND", "tensorflow") == "tensorflow" else "KERAS_BACKEND is not tensorflow"
