"""`regions="cheapest"`: the regions of a job by price. It stays in the region of the bucket unless others are named. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..hardware import pricing
from ..hardware.regions import CHEAPEST
from ..text import joined
from .findings import Facts, Finding, error, note
from .places import Place
from .policies import Limits, Resources, Vertex
from .values import changed, unchecked

_REFRESH = "podlift accelerators --refresh"


def placed(target: Vertex, resources: Resources, facts: Facts) -> tuple[Vertex, list[Finding]]:
    """Return a target that asks for the cheapest region with its regions in the order of their prices, and what to say."""
    if CHEAPEST not in target.regions or target.places:
        return target, []
    named, bucket = [name for name in target.regions if name != CHEAPEST], _bucket_region(facts)
    # With a staging bucket, another region is asked for.
    candidates = list(dict.fromkeys(named or [*filter(None, [bucket]), *target.staging_buckets]))
    if not candidates or not (named or bucket):
        # The default stands in for it, so that the other checks can go on.
        kept = candidates or Vertex().regions
        message = (
            "vertex_regions='cheapest' stays in the region of the bucket, which is not known here. Next: podlift plan "
            "--online, or name the regions to choose from, such as vertex_regions='cheapest,us-central1,us-east1'"
        )
        return changed(target, regions=tuple(kept)), [error(message)]
    by_price = sorted(candidates, key=lambda region: _key(_price(target, resources, facts, region)))
    made = changed(target, regions=tuple(by_price))
    return made, _findings([_price(target, resources, facts, region) for region in by_price], made, named)


def _key(price: pricing.Price) -> tuple[bool, float]:
    # Regions without a price come last, in the order that was given.
    return price.own is None, price.at_least if price.own is not None else 0.0


def _price(target: Vertex, resources: Resources, facts: Facts, region: str) -> pricing.Price:
    return pricing.price(target.rental(resources, Limits(), unchecked(Place, {"region": region}), facts.prices))


def _bucket_region(facts: Facts) -> str:
    """Return the region of the bucket, "" if it is not known or not one region."""
    about = facts.online.get("bucket", {}).get("about", {})
    return str(about.get("location", "")).lower() if about.get("locationType", "region") == "region" else ""


def _findings(prices: Sequence[pricing.Price], target: Vertex, named: Sequence[str]) -> list[Finding]:
    unknown = [each.region for each in prices if each.own is None]
    how = pricing.PROVISIONING_WORDS[target.provisioning]
    if len(prices) == 1 and not named:
        message = f"vertex_regions='cheapest' stays in {prices[0].region}, the region of the bucket"
        return [note(f"{message}; name other regions to let it choose: 'cheapest,{prices[0].region},REGION'")]
    if len(unknown) == len(prices):
        message = f"vertex_regions='cheapest' needs prices, and none is known {how} in {joined(unknown, 'or')}"
        return [error(f"{message}. Next: {_REFRESH}, or give the regions in an order of your own")]
    order = ", ".join(f"{each.region} {pricing.amount(each)}" for each in prices)
    found = [note(f"vertex_regions='cheapest': by USD an hour {how}: {order}")]
    if unknown:
        found.append(note(f"No price is known in {joined(unknown, 'and')}: last in the order. Next: {_REFRESH}"))
    return found
