"""The possible cost of a run on Vertex AI and the quotas it counts against; SKUs of the Cloud Billing catalog."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import any_json

from sdk.hardware import FEE, accelerators, catalog, machines, pricing, regions
from sdk.hardware.accelerators import ROWS, pools
from sdk.hardware.catalog import PriceTable, Units

# Of the sources: Vertex AI's own page, and Compute Engine's list.
CPU, H100 = 0.21849885, 9.79655057
# Compute Engine's spot price of that machine, and of the host of one H100 with its local SSD.
CPU_SPOT, HOST_SPOT = 4 * 0.0130575 + 4 * 0.0474998 * (FEE - 1), 0.36117 + 750 * 0.08 / 730
# The fee on a spot machine equals the fee on demand.
SHARE = FEE - 1


def rented(timeout_s: float | None = 3600.0, **asked: Any) -> pricing.Rental:
    """Return the rental of a job with these resources and these options of a Vertex."""
    terms = {name: asked.pop(name) for name in ("provisioning", "disk_gb", "regions", "table") if name in asked}
    return pricing.Rental(pools=pools(**asked), timeout_s=timeout_s, **terms)


@pytest.mark.parametrize(
    ("resources", "per_hour", "spot"),
    [
        ({}, CPU, CPU_SPOT),
        ({"workers": 3, "ps": 2, "evaluator": True}, 6 * CPU, 6 * CPU_SPOT),
        ({"accelerator": "t4"}, 0.35 * FEE + CPU, 0.175 + 0.35 * SHARE + CPU_SPOT),
        ({"accelerator": "v100", "machine": "n1-highmem-8"}, (2.48 + 8 * 0.0591515) * FEE, None),
        ({"accelerator": "a100:8"}, 8 * 3.673385 * FEE, 8 * (1.80385 + 3.673385 * SHARE)),
        (
            {"accelerator": "a100", "machine": "a2-highgpu-1g", "ps": 1},
            3.673385 * FEE + CPU,
            1.80385 + 3.673385 * SHARE + CPU_SPOT,
        ),
        ({"accelerator": "h100"}, (H100 + 1.18251) * FEE, 2.99 + HOST_SPOT + (H100 + 1.18251) * SHARE),
        ({"accelerator": "v5e-8"}, 8 * 1.38, 8 * (0.245 + 0.18)),
        ({"accelerator": "v2-8"}, 4.50 * FEE, 1.35 + 4.50 * SHARE),
        ({"accelerator": "h100:8"}, 101.0073, 8 * (2.99 + HOST_SPOT + (H100 + 1.18251) * SHARE)),
        ({"accelerator": "l4"}, 0.706832276 * FEE, 0.2231 + 4 * 0.0146842 + 0.706832276 * SHARE),
        ({"accelerator": "rtx-pro-6000"}, 4.5001 * FEE, None),
        ({"machine": "n2-standard-16"}, 16 * 0.048559 * FEE, None),
        ({"machine": "m1-ultramem-40"}, None, None),
        ({"accelerator": "b200:8"}, None, None),
    ],
)
def test_a_job_costs_the_sum_of_its_machines_and_nothing_is_guessed(resources, per_hour, spot) -> None:
    cost = pricing.price(rented(**resources, regions=("us-central1",)))
    assert cost.per_hour == (None if per_hour is None else pytest.approx(per_hour, rel=1e-4))
    assert cost.spot == (None if spot is None else pytest.approx(spot, rel=1e-4))


def test_the_cap_is_the_price_for_all_of_the_timeout_and_the_default_is_a_week() -> None:
    assert pricing.price(rented(7200.0, accelerator="v5e-4")).cap == pytest.approx(2 * 4 * 1.38)
    assert pricing.price(rented(None, accelerator="v5e-4")).cap == pytest.approx(7 * 24 * 4 * 1.38)
    assert pricing.price(rented(7200.0, accelerator="v5e-4", provisioning="spot")).cap == pytest.approx(8 * 0.425)
    assert pricing.price(rented(accelerator="a100", provisioning="flex")).cap is None


def test_a_price_says_where_it_comes_from_and_whether_it_is_an_estimate() -> None:
    exact = pricing.price(rented())
    assert (exact.exact, exact.source, exact.date, exact.missing) == (True, "price page of Vertex AI", "2026-10", ())
    mixed = pricing.price(rented(accelerator="t4"))
    assert (mixed.exact, mixed.date) == (False, "2026-10")
    assert mixed.source == "price list of Compute Engine x 1.15, price page of Vertex AI"
    assert pricing.price(rented(accelerator="rtx-pro-6000")).date == "2025-10"


def test_prices_hold_where_the_source_says_and_nowhere_else() -> None:
    tpu: dict[str, Any] = {"accelerator": "v5e-4", "provisioning": "spot"}
    assert pricing.price(rented(**tpu, regions=("us-west4",))).own == pytest.approx(4 * (0.48 + 0.18))
    assert pricing.price(rented(**tpu, regions=("us-east1",))).own == pytest.approx(4 * (0.245 + 0.18))
    assert pricing.price(rented(**tpu, regions=("us-east1",)), "us-west4").own == pytest.approx(4 * (0.48 + 0.18))
    assert pricing.price(rented(accelerator="v5e-4", regions=("us-east1",))).own is None
    assert pricing.price(rented(regions=("europe-west4",))).missing == ("n1-standard-4",)


def test_the_known_parts_of_an_unknown_price_are_a_lower_bound() -> None:
    cost = pricing.price(rented(accelerator="b200:8", workers=2, provisioning="spot"))
    assert (cost.own, cost.cap, cost.missing) == (None, None, ("the machine a4-highgpu-8g",))
    assert cost.at_least == pytest.approx(2 * 32.6064 * FEE)
    shown = dict(pricing.lines([rented(7200.0, accelerator="b200:8", provisioning="spot")]))
    assert shown["price"].startswith("at least 37.50 USD an hour on spot in us-central1; no source gives the price of")
    assert shown["cap"].startswith("unknown, at least 74.99 USD, for 2 h")


PREFIX = "aiplatform.googleapis.com/custom_model_training_"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"workers": 3}, {"cpus": 12, "pd_ssd": 300}),
        ({"accelerator": "l4:4", "workers": 2, "disk_gb": 200}, {"nvidia_l4_gpus": 8, "pd_ssd": 400}),
        ({"accelerator": "t4:2", "ps": 1}, {"nvidia_t4_gpus": 2, "cpus": 12, "pd_ssd": 200}),
        (
            {"accelerator": "t4", "provisioning": "spot"},
            {"preemptible_nvidia_t4_gpus": 1, "preemptible_cpus": 4, "pd_ssd": 100},
        ),
        ({"accelerator": "a100-80gb", "provisioning": "flex"}, {"preemptible_nvidia_a100_80gb_gpus": 1, "pd_ssd": 100}),
        ({"accelerator": "v5e-8"}, {"tpu_v5e": None, "pd_ssd": 100}),
        ({"accelerator": "v5e-8", "provisioning": "spot"}, {None: None, "pd_ssd": 100}),
        ({"accelerator": "b200:8"}, {None: 8, "pd_ssd": 100}),
        ({"machine": "c2-standard-8"}, {"c2_cpus": 8, "pd_ssd": 100}),
        ({"machine": "c2-standard-8", "provisioning": "spot"}, {None: 8, "pd_ssd": 100}),
        ({"machine": "n2-standard-16"}, {"n2_cpus": 16, "pd_ssd": 100}),
    ],
)
def test_quotas_are_named_as_google_names_them_and_counted(resources, expected) -> None:
    quotas = {
        quota.metric and quota.metric.removeprefix(PREFIX): quota.amount
        for quota in pricing.quotas(rented(**resources))
    }
    assert quotas == expected


def test_a_plan_prints_its_cost_and_its_quotas() -> None:
    assert pricing.lines([rented(36000.0, accelerator="v5e-8")]) == [
        (
            "price",
            "11.04 USD an hour on demand in us-central1; 3.40 USD on spot; an estimate: price list of Compute Engine x 1.15, "
            "2026-11-20; boot disks are extra",
        ),
        ("cap", "110.40 USD at most, for 10 h: the timeout, for all jobs together"),
        ("quota", f"{PREFIX}tpu_v5e (TPU v5e)"),
        ("quota", f"{PREFIX}pd_ssd: 100 (GB of boot disks)"),
    ]
    unbilled = pricing.lines([rented(36000.0, accelerator="v5e-8")], billed=False)
    assert [label for label, _ in unbilled] == ["quota", "quota"]
    unknown = dict(pricing.lines([rented(None, accelerator="gb200:4")])[:2])
    assert unknown == {
        "price": "unknown on demand in us-central1; no source gives the price of gb200:4 and the machine a4x-highgpu-4g",
        "cap": "unknown, for 7 days: Vertex AI's default timeout of each job",
    }


def test_the_cap_of_several_places_is_the_cap_of_the_dearest_one() -> None:
    spot = rented(36000.0, accelerator="v5e-8", provisioning="spot")
    dear = rented(36000.0, accelerator="v5e-8")
    shown = pricing.lines([spot, dear])
    assert [text.partition(" an hour")[0] for label, text in shown if label.startswith("price ")] == [
        "3.40 USD",
        "11.04 USD",
    ]
    assert dict(shown)["cap"] == "110.40 USD at most, for 10 h in us-central1: the timeout, for all jobs together"
    assert len([label for label, _ in shown if label == "quota"]) == 3, "each once"
    elsewhere = rented(36000.0, accelerator="v5e-8", regions=("us-west1",))
    assert dict(pricing.lines([spot, elsewhere]))["cap"].startswith("unknown, at least 34.00 USD, for 10 h: ")


def test_reading_a_bucket_elsewhere_is_priced_by_the_two_areas() -> None:
    assert pricing.reading("us-central1", "us-central1") == 0.0
    assert pricing.reading("us-central1", "us-east1") == 0.02
    assert pricing.reading("us-central1", "europe-west4") == pricing.reading("europe-west4", "us-central1") == 0.05
    assert pricing.reading("asia-southeast2", "australia-southeast1") == 0.08
    assert pricing.reading("africa-south1", "africa-south1") == 0.0
    assert pricing.reading("mars-north1", "us-east1") is None is pricing.reading("us-east1", "mars-north1")
    assert all(pricing.reading(one, other) is not None for one in regions.KNOWN for other in regions.KNOWN)


@given(st.sampled_from(ROWS), st.sampled_from(["standard", "spot", "flex"]), st.integers(1, 50))
def test_more_workers_cost_more_and_every_job_has_its_lines(row, how: str, workers: int) -> None:
    one, many = (pricing.price(rented(accelerator=row.name, workers=n, provisioning=how)) for n in (1, workers))
    assert many.at_least == pytest.approx(workers * one.at_least)
    assert (many.own is None) == (one.own is None)
    labels = [label for label, _ in pricing.lines([rented(accelerator=row.name, workers=workers, provisioning=how)])]
    assert labels[:2] == ["price", "cap"] and set(labels[2:]) == {"quota"}


HERE, THERE = "us-central1", "us-west4"
N1 = {"core:n1": 0.03, "ram:n1": 0.004}
FEES, SPOT = {"core:n1": 0.0045, "ram:n1": 0.0006}, {"core:n1": 0.006, "ram:n1": 0.0008}
L4 = {"core:g2": 0.02, "ram:g2": 0.003, "gpu:NVIDIA_L4": 0.56}
A3 = {"core:a3": 0.01, "ram:a3": 0.001, "gpu:NVIDIA_H100_80GB": 3.0}


def table(**charges: dict[str, float]) -> PriceTable:
    """Return a table with prices that hold in us-central1: `table(whole={"core:n1": 0.035}, standard=...)`."""
    units: Units = {charge: {item: {HERE: usd} for item, usd in items.items()} for charge, items in charges.items()}
    return PriceTable(date="2026-11-01", units=units)


@pytest.mark.parametrize(
    ("charges", "resources", "own", "source"),
    [
        # Vertex AI's own SKUs are the price, and no estimate.
        ({"whole": N1, "standard": dict.fromkeys(N1, 99.0)}, {}, 4 * 0.03 + 15 * 0.004, "Cloud Billing catalog"),
        (
            {"whole": {"core:n1": 0.035}, "standard": N1},
            {},
            4 * 0.035 + 15 * 0.004 * FEE,
            "Cloud Billing catalog, Compute Engine x 1.15",
        ),
        ({"standard": L4}, {"accelerator": "l4"}, (4 * 0.02 + 16 * 0.003 + 0.56) * FEE, "x 1.15"),
        ({"standard": A3}, {"accelerator": "h100:8"}, 8 * (26 * 0.01 + 234 * 0.001 + 3.0) * FEE, "x 1.15"),
        ({"standard": {"tpu:v2": 4.5}}, {"accelerator": "v2-8"}, 4.5 * FEE, "x 1.15"),
        ({"spot": SPOT, "fee": FEES}, {"provisioning": "spot"}, 4 * 0.0105 + 15 * 0.0014, "spot and Vertex AI's fee"),
        (
            # Local SSDs are part of the machine.
            {"spot": {**A3, "ssd": 0.0001}, "fee": dict.fromkeys(A3, 0.1)},
            {"accelerator": "h100", "provisioning": "spot"},
            26 * 0.11 + 234 * 0.101 + 3.1 + 0.075,
            "fee",
        ),
    ],
)
def test_a_read_price_is_the_sum_of_the_catalogs_items(charges, resources, own: float, source: str) -> None:
    cost = pricing.price(rented(**resources, table=table(**charges)))
    assert cost.own == pytest.approx(own)
    assert cost.source.endswith(source) and cost.date == "2026-11-01"
    assert cost.exact == (cost.source == "Cloud Billing catalog")


@pytest.mark.parametrize(
    ("charges", "resources"),
    [
        # This package has a price of it.
        ({}, {}),
        *(({"standard": {n: usd for n, usd in L4.items() if n != item}}, {"accelerator": "l4"}) for item in L4),
        ({"spot": SPOT, "fee": {"core:n1": 0.0045}}, {"provisioning": "spot"}),
        ({"spot": {"core:n1": 0.006}, "fee": FEES}, {"provisioning": "spot"}),
        ({"spot": A3, "fee": dict.fromkeys(A3, 0.1)}, {"accelerator": "h100", "provisioning": "spot"}),
        ({"spot": SPOT, "fee": FEES, "whole": N1}, {"provisioning": "flex"}),
        ({"standard": {"tpu:v2": 4.5}}, {"accelerator": "v2-32"}),
        ({"standard": L4}, {"machine": "g2-standard-4"}),  # its GPU would be missing
        ({"standard": L4}, {"accelerator": "l4", "machine": "g2-standard-24"}),  # it has two
    ],
)
def test_a_machine_with_an_unknown_part_has_no_read_price(charges, resources) -> None:
    cost = pricing.price(rented(**resources, table=table(**charges)))
    assert (cost.own, len(cost.missing)) == (None, 1)


def test_every_machine_that_training_offers_is_known_part_by_part() -> None:
    unknown = {name for row in ROWS for name in row.machines if row.family == "gpu" and not machines.shape(name)}
    assert unknown == {"a4-highgpu-8g", "a4x-highgpu-4g"}, "no source tells what their slices are"
    assert all(machines.shape(name) for name in machines.LISTED)
    assert machines.shape("a2-megagpu-16g") == machines.Shape(vcpus=96, ram_gib=1360.0)
    assert machines.shape("a3-ultragpu-8g") == machines.Shape(vcpus=224, ram_gib=2952.0, ssd_gib=12_000)
    assert machines.shape("m1-ultramem-160") == machines.Shape(vcpus=160, ram_gib=3844.0)


@pytest.mark.parametrize("usd", [float("nan"), float("inf"), -1.0, 0.0])
def test_damaged_numbers_are_no_prices(usd: float) -> None:
    with pytest.raises(ValueError, match="a price is not above zero"):
        table(whole={**N1, "core:n1": usd})


def test_the_regions_of_a_job_are_listed_by_price_and_unknown_ones_at_the_end() -> None:
    units: Units = {"standard": {"tpu:v5e": {HERE: 1.2, THERE: 1.0, "us-east1": 1.4, "europe-west4": 0.1}}}
    read = PriceTable(date="2026-11-01", units=units)
    asked = rented(accelerator="v5e-1", regions=("us-east1", HERE), table=read)
    priced = "us-west4 ~1.15, us-central1 ~1.38, us-east1 ~1.61 USD an hour on demand; price unknown in us-west1"
    assert pricing.region_lines([asked]) == [("regions", priced)], "training has no v5e in europe-west4"
    assert pricing.region_lines([rented(accelerator="v5e-1")]) == []


@given(st.sampled_from([row for row in ROWS if row.machine]), st.integers(0, 99))
def test_a_plan_has_all_prices_of_its_machines_and_no_others(row, age_days: int) -> None:
    names = ["core:g2", "ram:g2", "gpu:NVIDIA_L4", "core:n1", "ram:n1", "gpu:NVIDIA_TESLA_T4", "tpu:v5e", "tpu:v2"]
    prices: dict[str, dict[str, float]] = {name: dict.fromkeys([*regions.KNOWN, "mars-north1"], 0.5) for name in names}
    read = PriceTable(date="2026-11-01", units={"standard": prices, "whole": prices}, doubtful=("one",))
    asked = accelerators.pools(row.name)
    kept = pricing.narrowed(read, asked, age_days)
    assert kept.age_days == age_days
    for region in row.regions:
        one, other = (pricing.price(pricing.Rental(pools=asked, table=table), region) for table in (read, kept))
        assert one == other
    assert {name for item in kept.units["whole"].values() for name in item} <= set(row.regions)


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


def prices_of(*skus: tuple[catalog.Service, Any]) -> tuple[catalog.Units, list[str]]:
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
    assert catalog.match(service, read) == expected


L4_SKU = "Nvidia L4 GPU running in Iowa"


def l4(usd: float = 1.5, **more: Any) -> tuple[catalog.Service, Any]:
    return "engine", sku(L4_SKU, usd, group="GPU", **more)


def test_units_and_nanos_are_one_price_and_units_of_measure_are_converted() -> None:
    prices, doubtful = prices_of(
        l4(10.25),
        ("engine", sku("N1 Predefined Instance Ram running in Iowa", 0.004237, group="N1Standard", unit="GiBy.h")),
        ("engine", sku("E2 Instance Ram running in Iowa", 0.002, group="RAM", unit="GBy.h")),
        ("engine", sku("SSD backed Local Storage", 0.073, group="LocalSSD", unit="GiBy.mo")),
    )
    assert doubtful == []
    assert prices["standard"]["gpu:NVIDIA_L4"] == {"us-central1": 10.25}
    assert prices["standard"]["ram:n1"]["us-central1"] == pytest.approx(0.004237)
    assert prices["standard"]["ram:e2"]["us-central1"] == pytest.approx(0.002 * 2**30 / 10**9)
    assert prices["standard"]["ssd"]["us-central1"] == pytest.approx(0.0001)
    # The newest price of a timeline counts.
    _, old = l4(0.9)
    _, new = l4(0.56)
    prices, _ = prices_of(("engine", {**new, "pricingInfo": [*old["pricingInfo"], *new["pricingInfo"]]}))
    assert prices["standard"]["gpu:NVIDIA_L4"] == {"us-central1": 0.56}


def test_two_skus_for_one_thing_have_no_price_and_a_repeated_one_has() -> None:
    both, doubtful = prices_of(
        l4(0.56),
        ("engine", sku("Nvidia L4 GPU running in Americas", 0.56, group="GPU")),
    )
    assert both == {}
    assert doubtful == [f"us-central1: 'Nvidia L4 GPU running in Americas' and {L4_SKU!r} match together"]
    once, doubtful = prices_of(l4(0.56), l4(0.56))
    assert (once["standard"]["gpu:NVIDIA_L4"], doubtful) == ({"us-central1": 0.56}, [])
    changed, _ = prices_of(l4(0.56), l4(0.57))
    assert changed == {}, "two pages disagree"
    assert prices_of(l4(serviceRegions=None)) == ({}, [f"{L4_SKU!r} names no region"])


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
    broken = l4(pricingInfo=infos, id="broken")
    assert prices_of(broken) == ({}, [f"us-central1: {L4_SKU!r} has no price that can be read"])
    assert prices_of(broken, l4())[0] == {}


FIELDS = st.sampled_from(["skuId", "description", "category", "serviceRegions", "pricingInfo"])


@given(FIELDS, any_json(st.floats()), st.booleans())
def test_a_sku_with_any_foreign_json_never_gets_another_price(field: str, value: Any, inside: bool) -> None:
    anything, (_, good) = catalog.read_sku(value), l4(0.56)
    assert anything is None or anything.usd is None or anything.usd > 0
    if inside and field == "pricingInfo":
        value = [{"pricingExpression": {**good["pricingInfo"][0]["pricingExpression"], "tieredRates": value}}]
    known_prices, _ = prices_of(("engine", {**good, field: value}))
    for prices in known_prices.get("standard", {}).values():
        assert set(prices.values()) <= {0.56}
