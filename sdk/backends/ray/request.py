"""Renders a plan as a job of Ray's Jobs API, with its placement and the specs of its driver and agents. Pure.

Source: the messages JobSubmitRequest and JobDetails of ray.dashboard.modules.job, Ray 2.60.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ...checks import Finding
from ...errors import nearest
from ...hardware import accelerators
from ...job.cluster import named
from ...job.container import RESTART_CODE, ContainerTerms
from ...job.findings import note
from ...job.layout import RootPaths
from ...job.plan import Plan
from ...job.policies import Limits
from ...job.raw import leaves, patched
from ...packaging.runtime_archive import loader
from ...storage import emulator
from .. import containers
from ..containers import bucket_of, job_name, key_of
from .options import Ray
from .placement import Placement

SPEC_UNKNOWN, ENTRYPOINT_UNKNOWN = "<sha256 of the driver's spec>", "<sha256 of the entrypoint>"
TASK, HOST, LOADER = "PODLIFT_TASK_NAME", "PODLIFT_HOST", "PODLIFT_LOADER"
# The driver starts an agent again after these codes; 139 is a crash of the agent's own process.
RESTART = 134
TERMS = ContainerTerms(
    restart_code=RESTART,
    restarting_codes=(RESTART, 139),
    identity=(TASK,),
    notice_s=8.0,
    host=HOST,
    keeps_logs=False,
    keeps_limit=False,
)
# Ray's names of accelerators, by the family in the table of accelerators. Others are requested as any GPU.
_TYPES = {
    "t4": "T4", "v100": "V100", "p100": "P100", "p4": "P4", "l4": "L4", "a100": "A100-40G", "a100-80gb": "A100-80G",
    "h100": "H100", "h200": "H200", "b200": "B200",
}  # fmt: skip
_STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
# A small share of a resource of a kind of node requests that kind.
_SHARE = 0.001


def emulators(plan: Plan) -> list[str]:
    """Return the variables that name the emulator of a run's bucket, if any."""
    return [emulator.EMULATOR, emulator.STORAGE_EMULATOR] if plan.emulator else []


def missing(root: str) -> list[str]:
    """Return an error for each missing setting, for which the plan shows a placeholder."""
    if not root.startswith("gs://<"):
        return []
    return [
        "No root is configured for ray. Next: --root with a folder that this machine and all nodes of the cluster see at the "
        "same path, or with gs://BUCKET/PREFIX."
    ]


def findings(target: Ray) -> list[Finding]:
    """Return the findings about `raw`. Only its placement strategy is checked."""
    if not target.raw:
        return []
    findings = [note(f"The request is patched by raw=, without checks: {', '.join(leaves(target.raw))}")]
    placement = target.raw.get("placement")
    strategy = placement.get("strategy", "SPREAD") if isinstance(placement, Mapping) else "SPREAD"
    if strategy not in _STRATEGIES:
        hint = nearest(str(strategy).upper(), _STRATEGIES)
        findings.append(Finding("error", f"Unknown placement.strategy in ray_raw. Received: {strategy!r}. {hint}"))
    return findings


def render(
    plan: Plan,
    *,
    number: int = 1,
    entrypoint: str = ENTRYPOINT_UNKNOWN,
    spec_digest: str = SPEC_UNKNOWN,
    copied: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return the body of the request ("job"), the "placement" that its driver reserves, and the variables of the tasks ("env").

    A `copied` variable that is missing here is "***".
    """
    target, root = Ray.of(plan.target), RootPaths(plan.root)
    spec = root.run(plan.run_id).driver_spec(number)
    arguments = [bucket_of(plan.root), key_of(root.entrypoint(entrypoint)), entrypoint, key_of(spec), spec_digest]
    everything = containers.variables(plan, copied or {})
    secret = {name: everything.pop(name) for name in plan.job.copied}
    # Its address holds a token.
    secret |= {name: (copied or {}).get(name, containers.HIDDEN) for name in emulators(plan)}
    body = {
        "job": {
            "entrypoint": f'python3 -c "${LOADER}" {shlex.join(arguments)}',
            "submission_id": job_name(plan.run_id, number),
            "runtime_env": {"env_vars": {**secret, LOADER: loader()}},
            "metadata": {"podlift-run": plan.run_id, "podlift-url": plan.url},
            "entrypoint_num_cpus": 0.0,
        },
        "placement": {
            "strategy": "SPREAD",  # on different nodes if possible
            "pending_timeout_s": target.pending_timeout_s,
            "tasks": {task.name: _resources(plan, task.role) for task in named(plan.tasks)},
        },
        "env": {**everything, RESTART_CODE: str(TERMS.restart_code)},
    }
    request: dict[str, object] = patched(body, target.raw)
    return request


def _resources(plan: Plan, role: str) -> dict[str, float]:
    """Return what Ray reserves for a task: one CPU, as Ray Train does, and its GPUs."""
    row = accelerators.lookup(plan.job.resources.accelerator)
    if row.family != "gpu" or role in ("ps", "evaluator"):
        return {"CPU": 1}
    kind = _TYPES.get(row.name.partition(":")[0])
    return {"CPU": 1, "GPU": row.count or row.chips, **({f"accelerator_type:{kind}": _SHARE} if kind else {})}


@dataclass(frozen=True, kw_only=True)
class DriverSpec:
    """The spec that the driver of a job reads.

    Args:
        run: the directory of the run.
        run_id: its id.
        job: the number of the job, from 1.
        tasks: the names of the tasks.
        agent: the arguments of the first stage of each agent's container.
        placement: the resources of the tasks.
        env: the variables of all tasks.
        limits: the limits of the run.
        shared: the root is a folder, which all machines must mount.
        model: the name of the model that the run registers, "" for none.
        resumes_by_users: the number of the last job before the last resume by a user.
    """

    run: str
    run_id: str
    job: int
    tasks: tuple[str, ...]
    agent: tuple[str, ...]
    placement: Placement
    env: Mapping[str, str]
    limits: Limits
    shared: bool
    model: str
    resumes_by_users: int
