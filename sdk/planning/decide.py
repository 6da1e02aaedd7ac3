"""Makes a Plan from the job, the code and the facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .. import backends
from ..checks import Facts, Finding
from ..spec import cluster
from ..spec.plan import Plan


def make_plan(
    *,
    job: dict[str, Any],
    argv: Sequence[str],
    kwargs: dict[str, Any],
    run_id: str,
    root: str,
    backend: str,
    starting: bool,
    source: dict[str, Any],
    bundle: dict[str, Any],
    facts: Facts,
    inputs: dict[str, str],
    requirements: dict[str, Any],
    notes: Sequence[Finding] = (),
    preload: Mapping[str, Any] | None = None,
    warm_start: str = "",
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Decide everything about a run.

    `source` holds the Plan's fields about the entry, `bundle` those about the archive, `notes` earlier findings, and `preload`
    the modules that tasks could share, with reasons against it (None if the imports were not checked). `starting` is True if
    the plan is executed at once.
    """
    named = tuple(preload["strategies"]) if preload else ()
    target = dict(options or {})
    engine = backends.load(backend)
    found = engine.review(job, target, facts, root=root, run_id=run_id, strategies=named, starting=starting)
    findings = [*notes, *found]
    here = engine.capabilities.runs_here
    fresh = _why_fresh(job, target, facts, preload) if here else "each task has a machine of its own"
    if fresh and target.get("start") == "fork":
        findings.append(Finding("warning", f"local_start='fork' is ignored: {fresh}."))
    return Plan(
        run_id=run_id,
        root=root,
        backend=backend,
        job=job,
        argv=list(argv),
        kwargs=kwargs,
        tasks=[task.name for task in cluster.members(job["resources"], target)],
        backend_options=target,
        capabilities=engine.capabilities,
        facts={name: value for name, value in asdict(facts).items() if name != "dropped" and value != {}},
        dropped=list(facts.dropped),
        inputs=inputs,
        requirements=requirements,
        preload=[] if fresh or preload is None else list(preload["modules"]),
        fresh=fresh,
        own_names=list(preload["own_names"]) if preload else [],
        warm_start=warm_start,
        findings=[[finding.level, finding.message] for finding in findings],
        **source,
        **bundle,
    )


def _why_fresh(
    job: Mapping[str, Any], target: Mapping[str, Any], facts: Facts, preload: Mapping[str, Any] | None
) -> str:
    """Return why each task starts a Python of its own, "" if tasks are forked from one."""
    start = target.get("start", "auto")
    if start == "spawn":
        return "local_start='spawn'"
    if preload is None:
        return "the program's imports were not checked"
    backend = job["env"].get("KERAS_BACKEND", "tensorflow")
    if preload["blocked_by"] or backend != "tensorflow":
        return str(preload["blocked_by"]) or "KERAS_BACKEND is not tensorflow"
    if start == "auto" and preload["doubt"]:
        return str(preload["doubt"])
    if facts.tensorflow is None and not job["code"]["isolated"]:
        return "TensorFlow is not installed"
    if job["resources"]["accelerator"] != "cpu":
        return "forking is not tested with an accelerator"
    if start == "auto" and len(cluster.members(job["resources"], target)) == 1:
        return "a single task has no imports to share"
    return ""
