"""Places: how they are written, what is refused, and which machines a job gets in each of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk.cli import emulator
from sdk.hardware import accelerators, regions
from sdk.job.plan import Plan

CPU_JOB = sdk.Resources(workers=2)
PLACES = st.builds(
    sdk.Place,
    st.sampled_from(regions.KNOWN),
    st.none() | st.sampled_from(["standard", "spot", "flex"]),
    st.none() | st.sampled_from([row.name for row in accelerators.ROWS]),
)


@given(st.lists(PLACES, max_size=4))
def test_a_list_of_places_is_read_back_from_its_text(places: list[sdk.Place]) -> None:
    text = ",".join(map(str, places))
    assert sdk.Vertex(places=text).places == sdk.Vertex(places=places).places == tuple(places)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("us-central1", sdk.Place("us-central1")),
        (" us-east1 : spot ", sdk.Place("us-east1", "spot")),
        ("europe-west4:standard:l4x2", sdk.Place("europe-west4", "standard", "l4:2")),
        ("europe-west4:standard:l4:2", sdk.Place("europe-west4", "standard", "l4:2")),
        ("us-central1::NVIDIA_TESLA_T4:2", sdk.Place("us-central1", None, "t4:2")),
    ],
)
def test_a_place_is_a_region_its_provisioning_and_its_accelerator(text: str, place: sdk.Place) -> None:
    assert sdk.Place.parse(text) == place


def test_every_mistake_in_every_place_is_said_at_once_with_the_nearest_that_exists() -> None:
    with pytest.raises(sdk.InputError) as caught:
        sdk.Vertex(places=["us-centrall1:spto:l4:3", "europe-west4-a", 3, {"area": "us-east1"}], disk_gb=0)
    said = caught.value.problems
    for part in (
        "us-centrall1:spto:l4:3: region: Vertex AI has no such region. Nearest: 'us-central1'",
        "l4 comes in machines of 1, 2, 4 or 8. Nearest: 'l4:4'",
        "unknown provisioning. Received: 'spto'. Did you mean 'spot'?",
        "europe-west4-a: region: Vertex AI has no such region. Nearest: 'europe-west4'",
        "Not a place, such as us-central1:spot. Received: 3.",
        "Place has no field 'area'",
        "disk_gb: Must be greater",
    ):
        assert any(part in problem for problem in said), (part, said)


def test_a_staging_bucket_is_that_of_a_region() -> None:
    assert sdk.Vertex(staging_buckets={"us-east1": "mine/x"}).staging_root("us-east1") == "gs://mine/x"
    assert sdk.Vertex(staging_buckets={"us-east1": "mine"}).staging_root("us-east1") == "gs://mine/podlift"
    assert sdk.Vertex(staging_buckets={"us-east1": "mine"}).staging_root("us-west1") == ""
    with pytest.raises(sdk.InputError) as caught:
        sdk.Vertex(staging_buckets={"us-eastt1": "mine", "us-east4": ""})
    assert (
        "'us-eastt1' is no region of Vertex AI, nearest 'us-east1'; us-east4 has no bucket" in caught.value.problems[0]
    )


def test_without_places_a_job_runs_in_its_regions_with_its_own_hardware() -> None:
    target = sdk.Vertex(regions=["us-central1", "us-east1"], provisioning="spot")
    assert [*map(str, target.places_for(CPU_JOB))] == ["us-central1:spot:cpu", "us-east1:spot:cpu"]


def test_a_place_adds_what_it_does_not_say_from_the_job() -> None:
    target = sdk.Vertex(places="us-central1:spot,us-east1,us-west1:flex:l4x2", machine="n1-standard-8")
    places = target.places_for(CPU_JOB)
    assert [*map(str, places)] == ["us-central1:spot:cpu", "us-east1:standard:cpu", "us-west1:flex:l4:2"]
    machines = [[(pool.machine, pool.replicas) for pool in target.pools(CPU_JOB, place)] for place in places]
    plain = [("n1-standard-8", 1), ("n1-standard-8", 1)]
    # The machine type is for the job's own accelerator.
    assert machines == [plain, plain, [("g2-standard-24", 1), ("g2-standard-24", 1)]]
    assert target.place_regions == ("us-central1", "us-east1", "us-west1")


def test_places_come_from_an_argument_a_variable_or_the_file_and_survive_the_plan(write, monkeypatch) -> None:
    write("train.py", "print(1)")
    wanted = (sdk.Place("us-east1", "spot"), sdk.Place("us-central1"))
    cloud = {"backend": "vertex", "vertex_bucket": "mine"}

    def planned(**more: object) -> Plan:
        return sdk.plan("train.py", **cloud, **more)  # type: ignore[arg-type]

    made = planned(vertex_places=["us-east1:spot", "us-central1"])
    assert sdk.Vertex.of(made.target).places == wanted
    assert Plan.from_json(made.to_json(), "plan.json").target == made.target
    monkeypatch.setenv("PODLIFT_VERTEX_PLACES", "us-east1:spot,us-central1")
    assert planned().target == made.target
    monkeypatch.delenv("PODLIFT_VERTEX_PLACES")
    write("podlift.toml", '[vertex]\nplaces = ["us-east1:spot", "us-central1"]\n')
    assert planned().target == made.target


def test_a_plan_that_was_written_before_there_were_places_is_read(write) -> None:
    write("train.py", "print(1)")
    data = json.loads(sdk.plan("train.py", backend=sdk.Vertex(bucket="mine", regions="us-east1")).to_json())
    del data["backend_options"]["places"], data["backend_options"]["staging_buckets"]
    target = sdk.Vertex.of(Plan.from_json(json.dumps(data), "plan.json").target)
    assert [*map(str, target.places_for(CPU_JOB))] == ["us-east1:standard:cpu"]


def test_the_emulator_makes_buckets_in_the_region_of_the_first_place(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert emulator._placed(["mine", "all@us"]) == ["mine@us-central1", "all@us"]
    (tmp_path / "podlift.toml").write_text('[vertex]\nplaces = "europe-west4:spot,us-east1"\n')
    assert emulator._placed(["mine"]) == ["mine@europe-west4"]
    (tmp_path / "podlift.toml").write_text('[vertex]\nplaces = "nowhere"\n')
    assert emulator._placed(["mine"]) == ["mine@us-central1"]
