"""The last step of planning: makes the Plan from what is wanted, the code and the facts."""

from __future__ import annotations

from collections.abc import Mapping

from .. import backends, ids
from ..backends.base import Draft
from ..checks import Facts, Finding
from ..packaging.audit.environment import Preload
from ..spec import cluster
from ..spec.job import Job
from ..spec.plan import Plan
from ..spec.policies import Target
from . import preflight_cache
from .pack import Packed
from .validate import Wanted


def decide(
    wanted: Wanted, packed: Packed, facts: Facts, environ: Mapping[str, str], *, verb: str, resumed: Plan | None = None
) -> Plan:
    """Decide everything about a run; a `resumed` one keeps its id and its place."""
    job, target, preload = wanted.job, wanted.target, packed.preload
    run_id = resumed.run_id if resumed else ids.new_run_id(wanted.name or ids.default_name(packed.title, packed.home))
    root, local = (resumed.root, resumed.local) if resumed else (wanted.root, wanted.local)
    here = wanted.capabilities.runs_here
    fresh = _why_fresh(job, target, facts, preload) if here else "each task has a machine of its own"
    draft = Draft(
        job=job,
        target=target,
        facts=facts,
        root=root,
        run_id=run_id,
        strategies=preload.strategies,
        starting=verb != "plan",
    )
    findings = [
        *wanted.notes,
        *preflight_cache.plan_findings(job, packed.code, environ, verb),
        *packed.notes,
        *backends.load(wanted.backend).review(draft),
    ]
    if fresh and target.start == "fork":
        findings.append(Finding("warning", f"local_start='fork' is ignored: {fresh}."))
    return Plan(
        run_id=run_id,
        root=root,
        local=local,
        backend=wanted.backend,
        capabilities=wanted.capabilities,
        target=target,
        job=job,
        code=packed.code,
        tasks=[task.name for task in cluster.members(job.resources, target)],
        facts=facts,
        findings=tuple(findings),
        inputs=wanted.inputs,
        preload=[] if fresh else list(preload.modules),
        fresh=fresh,
        own_names=list(preload.own_names),
        warm_start=wanted.warm_start,
    )


def _why_fresh(job: Job, target: Target, facts: Facts, preload: Preload) -> str:
    """Return why each task starts a Python of its own, "" if tasks are forked from one."""
    if target.start == "spawn":
        return "local_start='spawn'"
    if preload.blocked_by:
        return preload.blocked_by
    if job.env.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return "KERAS_BACKEND is not tensorflow"
    if target.start == "auto" and preload.doubt:
        return preload.doubt
    if facts.tensorflow is None and not job.code.isolated:
        return "TensorFlow is not installed"
    if job.resources.accelerator != "cpu":
        return "forking is not tested with an accelerator"
    if target.start == "auto" and len(cluster.members(job.resources, target)) == 1:
        return "a single task has no imports to share"
    return ""
