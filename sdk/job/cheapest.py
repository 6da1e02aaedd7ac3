"""`regions="cheapest"`: the regions of a job by price. It stays in the region of the bucket unless others are named. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ..hardware import Provisioning, pricing
from ..hardware.regions import CHEAPEST, DEFAULT
from ..text import joined
from .findings import Facts, Finding, error, note

_REFRESH = "podlift accelerators --refresh"
_PriceOf = Callable[[str], pricing.Price]


def order(
    regions: Sequence[str], facts: Facts, staging: Collection[str], how: Provisioning, price_of: _PriceOf
) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the regions to choose from, the cheapest first, and what to say of them.

    Args:
        regions: those of the target, one of them "cheapest".
        facts: has the bucket's location.
        staging: regions with a staging bucket, which are asked for by that.
        how: the provisioning, for the text.
        price_of: the price of the job in a region.
    """
    named, bucket = [name for name in regions if name != CHEAPEST], _bucket_region(facts)
    if not named and not bucket:
        # The default stands in for it, so that the other checks can go on.
        message = (
            "vertex_regions='cheapest' stays in the region of the bucket, which is not known here. Next: podlift plan "
            "--online, or name the regions to choose from, such as vertex_regions='cheapest,us-central1,us-east1'"
        )
        return (DEFAULT,), [error(message)]
    candidates = list(dict.fromkeys(named or [bucket, *staging]))
    # Regions without a price come last, in the order that was given.
    prices = sorted(map(price_of, candidates), key=lambda each: (each.own is None, each.own or 0.0))
    found = _findings(prices, how) if named or staging else [_alone(bucket)]
    return tuple(each.region for each in prices), found


def _bucket_region(facts: Facts) -> str:
    """Return the region of the bucket, "" if it is not known or not one region."""
    about = facts.online.get("bucket", {}).get("about", {})
    return str(about.get("location", "")).lower() if about.get("locationType", "region") == "region" else ""


def _alone(region: str) -> Finding:
    message = f"vertex_regions='cheapest' stays in {region}, the region of the bucket"
    return note(f"{message}; name other regions to let it choose: 'cheapest,{region},REGION'")


def _findings(prices: Sequence[pricing.Price], provisioning: Provisioning) -> list[Finding]:
    unknown, how = [each.region for each in prices if each.own is None], pricing.PROVISIONING_WORDS[provisioning]
    if len(unknown) == len(prices):
        message = f"vertex_regions='cheapest' needs prices, and none is known {how} in {joined(unknown, 'or')}"
        return [error(f"{message}. Next: {_REFRESH}, or give the regions in an order of your own")]
    listed = ", ".join(f"{each.region} {pricing.amount(each)}" for each in prices)
    found = [note(f"vertex_regions='cheapest': by USD an hour {how}: {listed}")]
    if unknown:
        found.append(note(f"No price is known in {joined(unknown, 'and')}: last in the order. Next: {_REFRESH}"))
    return found
