"""The table of hardware: what people type, the region that a mistake means, and that no row contradicts another."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import input_error

import sdk
from sdk.hardware import accelerators, machines, regions
from sdk.hardware.accelerators import ROWS, in_step, lookup, pools


@pytest.mark.parametrize(
    ("typed", "name", "machine", "kind", "count"),
    [
        ("cpu", "cpu", "n1-standard-4", None, None),
        (" l4:4 ", "l4:4", "g2-standard-48", "NVIDIA_L4", 4),
        ("nvidia-l4:8", "l4:8", "g2-standard-96", "NVIDIA_L4", 8),
        ("NVIDIA_TESLA_T4", "t4", "n1-standard-4", "NVIDIA_TESLA_T4", 1),
        ("a100:16", "a100:16", "a2-megagpu-16g", "NVIDIA_TESLA_A100", 16),
        ("a100_80gb", "a100-80gb", "a2-ultragpu-1g", "NVIDIA_A100_80GB", 1),
        ("tpu-v3-8", "v3-8", "cloud-tpu", "TPU_V3", 8),
        ("tpu-v5e-4", "v5e-4", "ct5lp-hightpu-4t", None, None),
        ("v5litepod-4", "v5e-4", "ct5lp-hightpu-4t", None, None),
        ("v5e-16", "v5e-16", "ct5lp-hightpu-4t", None, None),
    ],
)
def test_names_that_people_type_are_one_machine_type_and_one_accelerator(typed, name, machine, kind, count) -> None:
    row = lookup(typed)
    assert (row.name, row.machine, row.type, row.count) == (name, machine, kind, count)
    assert sdk.Resources(accelerator=typed).accelerator == name


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("l4:3", "l4 comes in machines of 1, 2, 4 or 8. Nearest: 'l4:4'."),
        ("h200", "h200 comes in machines of 8. Nearest: 'h200:8'."),
        ("a100:x", "Nearest: 'a100'."),
        ("l4:" + "9" * 5000, "Nearest: 'l4:8'."),
        ("v4-8", "v4 is not offered for training. Nearest: 'v3-8'."),
        ("GB300:4", "gb300 is not offered for training. Nearest: 'h200:8'."),
        ("v5e8", "Did you mean 'v5e-8'?"),
        ("gpu", "Did you mean 'cpu'?"),
        ("", "Known: "),
    ],
)
def test_an_unknown_name_is_answered_by_the_nearest_that_can_be_had(typed: str, said: str) -> None:
    with pytest.raises(sdk.InputError) as caught:
        lookup(typed)
    assert str(caught.value).startswith(f"Unknown accelerator. Received: {typed!r}. ")
    assert said in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_is_a_row_or_an_error_that_names_one(text: str) -> None:
    try:
        assert lookup(text) in ROWS
    except sdk.InputError as error:
        assert any(name in str(error) for name in accelerators.names())


def test_names_and_aliases_mean_one_row_each() -> None:
    words = [word for row in ROWS for word in (row.name, *row.aliases)]
    assert len(words) == len(set(words))
    assert all(lookup(word).name == row.name for row in ROWS for word in (row.name, *row.aliases))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_all_that_a_request_needs_or_why_there_is_none(row: accelerators.Accelerator) -> None:
    assert row.title
    if row.refused or row.own_tensorflow:
        instead = lookup(row.instead)
        assert not instead.refused and not instead.own_tensorflow
    if not row.refused:
        assert row.machine
        assert bool(row.instead) == bool(row.own_tensorflow)
    assert row.machine is None or row.family == "cpu" or row.machine in row.machines
    if row.family == "gpu":
        assert row.type and row.count == row.chips and row.hosts == 1 and not row.topology
    if row.family == "tpu":
        assert (row.type is None) == (row.count is None) == (row.topology is not None)
        assert row.runs_tensorflow is not None and row.hosts >= 1 and row.chips % row.hosts == 0
    assert row.chips or row.family == "cpu"
    for region in (*row.regions, *(region for rate in row.rates for region in rate.regions)):
        assert region in regions.KNOWN
    assert row.regions or row.refused
    for rate in row.rates:
        assert 0 < rate.usd < 1000 and rate.source.date.startswith("202") and rate.source.name


@pytest.mark.full
@pytest.mark.process
def test_types_equal_the_types_of_the_real_client() -> None:
    code = (
        "from google.cloud.aiplatform_v1.types import AcceleratorType; from sdk.hardware.accelerators import ROWS; "
        "print([row.type for row in ROWS if row.type and row.type not in AcceleratorType.__members__])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("n1-highmem-2", {"t4", "t4:2", "t4:4", "v100", "v100:2", "v100:4", "v100:8"}),
        ("n1-highcpu-16", {"t4", "t4:2", "t4:4", "v100:2", "v100:4", "v100:8"}),
        ("n1-standard-64", {"t4:4", "v100:8"}),
        ("g2-standard-32", {"l4"}),
        ("n1-standard-2", set()),
    ],
)
def test_a_host_carries_the_numbers_of_gpus_that_are_documented(machine: str, expected: set[str]) -> None:
    kinds = {"p100", *(name.partition(":")[0] for name in expected)} | (set() if expected else {"t4", "v100", "l4"})
    names = {row.name for row in ROWS if machine in row.machines and row.name.partition(":")[0] in kinds}
    assert names == expected


def test_every_machine_type_is_one_that_training_may_have() -> None:
    allowed = "n2-standard-16 n4-highcpu-8 e2-standard-32 c2-standard-60 n1-highmem-2 m1-ultramem-40 n1-highcpu-96"
    allowed += " n4-standard-2 n2-highmem-2 n2-highcpu-80 m1-megamem-96"
    others = (
        "n1-standard-1 n1-standard-2 n1-highcpu-8 e2-standard-2 e2-micro n2-standard-7 n2-highcpu-999 n2-standard-2"
    )
    others += " m1-megamem-40 c3-standard-8 n2-standard-0 g2-standard-4"
    assert [name for name in allowed.split() if name not in machines.LISTED] == []
    assert [name for name in (*others.split(), "n2-standard-16\n", "") if name in machines.LISTED] == []


def test_a_machine_boots_from_the_disks_that_compute_engine_lets_it() -> None:
    for machine, disks in {
        "n4-standard-8": ["hyperdisk-balanced"],
        "a3-ultragpu-8g": ["hyperdisk-balanced"],
        "n1-standard-4": ["pd-ssd", "pd-standard"],
        "a2-highgpu-1g": ["pd-ssd", "pd-standard", "hyperdisk-balanced"],
    }.items():
        assert list(machines.boot_disks(machine)) == disks


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("l4:4", {"us-east4", "me-central2"}, {"us-west4", "europe-west1", "asia-east1"}),
        ("t4", {"southamerica-east1", "us-west2"}, {"me-west1", "southamerica-west1"}),
        ("h200:8", {"asia-south2", "us-south1"}, {"us-west4"}),
        ("v5e-8", {"us-east1"}, {"us-south1", "europe-west4"}),
        ("v2-8", {"asia-east1"}, {"us-east1"}),
        ("cpu", {"africa-south1", "asia-south2"}, {"us-east7", "us-west8"}),
    ],
)
def test_an_accelerator_is_in_the_regions_of_googles_table_of_training(name: str, has: set, lacks: set) -> None:
    regions = set(lookup(name).regions)
    assert has <= regions and not lacks & regions


def test_pools_keep_their_places_and_parameter_servers_get_no_accelerator() -> None:
    asked = {"accelerator": "l4:2", "workers": 3, "ps": 2, "evaluator": True}
    machines = [(p.role, p.index, p.replicas, p.machine, p.accelerator.name) for p in pools(**asked)]
    assert machines == [
        ("chief", 0, 1, "g2-standard-24", "l4:2"),
        ("worker", 1, 2, "g2-standard-24", "l4:2"),
        ("ps", 2, 2, "n1-standard-4", "cpu"),
        ("evaluator", 3, 1, "g2-standard-24", "l4:2"),
    ]
    small = pools(ps=1, machine="n2-standard-16")
    assert [(p.index, p.machine) for p in small] == [(0, "n2-standard-16"), (2, "n2-standard-16")]


def test_a_zone_is_no_region() -> None:
    assert [name for name in ("us-central1", "us", "us-central1-a", "") if regions.is_region(name)] == ["us-central1"]


def test_local_mode_knows_the_names_and_refuses_them_with_a_sentence(write) -> None:
    write("train.py", "print(1)")
    with input_error("'v5e-16' is not available: it spans 4 machines", "Nearest: accelerator='v5e-8'."):
        sdk.plan("train.py", accelerator="v5e-16")


@pytest.mark.parametrize(
    ("name", "tasks", "replicas"),
    [("cpu", 1, 1), ("cpu", 3, 3), ("l4:4", 1, 4), ("l4:4", 2, 8), ("t4", 3, 3), ("v5e-8", 1, 8), ("v3-8", 1, 8)],
)
def test_a_job_has_as_many_replicas_as_the_strategy_of_the_context(name: str, tasks: int, replicas: int) -> None:
    assert in_step(lookup(name), tasks) == replicas


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("us-central1-a", "us-central1"),
        (" Asia-East1-b", "asia-east1"),
        ("EUROPE_WEST4", "europe-west4"),
        ("us-sentral1", "us-central1"),
        ("africa-south7", "africa-south1"),
        ("us", regions.DEFAULT),
        ("global", regions.DEFAULT),
        ("", regions.DEFAULT),
    ],
)
def test_zones_continents_and_slips_lead_to_a_region(written: str, meant: str) -> None:
    assert regions.meant(written) == meant


def test_a_region_means_itself_and_a_location_of_europe_a_region_there() -> None:
    assert [regions.meant(region) for region in regions.KNOWN] == list(regions.KNOWN)
    assert all(regions.meant(written).startswith("europe-") for written in ("eu", "europe"))
