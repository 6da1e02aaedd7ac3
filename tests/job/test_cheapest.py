"""`regions="cheapest"`: the order of regions by price, and the region of the bucket that it does not leave by itself."""

from __future__ import annotations

import pytest

import sdk
from sdk.backends.vertex.options import Vertex
from sdk.checks import Facts
from sdk.hardware.catalog import PriceTable
from sdk.job.policies import Resources

PRICES = {"us-central1": 1.38, "us-west1": 1.20, "us-west4": 1.55}
SPOT, FEES = {"us-west4": 0.3, "us-central1": 0.4}, dict.fromkeys(PRICES, 0.1)


def facts(location: str = "US-WEST4", *, kind: str = "region", whole: dict[str, float] | None = None) -> Facts:
    bucket = {"bucket": {"name": "mine", "about": {"location": location, "locationType": kind}}} if location else {}
    items = {"whole": PRICES if whole is None else whole, "spot": SPOT, "fee": FEES}
    table = PriceTable(date="2026-11-01", units={charge: {"tpu:v5e": prices} for charge, prices in items.items()})
    return Facts(
        python="3.11.2", executable="python", tensorflow=None, keras=None, tf_keras=None, cpus=2, isolation=None,
        online=bucket, prices=table,
    )  # fmt: skip


def ordered(target: Vertex, facts: Facts) -> tuple[tuple[str, ...], str]:
    made, findings = target.located(Resources(accelerator="v5e-1"), facts)
    return Vertex.of(made).regions, "\n".join(f"{finding.level}: {finding.message}" for finding in findings)


def test_alone_it_is_the_region_of_the_bucket_although_another_is_cheaper() -> None:
    assert ordered(Vertex(regions="cheapest"), facts()) == (("us-west4",), "")
    assert ordered(Vertex(regions="cheapest"), facts(whole={})) == (("us-west4",), ""), "there is nothing to choose"


def test_named_regions_are_ordered_by_the_price_of_the_provisioning() -> None:
    named = "cheapest,us-west4,us-central1,us-west1"
    assert ordered(Vertex(regions=named), facts()) == (("us-west1", "us-central1", "us-west4"), "")
    spot, _ = ordered(Vertex(regions=["cheapest", "us-west1", "us-central1", "us-west4"], provisioning="spot"), facts())
    assert spot == ("us-west4", "us-central1", "us-west1"), "a region without a price is never the first"


@pytest.mark.parametrize("known", [facts(""), facts("US", kind="multi-region")])
def test_without_a_known_region_of_the_bucket_it_is_an_error(known) -> None:
    regions, messages = ordered(Vertex(regions="cheapest"), known)
    assert regions == ("us-central1",)
    assert "error: vertex_regions='cheapest' stays in the region of the bucket, which is not known here." in messages
    assert "podlift plan --online" in messages


def test_without_prices_it_is_an_error_that_names_the_command() -> None:
    regions, messages = ordered(Vertex(regions="cheapest,us-west4,us-west1"), facts(whole={}))
    assert regions == ("us-west4", "us-west1")
    assert (
        "error: vertex_regions='cheapest' needs prices, and none is known on demand in us-west4 or us-west1" in messages
    )
    assert "Next: podlift accelerators --refresh" in messages


def test_the_order_that_was_given_is_kept() -> None:
    assert ordered(Vertex(regions="us-west4,us-west1"), facts()) == (("us-west4", "us-west1"), "")
    assert sdk.Vertex().located(Resources(), facts())[0] == sdk.Vertex()
