"""The last step of planning: makes the Plan from what is wanted, the code and the facts."""

from __future__ import annotations

from collections.abc import Mapping

from .. import backends, ids
from ..backends.base import Draft
from ..checks import Facts
from ..hardware import accelerators
from ..job import cluster
from ..job.findings import warning
from ..job.job import Job
from ..job.plan import Plan
from ..packaging.audit.environment import Preload
from ..storage import emulator
from . import initial, preflight_cache
from .pack import Packed
from .roots import configured_roots, in_cloud_storage
from .validate import Wanted


def decide(
    wanted: Wanted, packed: Packed, facts: Facts, environ: Mapping[str, str], *, verb: str, resumed: Plan | None = None
) -> Plan:
    """Decide everything about a run; a `resumed` one keeps its id and its root."""
    job, preload = wanted.job, packed.preload
    target, of_regions = wanted.target.located(job.resources, facts)
    run_id = resumed.run_id if resumed else ids.new_run_id(wanted.name or ids.default_name(packed.title, packed.home))
    root, local = (resumed.root, resumed.local) if resumed else (wanted.root, wanted.local)
    asked, fresh = _emulator(root, environ, resumed), _why_fresh(wanted, facts, preload)
    draft = Draft(
        job=job,
        target=target,
        facts=facts,
        root=root,
        run_id=run_id,
        strategies=preload.strategies,
        communications=preload.communications,
        fits=preload.fits,
        starting=verb != "plan",
        emulator=asked or "",
    )
    preflight = preflight_cache.plan_findings(job, packed.code, environ, verb)
    findings = [*wanted.notes, *of_regions, *preflight, *packed.notes, *backends.load(wanted.backend).review(draft)]
    if fresh and target.start in ("fork", "standby"):
        findings.append(warning(f"local_start={target.start!r} is ignored: {fresh}"))
    made = Plan(
        run_id=run_id,
        root=root,
        job=job,
        target=target,
        facts=facts,
        local=local,
        backend=wanted.backend,
        capabilities=wanted.capabilities,
        code=packed.code,
        tasks=[task.name for task in cluster.members(job.resources, target)],
        findings=tuple(findings),
        inputs=wanted.inputs,
        preload=[] if fresh else list(preload.modules),
        fresh=fresh,
        warm_start=wanted.warm_start,
        emulator=asked,
    )
    if resumed or job.warm_start is None:
        return made.starting_from(resumed.initial if resumed else None)
    return initial.starting(made, configured_roots(environ)[0])


def _emulator(root: str, environ: Mapping[str, str], resumed: Plan | None) -> str:
    """Return the emulator that holds the bucket of a root, "" for none."""
    if resumed is not None:
        return resumed.emulator
    return emulator.asked(environ) if in_cloud_storage(root) else ""


def _why_fresh(wanted: Wanted, facts: Facts, preload: Preload) -> str:
    """Return why each task starts a Python of its own, "" if tasks are forked from one."""
    job, target = wanted.job, wanted.target
    if not wanted.capabilities.runs_here:
        # There, a later attempt is forked from a process that did the imports during the one before.
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
