"""SKUs of the Cloud Billing catalog: which of them charge for a training machine, and their prices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import any_json

from sdk.hardware import catalog

VERTEX = "Vertex AI: Training/Pipelines"


def sku(
    text: str, usd: float = 1.5, *, group: str = "CPU", usage: str = "OnDemand", unit: str = "h", **more: Any
) -> Any:
    """Return a SKU as JSON."""
    units, nanos = divmod(round(usd * 10**9), 10**9)
    price = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "skuId": more.pop("id", text),
        "description": text,
        "category": {"resourceFamily": "Compute", "resourceGroup": group, "usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression}],
        **more,
    }


def units(*skus: tuple[catalog.Service, Any]) -> tuple[catalog.Units, list[str]]:
    read = [(service, catalog.read_sku(data)) for service, data in skus]
    return catalog.units((service, sku) for service, sku in read if sku is not None)


@pytest.mark.parametrize(
    ("service", "text", "group", "usage", "expected"),
    [
        # As public code and pages quote them; docs/explanation/decisions/prices.md names the sources.
        ("engine", "N1 Predefined Instance Core running in Americas", "N1Standard", "OnDemand", ("standard", "core:n1")),
        ("engine", "N1 Predefined Instance Ram running in Americas", "N1Standard", "OnDemand", ("standard", "ram:n1")),
        ("engine", "Spot Preemptible E2 Instance Core running in Paris", "CPU", "Preemptible", ("spot", "core:e2")),
        ("engine", "A3Plus Instance Core running in Americas", "CPU", "OnDemand", ("standard", "core:a3plus")),
        ("engine", "Compute optimized Core running in Americas", "CPU", "OnDemand", ("standard", "core:c2")),
        ("engine", "Nvidia L4 GPU running in Iowa", "GPU", "OnDemand", ("standard", "gpu:NVIDIA_L4")),
        (
            "engine", "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Warsaw", "GPU", "Preemptible",
            ("spot", "gpu:NVIDIA_TESLA_T4"),
        ),
        ("engine", "TpuV5e running in Americas", "TPU", "OnDemand", ("standard", "tpu:v5e")),
        (
            "engine", "TpuV5e attached to Spot Preemptible VMs running in Las Vegas", "TPU", "Preemptible",
            ("spot", "tpu:v5e"),
        ),
        ("engine", "SSD backed Local Storage attached to Spot Preemptible VMs", "LocalSSD", "Preemptible", ("spot", "ssd")),
        ("tpu", "TPU-v2 Accelerator USA", "TPU", "OnDemand", ("standard", "tpu:v2")),
        ("platform", f"{VERTEX} on A3 Instance Core in Iowa", "", "OnDemand", ("whole", "core:a3")),
        ("platform", f"{VERTEX} on N1 Predefined Instance Core running in Singapore", "", "", ("whole", "core:n1")),
        ("platform", f"{VERTEX} on NVIDIA H100 80GB in Iowa", "", "OnDemand", ("whole", "gpu:NVIDIA_H100_80GB")),
        ("platform", f"{VERTEX} management fee on NVIDIA H100 80GB in Iowa", "", "", ("fee", "gpu:NVIDIA_H100_80GB")),
        ("platform", f"{VERTEX} Management fee on N1 Instance RAM in Singapore", "", "", ("fee", "ram:n1")),
        # SKUs that are sold otherwise.
        ("engine", "Custom Instance Core running in Iowa", "CPU", "OnDemand", None),
        ("engine", "Nvidia Tesla T4 GPU attached to Sole Tenancy VMs running in Americas", "GPU", "OnDemand", None),
        ("engine", "Commitment v1: Nvidia L4 GPU running in Iowa", "GPU", "OnDemand", None),
        ("engine", "Nvidia H100 80GB GPU attached to DWS Defined Duration VMs running in Americas", "GPU", "OnDemand", None),
        ("engine", "Reserved Nvidia H100 80GB GPU in Calendar Mode running in Iowa", "GPU", "OnDemand", None),
        ("engine", "Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Iowa", "GPU", "Preemptible", None),
        # A description that its category contradicts.
        ("engine", "Spot Preemptible E2 Instance Core running in Paris", "CPU", "OnDemand", None),
        ("engine", "Nvidia L4 GPU running in Iowa", "GPU", "Preemptible", None),
        ("engine", "Nvidia L4 GPU running in Iowa", "License", "OnDemand", None),
        ("tpu", "TPU-v2 Pod USA", "TPU", "OnDemand", None),
        ("tpu", "Tpu-v2 accelerator Iowa", "TPU", "OnDemand", ("standard", "tpu:v2")),
        ("tpu", "Tpu-v2 accelerator Iowa", "TPU", "Commit1Yr", None),
        ("tpu", "Preemptible Tpu-v2 accelerator Iowa", "TPU", "Commit3Yr", None),
        ("tpu", "Preemptible Tpu-v2 accelerator Iowa", "TPU", "Preemptible", ("spot", "tpu:v2")),
        ("platform", f"{VERTEX} on N1 Predefined Instance Core in Iowa", "", "Commit1Yr", None),
        ("platform", "Vertex AI: Online/Batch Prediction N1 Predefined Instance Core running in Iowa", "", "", None),
        ("platform", "Nvidia L4 GPU running in Iowa", "GPU", "OnDemand", None),
    ],
)  # fmt: skip
def test_a_sku_is_matched_by_its_whole_description_and_its_category(service, text, group, usage, expected) -> None:
    read = catalog.read_sku(sku(text, group=group, usage=usage))
    assert read is not None
    assert catalog.match(service, read) == expected


L4 = "Nvidia L4 GPU running in Iowa"


def test_units_and_nanos_are_one_price_and_units_of_measure_are_converted() -> None:
    prices, doubtful = units(
        ("engine", sku(L4, 10.25, group="GPU")),
        ("engine", sku("N1 Predefined Instance Ram running in Iowa", 0.004237, group="N1Standard", unit="GiBy.h")),
        ("engine", sku("E2 Instance Ram running in Iowa", 0.002, group="RAM", unit="GBy.h")),
        ("engine", sku("SSD backed Local Storage", 0.073, group="LocalSSD", unit="GiBy.mo")),
    )
    assert doubtful == []
    assert prices["standard"]["gpu:NVIDIA_L4"] == {"us-central1": 10.25}
    assert prices["standard"]["ram:n1"]["us-central1"] == pytest.approx(0.004237)
    assert prices["standard"]["ram:e2"]["us-central1"] == pytest.approx(0.002 * 2**30 / 10**9)
    assert prices["standard"]["ssd"]["us-central1"] == pytest.approx(0.0001)


def test_two_skus_for_one_thing_have_no_price_and_a_repeated_one_has() -> None:
    both, doubtful = units(
        ("engine", sku(L4, 0.56, group="GPU")), ("engine", sku("Nvidia L4 GPU running in Americas", 0.56, group="GPU"))
    )
    assert both == {}
    assert doubtful == [f"us-central1: 'Nvidia L4 GPU running in Americas' and {L4!r} match together"]
    once, doubtful = units(("engine", sku(L4, 0.56, group="GPU")), ("engine", sku(L4, 0.56, group="GPU")))
    assert (once["standard"]["gpu:NVIDIA_L4"], doubtful) == ({"us-central1": 0.56}, [])
    changed, _ = units(("engine", sku(L4, 0.56, group="GPU")), ("engine", sku(L4, 0.57, group="GPU")))
    assert changed == {}, "two pages disagree"
    assert units(("engine", sku(L4, group="GPU", serviceRegions=None))) == ({}, [f"{L4!r} names no region"])


TIER = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "1", "nanos": 0}}


@pytest.mark.parametrize(
    "infos",
    [
        [],
        None,
        [{}],
        [{"pricingExpression": {"usageUnit": "h", "tieredRates": []}}],
        [{"pricingExpression": {"usageUnit": "mo", "tieredRates": [TIER]}}],
        [{"pricingExpression": {"tieredRates": [TIER]}}],
        # A price that depends on the amount.
        [{"pricingExpression": {"usageUnit": "h", "tieredRates": [TIER, {**TIER, "unitPrice": {"units": "2"}}]}}],
        *(
            [{"pricingExpression": {"usageUnit": "h", "tieredRates": [{**TIER, "unitPrice": price}]}}]
            for price in (
                {"currencyCode": "EUR", "units": "1", "nanos": 0},
                {"units": "1", "nanos": 0},
                *(
                    {"currencyCode": "USD", "units": number, "nanos": 0}
                    for number in ("0", "-1", "1.5", 1.5, True, "9" * 30)
                ),
                *({"currencyCode": "USD", "units": "1", "nanos": nanos} for nanos in (10**9, "12")),
                {"currencyCode": "USD", "units": "0", "nanos": -5},
                "1.0",
                None,
            )
        ),
    ],
)
def test_a_price_that_cannot_be_read_is_unknown_and_makes_its_twin_doubtful(infos) -> None:
    broken = sku(L4, group="GPU", pricingInfo=infos, id="broken")
    prices, doubtful = units(("engine", broken))
    assert (prices, doubtful) == ({}, [f"us-central1: {L4!r} has no price that can be read"])
    assert units(("engine", broken), ("engine", sku(L4, group="GPU")))[0] == {}


def test_the_newest_price_of_a_timeline_counts() -> None:
    old, new = sku(L4, 0.9, group="GPU"), sku(L4, 0.56, group="GPU")
    prices, _ = units(("engine", {**new, "pricingInfo": [*old["pricingInfo"], *new["pricingInfo"]]}))
    assert prices["standard"]["gpu:NVIDIA_L4"] == {"us-central1": 0.56}


FIELDS = ("skuId", "description", "category", "serviceRegions", "pricingInfo")


@given(st.sampled_from(FIELDS), any_json(st.floats()), st.booleans())
def test_a_sku_with_any_foreign_json_never_gets_another_price(field: str, value: Any, inside: bool) -> None:
    good = sku(L4, 0.56, group="GPU")
    if inside and field == "pricingInfo":
        value = [{"pricingExpression": {**good["pricingInfo"][0]["pricingExpression"], "tieredRates": value}}]
    known_prices, _ = units(("engine", {**good, field: value}))
    for prices in known_prices.get("standard", {}).values():
        assert set(prices.values()) <= {0.56}


@given(any_json(st.floats()))
def test_anything_can_stand_where_a_sku_should(value: Any) -> None:
    sku = catalog.read_sku(value)
    assert sku is None or sku.usd is None or sku.usd > 0
