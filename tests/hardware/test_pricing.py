"""What a run on Vertex AI may cost, and the quotas it counts against."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.hardware import FEE, pricing, regions, transfer
from sdk.hardware.accelerators import ROWS, pools

# Of the sources: Vertex AI's own page, and Compute Engine's list.
CPU, H100 = 0.21849885, 9.79655057
# The fee on a spot machine is that of one on demand.
SHARE = FEE - 1


def rented(timeout_s: float | None = 3600.0, **asked: Any) -> pricing.Rental:
    """Return what a job with these resources and these options of a Vertex rents."""
    place = {name: asked.pop(name) for name in ("provisioning", "disk_gb", "regions") if name in asked}
    return pricing.Rental(pools=pools(**asked), timeout_s=timeout_s, **place)


@pytest.mark.parametrize(
    ("resources", "per_hour", "spot"),
    [
        ({}, CPU, None),
        ({"workers": 3, "ps": 2, "evaluator": True}, 6 * CPU, None),
        ({"accelerator": "t4"}, 0.35 * FEE + CPU, None),
        ({"accelerator": "t4", "workers": 4}, 4 * (0.35 * FEE + CPU), None),
        ({"accelerator": "v100", "machine": "n1-standard-4"}, 2.48 * FEE + CPU, None),
        ({"accelerator": "a100:8"}, 8 * 3.673385 * FEE, 8 * (1.293355 + 3.673385 * SHARE)),
        ({"accelerator": "a100", "workers": 2, "ps": 1}, 2 * 3.673385 * FEE + CPU, None),
        ({"accelerator": "h100"}, (H100 + 1.183) * FEE, 2.99 + 0.361 + (H100 + 1.183) * SHARE),
        ({"accelerator": "v5e-1"}, 1.38, 0.245 + 0.18),
        ({"accelerator": "v5e-8"}, 8 * 1.38, 8 * (0.245 + 0.18)),
        ({"accelerator": "v2-8"}, 4.50 * FEE, 1.35 + 4.50 * SHARE),
        ({"accelerator": "v3-8"}, 8.00 * FEE, 2.04 + 8.00 * SHARE),
        ({"accelerator": "h100:8"}, None, None),
        ({"accelerator": "a100:16"}, None, None),
        ({"accelerator": "l4"}, None, None),
        ({"accelerator": "gb200:4"}, None, None),
        ({"machine": "n2-standard-16"}, None, None),
    ],
)
def test_a_job_costs_the_sum_of_its_machines_and_nothing_is_guessed(resources, per_hour, spot) -> None:
    found = pricing.price(rented(**resources, regions=("us-central1",)))
    assert found.per_hour == (None if per_hour is None else pytest.approx(per_hour))
    assert found.spot == (None if spot is None else pytest.approx(spot))
    assert found.currency == "USD"


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
    assert pricing.price(rented(accelerator="a100")).date == "2025-03"


def test_prices_hold_where_the_source_says_and_nowhere_else() -> None:
    tpu: dict[str, Any] = {"accelerator": "v5e-4", "provisioning": "spot"}
    assert pricing.price(rented(**tpu, regions=("us-west4",))).own == pytest.approx(4 * (0.48 + 0.18))
    assert pricing.price(rented(**tpu, regions=("us-east1",))).own == pytest.approx(4 * (0.245 + 0.18))
    assert pricing.price(rented(**tpu, regions=("us-east1",)), "us-west4").own == pytest.approx(4 * (0.48 + 0.18))
    assert pricing.price(rented(accelerator="v5e-4", regions=("us-east1",))).own is None
    assert pricing.price(rented(regions=("europe-west4",))).missing == ("n1-standard-4",)


def test_the_known_parts_of_an_unknown_price_are_a_lower_bound() -> None:
    found = pricing.price(rented(accelerator="l4:4", workers=2))
    assert (found.own, found.cap, found.missing) == (None, None, ("the machine g2-standard-48",))
    assert found.at_least == pytest.approx(2 * 4 * 0.56 * FEE)


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
        ({"accelerator": "h200:8"}, {"nvidia_h200_gpus": 8, "pd_ssd": 100}),
        ({"accelerator": "h100-mega:8"}, {"nvidia_h100_mega_gpus": 8, "pd_ssd": 100}),
        ({"accelerator": "p4"}, {"nvidia_p4_gpus": 1, "cpus": 4, "pd_ssd": 100}),
        ({"accelerator": "b200:8"}, {None: 8, "pd_ssd": 100}),
        ({"machine": "c2-standard-8"}, {"c2_cpus": 8, "pd_ssd": 100}),
        ({"machine": "c2-standard-8", "provisioning": "spot"}, {None: 8, "pd_ssd": 100}),
        ({"machine": "n2-standard-16"}, {"n2_cpus": 16, "pd_ssd": 100}),
    ],
)
def test_quotas_are_named_as_google_names_them_and_counted(resources, expected) -> None:
    found = {
        quota.metric and quota.metric.removeprefix(PREFIX): quota.amount
        for quota in pricing.quotas(rented(**resources))
    }
    assert found == expected


def test_a_plan_prints_what_it_costs_and_what_it_needs() -> None:
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
    unknown = dict(pricing.lines([rented(None, accelerator="h200:8")])[:2])
    assert unknown == {
        "price": "unknown on demand in us-central1; no source gives the price of h200:8 and the machine a3-ultragpu-8g",
        "cap": "unknown, for 7 days: Vertex AI's default timeout of each job",
    }


def test_the_cap_of_several_places_is_that_of_the_dearest_one() -> None:
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
    assert dict(pricing.lines([spot, elsewhere]))["cap"].startswith("unknown, for 10 h: ")


def test_reading_a_bucket_elsewhere_is_priced_by_the_two_areas() -> None:
    assert transfer.reading("us-central1", "us-central1") == 0.0
    assert transfer.reading("us-central1", "us-east1") == 0.02
    assert transfer.reading("us-central1", "europe-west4") == transfer.reading("europe-west4", "us-central1") == 0.05
    assert transfer.reading("asia-southeast2", "australia-southeast1") == 0.08
    assert transfer.reading("africa-south1", "africa-south1") == 0.0
    assert transfer.reading("mars-north1", "us-east1") is None is transfer.reading("us-east1", "mars-north1")
    assert all(transfer.reading(one, other) is not None for one in regions.KNOWN for other in regions.KNOWN)


@given(st.sampled_from(ROWS), st.sampled_from(["standard", "spot", "flex"]), st.integers(1, 50))
def test_more_workers_cost_more_and_every_job_has_its_lines(row, how: str, workers: int) -> None:
    one, many = (pricing.price(rented(accelerator=row.name, workers=n, provisioning=how)) for n in (1, workers))
    assert many.at_least == pytest.approx(workers * one.at_least)
    assert (many.own is None) == (one.own is None)
    labels = [label for label, _ in pricing.lines([rented(accelerator=row.name, workers=workers, provisioning=how)])]
    assert labels[:2] == ["price", "cap"] and set(labels[2:]) == {"quota"}
