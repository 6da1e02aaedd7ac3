"""The check of what a job may cost."""

from __future__ import annotations

import math

from ..hardware import pricing
from ..hardware.accelerators import lookup
from ..spec.findings import Finding, error
from ..text import duration, joined, money
from .vertex_hardware import Json

# A shorter job would end before its machines are ready.
_LEAST_S = 600.0


def limit(job: Json, target: Json) -> list[Finding]:
    """A job that may cost more than `max_cost_usd` in any of its regions, or whose price is unknown."""
    most = job["limits"].get("max_cost_usd")
    if most is None or lookup(job["resources"]["accelerator"]).refused:
        return []
    prices = [pricing.price(job, target, region) for region in target.get("regions") or (None,)]
    unknown = next((found for found in prices if found.cap is None), None)
    dearest = max(prices, key=lambda found: found.at_least)
    findings = []
    if unknown and not job["limits"].get("allow_unknown_price"):
        where = "as flex-start" if target.get("provisioning") == "flex" else f"in {unknown.region}"
        what = joined(unknown.missing, "and")
        said = f"max_cost_usd={most:g} cannot be enforced: no source gives the price of {what} {where}"
        findings.append(error(said, {"limits.allow_unknown_price": True}))
    at_most = dearest.at_least * dearest.timeout_s / 3600
    if at_most > most:
        findings.append(_too_much(job, target, dearest, at_most, most))
    return findings


def _too_much(job: Json, target: Json, price: pricing.Price, at_most: float, most: float) -> Finding:
    fits_s = math.floor(most / price.at_least * 60) * 60.0
    least = "" if price.own is not None else "at least "
    said = (
        f"Cost limit exceeded: the run may cost {least}{money(at_most)}, at {money(price.at_least)} an hour for "
        f"{duration(price.timeout_s)} in {price.region}. Received: max_cost_usd={most:g}"
    )
    if target.get("provisioning", "standard") == "standard" and price.spot is not None:
        spot = price.spot * price.timeout_s / 3600
        if (
            spot <= most
            and len(target.get("regions") or ()) <= 1
            and lookup(job["resources"]["accelerator"]).hosts == 1
        ):
            return error(f"{said}. Spot machines cost {money(spot)}", {"vertex.provisioning": "spot"})
    if fits_s >= _LEAST_S:
        return error(f"{said}. The limit pays for {duration(fits_s)}", {"limits.timeout_s": fits_s})
    cents = math.ceil(at_most * 100) / 100
    return error(f"{said}. The limit does not pay for a run of {duration(_LEAST_S)}", {"limits.max_cost_usd": cents})
