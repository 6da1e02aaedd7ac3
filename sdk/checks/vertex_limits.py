"""Checks of Vertex AI's limits, of the limit of cost, and of local-mode settings that Vertex AI cannot honour."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..hardware import accelerators, pricing
from ..spec.findings import Finding, error, note, warning
from ..spec.job import Job
from ..spec.policies import Vertex
from ..text import compact_duration, duration, joined, money
from .strategies import PARAMETER_SERVER, SYNCHRONOUS
from .vertex_hardware import WEEK_S

DISK_GB = (100, 64_000)
MAX_VARIABLES = 100
MAX_DISPLAY_NAME = 128
# The longest notice that containers on a spot machine get before they are killed; Vertex AI guarantees none.
_NOTICE_S = 15.0
# A shorter job would end before its machines are ready.
_LEAST_S = 600.0
_OWN_VARIABLES = ("PODLIFT_RUN", "PODLIFT_TASKS")


def disk(job: Job, target: Vertex) -> list[Finding]:
    low, high = DISK_GB
    requested = target.disk_gb
    if low <= requested <= high:
        return []
    fits = {"vertex.disk_gb": min(max(requested, low), high)}
    return [error(f"A boot disk has {low} to {high} GB. Received: vertex_disk_gb={requested}", fits)]


def variables(job: Job, target: Vertex) -> list[Finding]:
    """More environment variables than a container of Vertex AI may have."""
    row = accelerators.lookup(job.resources.accelerator)
    own = {*_OWN_VARIABLES, *(name for name, _ in row.env)}
    own |= {"TF_USE_LEGACY_KERAS"} if job.code.keras == "legacy" else set()
    names = {*own, *job.env}
    if len(names) <= MAX_VARIABLES:
        return []
    room = MAX_VARIABLES - len(own)
    kept = dict(list({name: text for name, text in job.env.items() if name not in own}.items())[:room])
    return [
        Finding(
            "error",
            f"A container of Vertex AI has at most {MAX_VARIABLES} variables, and podlift sets {len(own)}. Received: "
            f"{len(job.env)} in env. Nearest: {room} of them, and the others in a file of the project.",
            (("env", kept),),
        )
    ]


def display_name(run_id: str) -> list[Finding]:
    if len(run_id) <= MAX_DISPLAY_NAME:
        return []
    return [error(f"A job's name has at most {MAX_DISPLAY_NAME} characters. Received: {len(run_id)}, {run_id!r}")]


def shape(job: Job, target: Vertex) -> list[Finding]:
    """A setting of local mode that Vertex AI cannot honour."""
    if not job.code.isolated:
        return []
    message = "code_isolated=True is for local mode: on Vertex AI the image is the environment, with requirements added"
    return [error(message, {"code.isolated": False})]


def roles(job: Job, target: Vertex, strategies: Sequence[str] = ()) -> list[Finding]:
    """Parameter servers that would stay unused, and more than one evaluator."""
    requested, found = job.resources, []
    servers, together = requested.ps, [name for name in strategies if name in SYNCHRONOUS]
    if servers and together and PARAMETER_SERVER not in strategies:
        message = f"{', '.join(together)} trains without parameter servers: they would only cost money. Received: ps={servers}"
        found.append(error(message, {"resources.ps": 0}))
    if servers and requested.workers == 1:
        message = f"Parameter servers without workers: the chief only coordinates. Received: workers=1, ps={servers}"
        found.append(warning(f"{message}; training needs at least workers=2"))
    return found


def times(job: Job, target: Vertex) -> list[Finding]:
    """How long the job may run, and time limits that Vertex AI does not keep."""
    limits, found = job.limits, []
    timeout_s = limits.timeout_s
    if timeout_s is None:
        found.append(note("No timeout: Vertex AI stops the job after 7 days"))
    elif timeout_s > WEEK_S and target.provisioning != "flex":
        found.append(
            warning(
                f"Vertex AI documents no jobs of more than 7 days. Received: timeout={compact_duration(timeout_s)!r}"
            )
        )
    if limits.hang_s is not None:
        found.append(note("limit_hang is for local mode: on Vertex AI a hung job runs until its timeout"))
    exit_wait_s = limits.exit_wait_s
    if timeout_s is not None and exit_wait_s >= timeout_s:
        wait, timeout = compact_duration(exit_wait_s), compact_duration(timeout_s)
        message = f"limit_exit_wait={wait!r} is not below the limit of the whole job: timeout={timeout!r}"
        found.append(warning(message))
    if limits.grace_s > _NOTICE_S and target.provisioning == "spot":
        grace = compact_duration(limits.grace_s)
        message = f"limit_grace={grace!r} is more than the notice of a spot machine: {_NOTICE_S:g} s at best"
        found.append(warning(message))
    return found


def cost(job: Job, target: Vertex) -> list[Finding]:
    """A job that may cost more than `max_cost_usd` in any of its regions, or whose price is unknown."""
    most = job.limits.max_cost_usd
    if most is None or accelerators.lookup(job.resources.accelerator).refused:
        return []
    rented = target.rental(job.resources, job.limits)
    prices = [pricing.price(rented, region) for region in target.regions]
    unknown = next((found for found in prices if found.cap is None), None)
    dearest = max(prices, key=lambda found: found.at_least)
    findings = []
    if unknown and not job.limits.allow_unknown_price:
        where = "as flex-start" if target.provisioning == "flex" else f"in {unknown.region}"
        what = joined(unknown.missing, "and")
        message = f"max_cost_usd={most:g} cannot be enforced: no source gives the price of {what} {where}"
        findings.append(error(message, {"limits.allow_unknown_price": True}))
    at_most = dearest.at_least * dearest.timeout_s / 3600
    if at_most > most:
        findings.append(_too_much(job, target, dearest, at_most, most))
    return findings


def _too_much(job: Job, target: Vertex, price: pricing.Price, at_most: float, most: float) -> Finding:
    fits_s = math.floor(most / price.at_least * 60) * 60.0
    least = "" if price.own is not None else "at least "
    message = (
        f"Cost limit exceeded: the run may cost {least}{money(at_most)}, at {money(price.at_least)} an hour for "
        f"{duration(price.timeout_s)} in {price.region}. Received: max_cost_usd={most:g}"
    )
    if target.provisioning == "standard" and price.spot is not None:
        spot = price.spot * price.timeout_s / 3600
        if spot <= most and len(target.regions) <= 1 and accelerators.lookup(job.resources.accelerator).hosts == 1:
            return error(f"{message}. Spot machines cost {money(spot)}", {"vertex.provisioning": "spot"})
    if fits_s >= _LEAST_S:
        return error(f"{message}. The limit pays for {duration(fits_s)}", {"limits.timeout_s": fits_s})
    cents = math.ceil(at_most * 100) / 100
    return error(f"{message}. The limit does not pay for a run of {duration(_LEAST_S)}", {"limits.max_cost_usd": cents})
