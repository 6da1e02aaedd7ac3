"""Bodies: read as strictly as Google's servers do, never a crash, and exactly the fields of Google's own descriptors."""

from __future__ import annotations

import json
import re

import pytest
from google.cloud.aiplatform_v1.types import CustomJob, TrainingPipeline
from google.cloud.scheduler_v1.types import Job
from google.protobuf import json_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import GOLDEN_FILES, any_json

from sdk.emulator.messages import ENUMS, MESSAGES, ONEOFS, to_response
from sdk.emulator.vertex import bodies
from sdk.emulator.vertex.errors import VertexApiError

SCALARS = {9: "string", 8: "bool", 5: "int32", 3: "int64", 12: "bytes"}
WELL_KNOWN = {
    "google.protobuf.Timestamp": "Timestamp",
    "google.protobuf.Duration": "Duration",
    "google.protobuf.Any": "Any",
    "google.protobuf.Value": "Any",
    "google.protobuf.Struct": "Any",
}
# Returned as they came.
OPAQUE = {"InputDataConfig"}
OPAQUE_FIELDS = {"google.cloud.aiplatform.v1.TrainingPipeline.model_to_upload"}


def named(descriptor) -> str:
    """The name in our table: "Scheduling.Strategy" for google.cloud.aiplatform.v1.Scheduling.Strategy."""
    return re.sub(r"^google\.(cloud\.(aiplatform|scheduler)\.v1|rpc)\.", "", descriptor.full_name)


def kind(field) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return "{}" if field.message_type.fields_by_name["value"].type == field.TYPE_STRING else "Any"
    base = SCALARS.get(field.type) or named(field.enum_type or field.message_type)
    base = "Any" if base in OPAQUE or field.full_name in OPAQUE_FIELDS else base
    return WELL_KNOWN.get(base, base) + ("[]" if field.is_repeated else "")


def below(descriptor, seen: dict) -> dict:
    """All messages that a message holds."""
    known = named(descriptor) in {*seen, *OPAQUE} or descriptor.full_name in WELL_KNOWN
    if known or descriptor.GetOptions().map_entry:
        return seen
    seen[named(descriptor)] = descriptor
    for field in descriptor.fields:
        if field.message_type is not None and field.full_name not in OPAQUE_FIELDS:
            below(field.message_type, seen)
    return seen


def test_the_table_equals_googles_descriptors() -> None:
    found: dict = {}
    for message in (CustomJob, TrainingPipeline, Job):
        below(message.pb().DESCRIPTOR, found)
    fields = {name: {field.json_name: kind(field) for field in each.fields} for name, each in found.items()}
    assert fields == MESSAGES
    types = [field.enum_type for each in found.values() for field in each.fields if field.enum_type]
    assert {named(each): {value.name: value.number for value in each.values} for each in types} == ENUMS
    oneofs = {name: each.oneofs for name, each in found.items() if each.oneofs}
    members = {name: {one.name: {each.json_name for each in one.fields} for one in of} for name, of in oneofs.items()}
    assert members == {name: {each: set(names) for each, names in of.items()} for name, of in ONEOFS.items()}


def read(job) -> dict:
    return bodies.parse(job if isinstance(job, bytes) else json.dumps(job).encode())


def sentence(job) -> str:
    with pytest.raises(VertexApiError) as caught:
        read(job)
    assert caught.value.code == 400
    return caught.value.message


def test_numbers_and_names_of_enums_int64_as_text_and_both_spellings_are_the_same() -> None:
    gpus = {"acceleratorType": 11, "acceleratorCount": 1.0}
    terms = {"strategy": 4, "timeout": "3600.500s", "disableRetries": False, "maxWaitDuration": "0s"}
    pools = [{"replicaCount": "2", "machineSpec": gpus}, {}]
    one = {"displayName": "x", "jobSpec": {"scheduling": terms, "workerPoolSpecs": pools}}
    gpus = {"accelerator_type": "NVIDIA_L4", "accelerator_count": "1"}
    terms = {"strategy": "SPOT", "timeout": "3600.5s", "max_wait_duration": "0s", "disable_retries": None}
    pools = [{"replica_count": 2, "machine_spec": gpus}, {}]
    other = {"display_name": "x", "job_spec": {"scheduling": terms, "worker_pool_specs": pools}}
    assert read(one) == read(other)
    spec = read(one)["jobSpec"]
    assert spec["scheduling"] == {"strategy": "SPOT", "timeout": "3600.5s", "maxWaitDuration": "0s"}
    assert spec["workerPoolSpecs"][1] == {}
    told = to_response("CustomJob", read(one), enum_numbers=True)["jobSpec"]
    assert told["scheduling"]["strategy"] == 4
    assert told["workerPoolSpecs"][0]["replicaCount"] == "2"
    assert to_response("CustomJob", read(one), enum_numbers=False)["jobSpec"]["scheduling"]["strategy"] == "SPOT"


def pooled(**fields) -> dict:
    return {"jobSpec": {"workerPoolSpecs": [fields]}}


def scheduled(**fields) -> dict:
    return {"jobSpec": {"scheduling": fields}}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (b"{", "Invalid JSON payload received."),
        (b"[]", "Invalid value at 'custom_job' (type.googleapis.com/google.cloud.aiplatform.v1.CustomJob), []"),
        (b'{"displayName": NaN}', "Invalid JSON payload received."),
        (b"[" * 100_000, "Invalid JSON payload received."),
        ({"displayNme": "x"}, "Unknown name \"displayNme\" at 'custom_job': Cannot find field."),
        (pooled(machineSpec={"machineTyp": "x"}), "at 'custom_job.job_spec.worker_pool_specs[0].machine_spec'"),
        (scheduled(timeout=3600), "(type.googleapis.com/google.protobuf.Duration), 3600"),
        (pooled(replicaCount=2**63), "(TYPE_INT64)"),
        (pooled(diskSpec={"bootDiskSizeGb": 2**31}), "(TYPE_INT32)"),
        ({"jobSpec": {"workerPoolSpecs": {}}}, "WorkerPoolSpec), {}"),
        (pooled(containerSpec={"args": [None]}), "args[0]' (TYPE_STRING), null"),
        ({"createTime": "yesterday"}, "google.protobuf.Timestamp)"),
    ],
)
def test_a_body_that_is_no_custom_job_is_refused_in_googles_words(job, expected) -> None:
    assert expected in sentence(job)


FIELDS = sorted({name for each in MESSAGES.values() for name in each})
JSON = any_json(st.floats(), st.sampled_from(["1s", "SPOT", "1"]), keys=st.sampled_from(FIELDS), leaves=20)
# Values of the right type at the right place, so that most bodies get past the first door.
SMALL = st.integers(-9, 9)
VALUES = {"string": st.text(max_size=8), "bool": st.booleans(), "int32": SMALL, "int64": SMALL}


def honest(message: str) -> st.SearchStrategy:
    def of(field: str) -> st.SearchStrategy:
        if field.endswith("[]"):
            return st.lists(of(field[:-2]), max_size=2)
        if field == "{}":
            return st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
        if field in MESSAGES:
            return honest(field)
        if field in ENUMS:
            return st.sampled_from(list(ENUMS[field])) | st.sampled_from(list(ENUMS[field].values()))
        return VALUES.get(field, st.just("5s" if field == "Duration" else "2026-01-01T00:00:00Z"))

    wanted = {name: of(field) for name, field in MESSAGES[message].items() if field != "Any[]"}
    wanted.pop("pythonPackageSpec", None)
    return st.fixed_dictionaries({}, optional=wanted)


@settings(max_examples=80, deadline=None)
@given(JSON | st.fixed_dictionaries({"jobSpec": JSON}))
@example({"labels": {}})
def test_no_body_is_a_crash(value) -> None:
    try:
        job = read(value)
    except VertexApiError as error:
        assert error.code == 400
    else:
        bodies.problems(job, "us-central1")


@settings(max_examples=60, deadline=None)
@given(honest("CustomJob"))
def test_a_body_that_google_can_read_is_read_the_same(job) -> None:
    theirs = CustomJob.pb(CustomJob())
    json_format.ParseDict(job, theirs)
    mine = to_response("CustomJob", read(job), enum_numbers=False)
    ours = CustomJob.pb(CustomJob())
    json_format.ParseDict(mine, ours)
    for name in ("name", "state", "create_time", "start_time", "end_time", "update_time", "error", "web_access_uris"):
        theirs.ClearField(name)
    theirs.satisfies_pzs = theirs.satisfies_pzi = False
    assert ours == theirs
    bodies.problems(read(job), "us-central1")


def test_every_body_that_podlift_renders_is_one_that_the_service_takes() -> None:
    rendered = json.loads((GOLDEN_FILES / "vertex" / "bodies.json").read_text())
    assert len(rendered) > 20
    for name, each in rendered.items():
        assert bodies.problems(read(each), "us-central1") == [], name
