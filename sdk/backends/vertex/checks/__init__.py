"""The checks of a job for Vertex AI: small pure functions (job, target, facts) -> findings.

Every error names the nearest plan that passes the check.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....checks import idle
from ....checks.hardware import one_task
from ....checks.strategies import roles
from ....job.findings import Facts, Finding
from ....job.job import Job
from ..options import Vertex
from . import hardware, keeper, limits, locations, online, settings
from . import target as of_target

_VERTEX = (
    hardware.offered,
    one_task,
    hardware.machine,
    hardware.region,
    hardware.provisioning,
    of_target.regions,
    of_target.names,
    of_target.secrets,
    of_target.labels,
    limits.numbers,
    limits.times,
    settings.body,
)


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
    `emulator` is the address of an emulator in place of Google Cloud, which bills nothing; "" for none.
    """
    findings = locations.each(job, target, _VERTEX)
    findings += locations.contradictions(target, job.resources)
    findings += locations.hardware(job, target)
    findings += idle.limit(job, "vertex")
    findings += limits.cost(job, target, facts, emulator=emulator)
    findings += hardware.tensorflow(job, target, facts)
    findings += roles(job, strategies)
    findings += limits.display_name(run_id)
    findings += of_target.bucket_and_root(target, root)
    findings += of_target.image(job, target)
    findings += of_target.emulated_images(target, emulator)
    findings += settings.billed(job, target)
    findings += keeper.run(target, facts.online.get("keeper"))
    findings += online.run(job, target, facts, root, emulator=emulator)
    return list({(finding.level, finding.message): finding for finding in findings}.values())
