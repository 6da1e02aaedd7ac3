"""Checks of what was read of prices and regions: a table that is old, and a region that lists no such machine."""

from __future__ import annotations

from collections.abc import Iterator

from ..hardware.price_table import OLD_DAYS
from ..job.findings import Facts, Finding, warning
from ..job.job import Job
from ..job.policies import Vertex
from ..text import joined

REFRESH = "podlift accelerators --refresh"


def run(job: Job, target: Vertex, facts: Facts) -> Iterator[Finding]:
    """Warn only: what Compute Engine lists is not what Vertex AI accepts, and prices do not prevent a job."""
    known = facts.prices
    if known is None:
        return
    if known.is_old:
        yield warning(
            f"The prices are of {known.date}, {known.age_days} days ago, more than {OLD_DAYS}. Next: {REFRESH}"
        )
    lacking = dict[str, list[str]]()
    for place in target.places_for(job.resources):
        for pool in target.pools(job.resources, place):
            found = known.of(pool.accelerator.name, pool.machine)
            what = pool.machine if pool.accelerator.family == "cpu" else f"{pool.accelerator.name} ({pool.machine})"
            if found is not None and place.region in found.absent and place.region not in lacking.setdefault(what, []):
                lacking[what].append(place.region)
    for what, names in lacking.items():
        if names:
            yield warning(
                f"No zone of {joined(names, 'or')} listed {what} on {known.date}: a job may find no machine there"
            )
