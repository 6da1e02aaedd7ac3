"""The checks of a plan for Vertex AI. Every error names the nearest plan that passes the check."""

from __future__ import annotations

from collections.abc import Sequence

from ..spec.findings import Facts, Finding
from . import vertex_cost, vertex_hardware, vertex_limits, vertex_online, vertex_raw, vertex_target
from .vertex_hardware import Json

_CHECKS = (
    vertex_hardware.offered,
    vertex_hardware.one_task,
    vertex_hardware.machine,
    vertex_hardware.region,
    vertex_hardware.provisioning,
    vertex_target.regions,
    vertex_target.project,
    vertex_target.account,
    vertex_target.image,
    vertex_target.labels,
    vertex_limits.disk,
    vertex_limits.variables,
    vertex_limits.shape,
    vertex_limits.times,
    vertex_raw.replicas,
    vertex_raw.mixed,
    vertex_cost.limit,
)


def run(
    job: Json, target: Json, facts: Facts, *, root: str = "", run_id: str = "", strategies: Sequence[str] = ()
) -> list[Finding]:
    found = [finding for check in _CHECKS for finding in check(job, target)]
    found += vertex_hardware.tensorflow(job, target, facts)
    found += vertex_limits.roles(job, target, strategies)
    found += vertex_limits.display_name(run_id)
    found += vertex_target.place(job, target, root)
    found += vertex_online.run(job, target, facts, root)
    return found
