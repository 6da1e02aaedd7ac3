"""Locations: their notation, refusals, the machines of a job in each of them, and `cheapest`, their order by price."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import input_error

import sdk
from sdk.backends.vertex.options import Location, Vertex
from sdk.checks import Facts
from sdk.cli import emulator
from sdk.hardware import accelerators, regions
from sdk.hardware.catalog import PriceTable
from sdk.job.plan import Plan
from sdk.job.policies import Resources

CPU_JOB = sdk.Resources(workers=2)
LOCATIONS = st.builds(
    "{}:{}:{}".format,
    st.sampled_from(regions.KNOWN),
    st.sampled_from(["", "standard", "spot", "flex"]),
    st.sampled_from(["", *(row.name for row in accelerators.ROWS)]),
)


@given(st.lists(LOCATIONS, min_size=1, max_size=4))
def test_locations_are_read_back_from_their_text(texts: list[str]) -> None:
    target = sdk.Vertex(regions=",".join(texts))
    assert target == sdk.Vertex(regions=texts) == sdk.Vertex(regions=[*map(str, target.locations)])


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("us-central1", Location("us-central1")),
        (" us-east1 : spot ", Location("us-east1", "spot")),
        ("europe-west4:standard:l4x2", Location("europe-west4", "standard", "l4:2")),
        ("europe-west4:standard:l4:2", Location("europe-west4", "standard", "l4:2")),
        ("us-central1::NVIDIA_TESLA_T4:2", Location("us-central1", None, "t4:2")),
    ],
)
def test_a_location_is_a_region_its_provisioning_and_its_accelerator(text: str, location: Location) -> None:
    assert sdk.Vertex(regions=[text]).locations == (location,)


def test_every_mistake_in_every_location_is_reported_at_once_with_the_nearest_value() -> None:
    provisioning = "regions: us-central1:spto:l4:3: unknown provisioning. Received: 'spto'. Did you mean 'spot'?"
    count = "l4 comes in machines of 1, 2, 4 or 8. Nearest: 'l4:4'"
    with input_error(provisioning, count, "disk_gb: Must be greater"):
        sdk.Vertex(regions=["us-central1:spto:l4:3", "cheapest:spot"], disk_gb=0)
    for wrong, part in (("", "must name one at least"), ("cheapest:spot", "'cheapest' compares regions")):
        with pytest.raises(sdk.InputError, match=part):
            sdk.Vertex(regions=wrong)


def test_a_location_takes_missing_parts_from_the_job() -> None:
    plain = sdk.Vertex(regions=["us-central1", "us-east1"], provisioning="spot")
    assert [*map(str, plain.locations_for(CPU_JOB))] == ["us-central1:spot:cpu", "us-east1:spot:cpu"]
    target = sdk.Vertex(regions="us-central1:spot,us-east1,us-west1:flex:l4x2", machine="n1-standard-8")
    locations = target.locations_for(CPU_JOB)
    assert [*map(str, locations)] == ["us-central1:spot:cpu", "us-east1:standard:cpu", "us-west1:flex:l4:2"]
    machines = [[(pool.machine, pool.replicas) for pool in target.pools(CPU_JOB, location)] for location in locations]
    # The machine type is for the job's own accelerator.
    assert machines == [[("n1-standard-8", 1)] * 2] * 2 + [[("g2-standard-24", 1)] * 2]
    assert target.region_names == ("us-central1", "us-east1", "us-west1")


def test_locations_come_from_an_argument_a_variable_or_the_file_and_survive_the_plan(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    planned = partial(sdk.plan, "train.py", backend="vertex", vertex_bucket="mine")
    made = planned(vertex_regions=["us-east1:spot", "us-central1"])
    assert sdk.Vertex.of(made.target).regions == ("us-east1:spot", "us-central1")
    assert Plan.from_json(made.to_json(), "plan.json").target == made.target
    monkeypatch.setenv("PODLIFT_VERTEX_REGIONS", "us-east1:spot,us-central1")
    assert planned().target == made.target
    monkeypatch.delenv("PODLIFT_VERTEX_REGIONS")
    write("podlift.toml", '[vertex]\nregions = ["us-east1:spot", "us-central1"]\n')
    assert planned().target == made.target


def test_the_emulator_makes_buckets_in_the_region_of_the_first_location(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert emulator._with_regions(["mine", "all@us"]) == ["mine@us-central1", "all@us"]
    (tmp_path / "podlift.toml").write_text('[vertex]\nregions = "europe-west4:spot,us-east1"\n')
    assert emulator._with_regions(["mine"]) == ["mine@europe-west4"]
    for named, region in {"cheapest": "us-central1", "cheapest,us-east1": "us-east1"}.items():
        (tmp_path / "podlift.toml").write_text(f'[vertex]\nregions = "{named}"\n')
        assert emulator._with_regions(["mine"]) == [f"mine@{region}"]
    (tmp_path / "podlift.toml").write_text('[vertex]\nregions = "us-east1:nowhere"\n')
    assert emulator._with_regions(["mine"]) == ["mine@us-central1"]


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
