"""Checks of what a job may cost."""

from __future__ import annotations

import math

from ..hardware import pricing
from ..hardware.accelerators import lookup
from ..spec.findings import Finding, error
from .vertex_hardware import Json

# A shorter job would be over before its machines are there.
_LEAST_S = 600.0


def limit(job: Json, target: Json) -> list[Finding]:
    """A job that may cost more than `max_cost_usd`, in any of its regions, or nobody knows how much."""
    most = job["limits"].get("max_cost_usd")
    if most is None or lookup(job["resources"]["accelerator"]).refused:
        return []
    prices = [pricing.price(job, target, region) for region in target.get("regions") or (None,)]
    unknown = next((found for found in prices if found.cap is None), None)
    dearest = max(prices, key=lambda found: found.at_least)
    findings = []
    if unknown and not job["limits"].get("allow_unknown_price"):
        said = f"max_cost_usd={most:g} cannot be kept: no source tells what {_and(unknown.missing)} costs"
        what = " as flex-start" if job["resources"].get("provisioning") == "flex" else f" in {unknown.region}"
        findings.append(error(f"{said}{what}", {"limits.allow_unknown_price": True}))
    at_most = dearest.at_least * dearest.timeout_s / 3600
    if at_most > most:
        findings.append(_too_much(job, target, dearest, at_most, most))
    return findings


def _too_much(job: Json, target: Json, price: pricing.Price, at_most: float, most: float) -> Finding:
    fits_s = math.floor(most / price.at_least * 60) * 60.0
    least = "" if price.own is not None else "at least "
    said = (
        f"It may cost {least}{pricing.money(at_most)}: {pricing.money(price.at_least)} an hour for "
        f"{pricing.duration(price.timeout_s)} in {price.region}. Received: max_cost_usd={most:g}"
    )
    if job["resources"].get("provisioning", "standard") == "standard" and price.spot is not None:
        spot = price.spot * price.timeout_s / 3600
        if (
            spot <= most
            and len(target.get("regions") or ()) <= 1
            and lookup(job["resources"]["accelerator"]).hosts == 1
        ):
            return error(f"{said}. On spot machines it is {pricing.money(spot)}", {"resources.provisioning": "spot"})
    if fits_s >= _LEAST_S:
        return error(f"{said}. {pricing.duration(fits_s)} fit", {"limits.timeout_s": fits_s})
    cents = math.ceil(at_most * 100) / 100
    return error(f"{said}. No run of {pricing.duration(_LEAST_S)} fits", {"limits.max_cost_usd": cents})


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(names)
