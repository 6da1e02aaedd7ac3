"""The checks of a plan: small pure functions (job, target, facts) -> findings.

Every error of a plan for Vertex AI names the nearest plan that passes the check.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..job.findings import TENSORFLOW_RANGE, Facts, Finding
from ..job.job import Job
from ..job.policies import Local, Vertex
from . import (
    idle,
    local,
    vertex_hardware,
    vertex_keeper,
    vertex_limits,
    vertex_locations,
    vertex_online,
    vertex_settings,
    vertex_target,
)
from .strategies import roles, strategies_in

__all__ = ["TENSORFLOW_RANGE", "Facts", "Finding", "errors", "of_local", "of_vertex", "strategies_in"]

_VERTEX = (
    vertex_hardware.offered,
    vertex_hardware.one_task,
    vertex_hardware.machine,
    vertex_hardware.region,
    vertex_hardware.provisioning,
    vertex_target.regions,
    vertex_target.names,
    vertex_target.secrets,
    vertex_target.labels,
    vertex_limits.numbers,
    vertex_limits.times,
    vertex_settings.body,
)


def of_local(job: Job, facts: Facts, *, target: Local | None = None) -> list[Finding]:
    """Return the findings of every check of local mode."""
    return list(local.run(job, target or Local(), facts))


def of_vertex(
    job: Job,
    facts: Facts,
    *,
    target: Vertex,
    root: str = "",
    run_id: str = "",
    strategies: Sequence[str] = (),
    emulator: str = "",
) -> list[Finding]:
    """Return the findings of every check of Vertex AI, in a fixed order and without duplicates.

    `root` and `run_id` are "" if not decided yet; `strategies` are the names that `strategies_in` found in the program.
    `emulator` is the address of one that stands in for Google Cloud, which bills nothing; "" for none.
    """
    findings = vertex_locations.each(job, target, _VERTEX)
    findings += vertex_locations.contradictions(target, job.resources)
    findings += vertex_locations.hardware(job, target)
    findings += idle.limit(job, "vertex")
    findings += vertex_limits.cost(job, target, facts, emulator=emulator)
    findings += vertex_hardware.tensorflow(job, target, facts)
    findings += roles(job, strategies)
    findings += vertex_limits.display_name(run_id)
    findings += vertex_target.bucket_and_root(target, root)
    findings += vertex_target.image(job, target)
    findings += vertex_target.emulated_images(target, emulator)
    findings += vertex_settings.billed(job, target)
    findings += vertex_keeper.run(target, facts.online.get("keeper"))
    findings += vertex_online.run(job, target, facts, root, emulator=emulator)
    return list({(finding.level, finding.message): finding for finding in findings}.values())


def errors(findings: Sequence[Finding]) -> list[str]:
    return [finding.message for finding in findings if finding.level == "error"]
