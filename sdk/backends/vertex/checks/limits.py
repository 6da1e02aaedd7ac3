"""Checks of Vertex AI's limits, of the limit of cost, and of local-mode settings that Vertex AI cannot honour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....hardware import accelerators, pricing
from ....hardware.catalog import old
from ....job.findings import Facts, Finding, error, note, warning
from ....job.job import Job
from ....text import compact_duration, duration, emulator_at, joined, money
from ..options import Vertex
from .hardware import WEEK_S

DISK_GB = (100, 64_000)
MAX_VARIABLES = 100
MAX_DISPLAY_NAME = 128
# The longest notice that containers on a spot machine get before they are killed; Vertex AI guarantees none.
_NOTICE_S = 15.0
# A shorter job would end before its machines are ready.
_LEAST_S = 600.0
_OWN_VARIABLES = ("PODLIFT_RUN", "PODLIFT_TASKS", "PODLIFT_RESTART_CODE")


def numbers(job: Job, target: Vertex) -> Iterator[Finding]:
    """A boot disk of an unknown size, more variables than a container may have, and an environment of the tasks' own."""
    low, high = DISK_GB
    if not low <= target.disk_gb <= high:
        fits = {"vertex.disk_gb": min(max(target.disk_gb, low), high)}
        yield error(f"A boot disk has {low} to {high} GB. Received: vertex_disk_gb={target.disk_gb}", fits)
    row = accelerators.lookup(job.resources.accelerator)
    own = {*_OWN_VARIABLES, *(name for name, _ in row.env)}
    own |= {"TF_USE_LEGACY_KERAS"} if job.code.keras == "legacy" else set()
    if len(own | job.env.keys()) > MAX_VARIABLES:
        room = MAX_VARIABLES - len(own)
        first_variables = [(name, text) for name, text in job.env.items() if name not in own][:room]
        message = (
            f"A container of Vertex AI has at most {MAX_VARIABLES} variables, and podlift sets {len(own)}. Received: "
            f"{len(job.env)} in env. Nearest: {room} of them, and the others in a file of the project."
        )
        yield Finding("error", message, (("env", dict(first_variables)),))
    if job.code.isolated:
        message = (
            "code_isolated=True is for local mode: on Vertex AI the image is the environment, with requirements added"
        )
        yield error(message, {"code.isolated": False})


def display_name(run_id: str) -> Iterator[Finding]:
    if len(run_id) > MAX_DISPLAY_NAME:
        yield error(f"A job's name has at most {MAX_DISPLAY_NAME} characters. Received: {len(run_id)}, {run_id!r}")


def times(job: Job, target: Vertex) -> Iterator[Finding]:
    """How long the job may run, and time limits that Vertex AI does not keep."""
    limits = job.limits
    timeout = "" if limits.timeout_s is None else f"timeout={compact_duration(limits.timeout_s)!r}"
    if limits.timeout_s is None:
        yield note("No timeout: Vertex AI stops the job after 7 days")
    elif limits.timeout_s > WEEK_S and target.provisioning != "flex":
        yield warning(f"Vertex AI documents no jobs of more than 7 days. Received: {timeout}")
    if limits.timeout_s is not None and limits.exit_wait_s >= limits.timeout_s:
        wait = compact_duration(limits.exit_wait_s)
        yield warning(f"limit_exit_wait={wait!r} is not below the limit of the whole job: {timeout}")
    if limits.grace_s > _NOTICE_S and target.provisioning == "spot":
        grace = compact_duration(limits.grace_s)
        yield warning(f"limit_grace={grace!r} is more than the notice of a spot machine: {_NOTICE_S:g} s at best")


def cost(job: Job, target: Vertex, facts: Facts, *, emulator: str = "") -> Iterator[Finding]:
    """A job that may cost more than `max_cost_usd` in any of its regions, or has an unknown, old or estimated price."""
    most, table = job.limits.max_cost_usd, facts.prices
    if table is not None and not emulator and (why := old(table.date, table.age_days)):
        yield warning(f"The prices are of {why}. Next: {pricing.REFRESH}")
    if most is not None and emulator:
        yield warning(f"max_cost_usd={most:g} is not checked: nothing is billed by the {emulator_at(emulator)}")
        return
    if most is None or accelerators.lookup(job.resources.accelerator).refused:
        return
    prices = [pricing.price(rented) for rented in target.rentals(job.resources, job.limits, table)]
    keeper = target.kept_by(job.limits, job.retry, table)
    unknown = _unknown(job, target, prices, keeper.price if keeper else None)
    guessed = [price.region for price in prices if price.own is not None and not price.exact]
    if guessed:
        where = joined(tuple(dict.fromkeys(guessed)), "and")
        yield note(
            f"max_cost_usd={most:g} is compared with an estimate of the price in {where}: the bill may be higher"
        )
    dearest = max(prices, key=lambda price: price.at_least)
    upkeep = keeper.price.known_cap if keeper else 0.0
    at_most = dearest.known_cap + upkeep
    # One limit, one error: a lower bound above the limit says it all.
    if at_most <= most:
        yield from unknown
        return
    permission: dict[str, object] = {"limits.allow_unknown_price": True} if unknown else {}
    if upkeep:
        least = "at least " if unknown else ""
        message = f"Cost limit exceeded: the run may cost {least}{money(at_most)}, {money(upkeep)} of it for its keeper"
        limit = {"limits.max_cost_usd": math.ceil(at_most * 100) / 100}
        yield error(f"{message}. Received: max_cost_usd={most:g}", {**limit, **permission})
    else:
        yield _too_much(job, target, dearest, most, permission)


def _unknown(job: Job, target: Vertex, prices: Sequence[pricing.Price], keeper: pricing.Price | None) -> list[Finding]:
    """Return an error for the first machine without a known price, the keeper's last; none if unknown prices are allowed."""
    locations = target.locations_for(job.resources)
    rented = [(price, str(location.provisioning), "") for price, location in zip(prices, locations, strict=True)]
    rented += [(keeper, "standard", " of the keeper")] if keeper else []
    price, provisioning, owner = next((row for row in rented if row[0].own is None), rented[0])
    if price.own is not None or job.limits.allow_unknown_price:
        return []
    where = f"{owner} {pricing.PROVISIONING_WORDS[provisioning]} in {price.region}"
    most, part = f"max_cost_usd={job.limits.max_cost_usd or 0:g}", joined(price.missing, "and")
    bound = f"the run may cost more than {money(price.known_cap)}, as " if price.at_least else ""
    message = f"{most} cannot be enforced: {bound}no source gives the price of {part}{where}"
    return [error(message, {"limits.allow_unknown_price": True})]


def _too_much(job: Job, target: Vertex, price: pricing.Price, most: float, permission: dict[str, object]) -> Finding:
    at_most = price.known_cap
    fits_s = math.floor(most / price.at_least * 60) * 60.0
    least = "" if price.own is not None else "at least "
    message = (
        f"Cost limit exceeded: the run may cost {least}{money(at_most)}, at {money(price.at_least)} an hour for "
        f"{duration(price.timeout_s)} in {price.region}. Received: max_cost_usd={most:g}"
    )
    if target.provisioning == "standard" and price.spot is not None:
        spot = price.spot * price.timeout_s / 3600
        if (
            spot <= most
            and len(target.regions) == 1
            and target.plain
            and accelerators.lookup(job.resources.accelerator).hosts == 1
        ):
            return error(f"{message}. Spot machines cost {money(spot)}", {"vertex.provisioning": "spot"})
    if fits_s >= _LEAST_S:
        return error(f"{message}. The limit pays for {duration(fits_s)}", {"limits.timeout_s": fits_s, **permission})
    cents = math.ceil(at_most * 100) / 100
    return error(
        f"{message}. The limit does not pay for a run of {duration(_LEAST_S)}",
        {"limits.max_cost_usd": cents, **permission},
    )
