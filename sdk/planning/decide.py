"""Makes a Plan from the job, the code and the facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import backends
from ..backends.base import Draft
from ..checks import Facts, Finding
from ..packaging.audit.environment import Preload
from ..spec import cluster
from ..spec.code import PackedCode
from ..spec.job import Job
from ..spec.plan import Plan
from ..spec.policies import Target

NOT_CHECKED = Preload(blocked_by="the program's imports were not checked")


def make_plan(
    *,
    job: Job,
    argv: Sequence[str],
    kwargs: dict[str, Any],
    run_id: str,
    root: str,
    backend: str,
    starting: bool,
    target: Target,
    code: PackedCode,
    facts: Facts,
    inputs: dict[str, str],
    notes: Sequence[Finding] = (),
    preload: Preload = NOT_CHECKED,
    warm_start: str = "",
    local: str = "",
) -> Plan:
    """Decide everything about a run.

    `notes` are earlier findings; `preload` holds the modules that tasks could share, with reasons against it. `starting` is
    True if the plan is executed at once.
    """
    engine = backends.load(backend)
    place = {"root": root, "run_id": run_id}
    found = engine.review(
        Draft(job=job, target=target, facts=facts, **place, strategies=preload.strategies, starting=starting)
    )
    here = engine.capabilities.runs_here
    fresh = _why_fresh(job, target, facts, preload) if here else "each task has a machine of its own"
    if fresh and target.start == "fork":
        found.append(Finding("warning", f"local_start='fork' is ignored: {fresh}."))
    return Plan(
        run_id=run_id,
        root=root,
        backend=backend,
        target=target,
        job=job,
        code=code,
        argv=list(argv),
        kwargs=kwargs,
        tasks=[task.name for task in cluster.members(job.resources, target)],
        capabilities=engine.capabilities,
        facts=facts,
        findings=(*notes, *found),
        inputs=inputs,
        preload=[] if fresh else list(preload.modules),
        fresh=fresh,
        own_names=list(preload.own_names),
        warm_start=warm_start,
        local=local,
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
