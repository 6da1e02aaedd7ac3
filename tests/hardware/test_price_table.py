"""Prices of whole machines: put together from read items, known only as a whole, in regions that only become fewer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.hardware import FEE, accelerators, pricing, regions
from sdk.hardware.price_table import KnownPrices, PriceTable, Shape, allowed

HERE, THERE = "us-central1", "us-west4"
SHAPES = {
    "n1-standard-4": Shape(vcpus=4, ram_gib=15.0),
    "g2-standard-4": Shape(vcpus=4, ram_gib=16.0, gpus=1),
    "a3-highgpu-1g": Shape(vcpus=26, ram_gib=234.0, gpus=1, ssd_gib=750),
}
N1 = {"core:n1": 0.03, "ram:n1": 0.004}


def table(*, offered=None, surveyed=None, shapes=SHAPES, **charges: dict[str, float]) -> PriceTable:
    """Return a table whose prices hold in us-central1: `table(whole={"core:n1": 0.035}, standard=...)`."""
    units = {charge: {item: {HERE: usd} for item, usd in items.items()} for charge, items in charges.items()}
    return PriceTable(date="2026-11-01", units=units, shapes=shapes, offered=offered or {}, surveyed=surveyed or {})


def price(made: PriceTable, region: str = HERE, provisioning: str = "standard", **asked: object) -> pricing.Price:
    rented = accelerators.pools(**asked)  # type: ignore[arg-type]
    known = made.known([(pool.accelerator.name, pool.machine) for pool in rented], 3)
    return pricing.price(pricing.Rental(pools=rented, provisioning=provisioning, known=known), region)  # type: ignore[arg-type]


def test_vertex_ais_own_skus_are_the_price_and_no_estimate() -> None:
    found = price(table(whole=N1, standard={item: 99.0 for item in N1}))
    assert found.own == pytest.approx(4 * 0.03 + 15 * 0.004)
    assert (found.exact, found.source, found.date) == (True, "Cloud Billing catalog", "2026-11-01")


def test_a_part_without_one_makes_the_price_an_estimate_from_compute_engine() -> None:
    found = price(table(whole={"core:n1": 0.035}, standard=N1))
    assert found.own == pytest.approx(4 * 0.035 + 15 * 0.004 * FEE)
    assert (found.exact, pricing.amount(found)) == (False, "~0.21")
    assert found.source == "Cloud Billing catalog, Compute Engine x 1.15"


def test_spot_is_the_spot_price_and_the_fee_and_unknown_without_one_of_them() -> None:
    fee = {"core:n1": 0.0045, "ram:n1": 0.0006}
    spot = {"core:n1": 0.006, "ram:n1": 0.0008}
    found = price(table(spot=spot, fee=fee), provisioning="spot")
    assert found.own == pytest.approx(4 * 0.0105 + 15 * 0.0014)
    assert not found.exact, "spot prices change"
    assert price(table(spot=spot, fee={"core:n1": 0.0045}), provisioning="spot").own is None
    assert price(table(spot={"core:n1": 0.006}, fee=fee), provisioning="spot").own is None
    assert price(table(spot=spot, fee=fee, whole=N1), provisioning="flex").own is None


def test_a_spot_machine_with_local_ssds_costs_them_too() -> None:
    a3 = {"core:a3": 0.01, "ram:a3": 0.001, "gpu:NVIDIA_H100_80GB": 3.0}
    fee = dict.fromkeys(a3, 0.1)
    without = price(table(spot=a3, fee=fee), provisioning="spot", accelerator="h100")
    assert without.own is None
    found = price(table(spot={**a3, "ssd": 0.0001}, fee=fee), provisioning="spot", accelerator="h100")
    assert found.own == pytest.approx(26 * 0.11 + 234 * 0.101 + 3.1 + 0.075)


def test_a_machine_with_an_unknown_part_has_no_price() -> None:
    l4 = {"core:g2": 0.02, "ram:g2": 0.003, "gpu:NVIDIA_L4": 0.56}
    whole = price(table(standard=l4), accelerator="l4")
    assert whole.own == pytest.approx((4 * 0.02 + 16 * 0.003 + 0.56) * FEE)
    for item in l4:
        less = price(table(standard={name: usd for name, usd in l4.items() if name != item}), accelerator="l4")
        assert (less.own, less.missing) == (None, ("l4 with g2-standard-4",))
    assert price(table(standard=l4, shapes={}), accelerator="l4").own is None
    other = {"g2-standard-4": Shape(vcpus=4, ram_gib=16.0, gpus=2)}
    assert price(table(standard=l4, shapes=other), accelerator="l4").own is None, "it is another machine"


def test_a_tpu_costs_its_chips_and_a_pod_of_the_old_ones_is_unknown() -> None:
    made = table(standard={"tpu:v5e": 1.2, "tpu:v2": 4.5})
    assert price(made, accelerator="v5e-8").own == pytest.approx(8 * 1.2 * FEE)
    assert price(made, accelerator="v2-8").own == pytest.approx(4.5 * FEE)
    assert made.machine(accelerators.row("v2-32"), "cloud-tpu").standard == {}


def test_what_a_read_table_lacks_is_unknown_although_this_package_has_a_price() -> None:
    assert pricing.price(pricing.Rental(pools=accelerators.pools())).own is not None
    assert price(table()).own is None
    empty = KnownPrices(date="2026-11-01", age_days=0, machines=())
    assert pricing.price(pricing.Rental(pools=accelerators.pools(), known=empty)).own is None


def test_a_region_that_lists_no_such_machine_is_ruled_out_and_a_silent_one_is_not() -> None:
    v5e = accelerators.row("v5e-8")
    made = table(offered={"tpu:v5e": (HERE,)}, surveyed={"tpus": (HERE, THERE, "europe-west1")})
    assert made.absent(v5e, "ct5lp-hightpu-8t") == ["europe-west1", THERE]
    assert allowed(v5e, made.absent(v5e, "ct5lp-hightpu-8t")) == [HERE, "us-east1", "us-west1"]
    assert table(surveyed={"tpus": (THERE,)}).absent(v5e, "ct5lp-hightpu-8t") == [], "no region lists that name"


def test_a_gpu_beside_an_n1_machine_needs_both() -> None:
    offered = {"n1-standard-4": (HERE, THERE), "gpu:nvidia-tesla-t4": (HERE,)}
    made = table(offered=offered, surveyed={"machines": (HERE, THERE), "gpus": (HERE, THERE)})
    assert made.absent(accelerators.row("t4"), "n1-standard-4") == [THERE]
    assert made.absent(accelerators.row("cpu"), "n1-standard-4") == []


NAMES = st.sampled_from(sorted({*regions.KNOWN, "mars-north1"}))


@given(
    st.sampled_from([row for row in accelerators.ROWS if row.machine]),
    st.dictionaries(
        st.sampled_from(["tpu:v5e", "tpu:v2", "n1-standard-4", "gpu:nvidia-l4"]), st.lists(NAMES).map(tuple)
    ),
    st.dictionaries(st.sampled_from(["tpus", "machines", "gpus"]), st.lists(NAMES).map(tuple)),
)
def test_what_is_listed_never_adds_a_region(row, offered, surveyed) -> None:
    made = table(offered=offered, surveyed=surveyed)
    left = allowed(row, made.absent(row, row.machine or ""))
    assert set(left) <= set(row.regions or regions.KNOWN)
    found = made.machine(row, row.machine or "")
    assert set(found.standard) <= set(left)


def test_damaged_numbers_are_no_prices() -> None:
    for usd in (float("nan"), float("inf"), -1.0, 0.0):
        assert price(table(whole={**N1, "core:n1": usd})).own is None


def test_every_allowed_region_is_listed_by_price_and_unknown_ones_at_the_end() -> None:
    units = {"standard": {"tpu:v5e": {HERE: 1.2, THERE: 1.0, "us-east1": 1.4}}}
    made = PriceTable(date="2026-11-01", units=units, shapes={}, offered={}, surveyed={})
    known = made.known([("v5e-1", "ct5lp-hightpu-1t")], 0)
    rented = pricing.Rental(pools=accelerators.pools("v5e-1"), regions=("us-east1", HERE), known=known)
    assert [each.region for each in pricing.by_region(rented)] == [THERE, HERE, "us-east1", "us-west1"]
    assert pricing.region_lines([rented]) == [
        (
            "regions",
            "us-west4 ~1.15, us-central1 ~1.38, us-east1 ~1.61 USD an hour on demand; price unknown in us-west1",
        )
    ]
    assert "us-west4 ~1.15 and 2 more USD" in pricing.region_lines([rented], 1)[0][1]
    assert pricing.region_lines([pricing.Rental(pools=accelerators.pools("v5e-1"))]) == []


def test_regions_where_training_lacks_an_accelerator_are_left_out_whatever_the_catalog_lists() -> None:
    units = {
        "standard": {
            item: {HERE: 0.1, "us-west4": 0.05, "europe-west4": 0.2} for item in ("core:g2", "ram:g2", "gpu:NVIDIA_L4")
        }
    }
    shapes = {"g2-standard-4": Shape(vcpus=4, ram_gib=16.0, gpus=1)}
    offered, surveyed = {"g2-standard-4": (HERE, "us-west4", "europe-west4")}, {"machines": regions.KNOWN}
    made = PriceTable(date="2026-11-01", units=units, shapes=shapes, offered=offered, surveyed=surveyed)
    rented = pricing.Rental(pools=accelerators.pools("l4"), known=made.known([("l4", "g2-standard-4")], 0))
    assert pricing.region_lines([rented])[0][1] == "us-central1 ~2.42, europe-west4 ~4.83 USD an hour on demand"
