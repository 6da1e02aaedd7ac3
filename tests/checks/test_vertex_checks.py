"""Plans for Vertex AI that are refused, their near misses that are not, and that the nearest plan that is named is one."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import any_json, input_error

import sdk
from sdk.backends.local.checks import of_local
from sdk.backends.vertex.checks import of_vertex
from sdk.checks import Facts, Finding, strategies_in
from sdk.hardware.accelerators import ROWS
from sdk.job.wire import decode

FACTS = Facts(
    python="3.11.9", executable="python3", tensorflow="2.19.0", keras="3.10.0", tf_keras=None, cpus=2, isolation=None
)
TARGET = {"project": "my-project", "bucket": "my-bucket", "image": "us-central1-docker.pkg.dev/my-project/images/tf:1"}
DAY = 86400.0
# Its price on spot is known in part.
B200 = {"accelerator": "b200:8", "own_tensorflow": True, "provisioning": "spot"}


def in_raw(index: int, **pool: Any) -> dict[str, Any]:
    return {"jobSpec": {"workerPoolSpecs": {str(index): pool}}}


RESERVED = in_raw(0, machineSpec={"reservationAffinity": {"reservationAffinityType": 2}})
GROUPS = ("resources", "limits", "vertex", "code")


class Asked:
    """A plan as the checks see it, with some of its settings changed by their names, with or without their group."""

    def __init__(self, changes: dict[str, Any]) -> None:
        job = asdict(sdk.Job("train.py", limits={"timeout_s": 3600.0}))
        job |= {"vertex": asdict(sdk.Vertex(**TARGET)), "root": "gs://my-bucket/podlift", "run_id": "run-abc"}
        self.values = json.loads(json.dumps(job))  # as in a plan
        self.strategies: tuple[str, ...] = ()
        self.facts = FACTS
        self.change(changes)

    def change(self, changes: dict[str, Any]) -> None:
        for name, value in changes.items():
            if name in ("strategies", "facts"):
                setattr(self, name, value)
                continue
            place = self.values
            group = next((each for each in GROUPS if name in place[each]), "")
            *above, last = f"{group}.{name}".strip(".").split(".")
            for step in above:
                place = place[step]
            place[last] = copy.deepcopy(value)

    def findings(self) -> list[Finding]:
        values, job, target = self.values, decode(sdk.Job, self.values), decode(sdk.Vertex, self.values["vertex"])
        about = {"root": values["root"], "run_id": values["run_id"], "strategies": self.strategies}
        return of_vertex(job, self.facts, target=target, **about)

    def of(self, level: str) -> list[Finding]:
        return [finding for finding in self.findings() if finding.level == level]


ENV_99 = {f"NAME_{number}": "1" for number in range(99)}
TF = "us-docker.pkg.dev/vertex-ai/training/tf-"
UNKNOWN, DEAR = "allow_unknown_price=True", "may cost at least 899.94 USD"
MINE = "us-central1-docker.pkg.dev/my-project/images/tensorflow:"
BEST, STANDARD = "Nearest: accelerator='v5e-8'.", "provisioning='standard'"
V6E = "training-with-tpu-vm ends TensorFlow's support before v6e, configure-compute lets tf-nightly"
BLACKWELL = "has no kernels for Blackwell GPUs. If the image has your own one that does, set vertex_own_tensorflow=True"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"accelerator": "v6e-8"}, V6E, BEST),
    ({"accelerator": "tpu7x-4"}, "documented for JAX only", "accelerator='v5e-4'"),
    ({"accelerator": "v5e-16"}, "spans 4 machines", BEST),
    ({"accelerator": "v5e-8@4t"}, "spans 2 machines", BEST),
    ({"accelerator": "p100"}, "support for P100 ended on 2026-09-15", "accelerator='t4'"),
    ({"accelerator": "k80"}, "K80 is no longer offered", "accelerator='t4'"),
    ({"accelerator": "b200:8"}, f"trains on b200:8: TensorFlow up to 2.21 {BLACKWELL}", "'h200:8'"),
    ({"accelerator": "gb200:4"}, "and GB200 is in ARM machines", "accelerator='h100:4'"),
    ({"accelerator": "gb200:4", "own_tensorflow": True}, "gb200:4 needs a reservation", "accelerator='h100:4'"),
    ({"accelerator": "v5e-8", "workers": 2}, "exactly one task", "Nearest: workers=1."),
    (
        {"accelerator": "v5e-1", "workers": 3, "ps": 1, "evaluator": True},
        "Received: workers=3, ps=1, evaluator=True",
        "Nearest: workers=1, ps=0, evaluator=False.",
    ),
    ({"machine": "n1-standard-2"}, "Known: n1-standard-4, n1-standard-8", "machine='n1-standard-4'"),
    ({"machine": "n2-standard-7"}, "'n2-standard-7' is not available", "'n2-standard-8'"),
    ({"machine": "c3-standard-8"}, "n2, n4, c2 and m1 machines", "machine='c2-standard-8'"),
    ({"machine": "big"}, "'big'", "machine="),
    ({"machine": "a2-highgpu-1g"}, "includes an accelerator", "accelerator='a100'"),
    (
        {"machine": "ct6e-standard-8t"},
        "includes an accelerator",
        "accelerator='v5e-8', vertex_machine='ct5lp-hightpu-8t'",
    ),
    ({"accelerator": "l4", "machine": "g2-standard-48"}, "does not come with l4", "Nearest: accelerator='l4:4'."),
    ({"accelerator": "v5e-8", "machine": "ct5lp-hightpu-4t"}, "it would take 2 of them", "machine='ct5lp-hightpu-8t'"),
    *[
        ({"machine": odd}, repr(odd)[:9], "machine=")
        for odd in ("n1-standard-" + "9" * 5000, "n2-standard-" + "9" * 5000, "n1-standard-²", "-", "4")
    ],
    (
        {"accelerator": "v5e-8", "regions": ["europe-west4"]},
        "us-central1, us-east1, us-west1, us-west4, not in europe-west4",
        "regions=['us-central1']",
    ),
    (
        {"accelerator": "a100", "regions": ["us-east1:spot", "asia-northeast1"]},
        "asia-northeast1: a100 is available in",
        "vertex_regions=['us-east1:spot', 'asia-northeast3']",
    ),
    ({"regions": ["europe"]}, "Not a region: 'europe'", "regions=['europe-west9']"),
    (
        {"regions": ["us-central1", "us-east7"]},
        "regions for custom training does not name us-east7",
        "vertex_regions=['us-central1']",
    ),
    ({"regions": ["mars-hill1"]}, "no region 'mars-hill1'", "regions=['us-central1']"),
    ({"regions": ["us-east1", "us-east1"]}, "more than once", "regions=['us-east1']"),
    (
        {"accelerator": "v5e-16", "provisioning": "spot"},
        "TPUs on several machines are not available as spot machines",
        "provisioning='standard'",
    ),
    ({"accelerator": "v5e-8", "provisioning": "flex"}, "Flex-start is for GPUs, not for TPUs", STANDARD),
    ({"accelerator": "t4", "provisioning": "flex"}, "Flex-start is offered for l4, a100, h100, h200, b200", STANDARD),
    (
        {"accelerator": "l4", "provisioning": "flex", "timeout_s": 8 * DAY},
        "Flex-start ends after 7 days. Received: timeout='8d'",
        "timeout='7d'",
    ),
    (
        {"accelerator": "l4", "provisioning": "flex", "ps": 1, "workers": 2},
        "the same machine in every pool. Received: g2-standard-4 with l4, n1-standard-4 with cpu",
        "provisioning='standard'",
    ),
    ({"disk_gb": 99}, "A boot disk has 100 to 64000 GB. Received: vertex_disk_gb=99", "vertex_disk_gb=100"),
    ({"env": ENV_99}, "at most 100 variables, and podlift sets 3. Received: 99", "Nearest: 97 of them"),
    ({"isolated": True}, "the image is the environment", "isolated=False"),
    (
        {"ps": 2, "workers": 3, "strategies": ("MultiWorkerMirroredStrategy",)},
        "MultiWorkerMirroredStrategy trains without parameter servers",
        "Nearest: ps=0.",
    ),
    ({"project": "My Project"}, "A project's id has", "project='my-project'"),
    ({"bucket": "My_Bucket!", "root": ""}, "A bucket's name", "bucket='my_bucket'"),
    ({"root": "/home/me/runs"}, "buckets, but no folder", "root='gs://my-bucket/podlift'"),
    ({"root": "gs://192.168.1.1/pods"}, "The name of a bucket is no IP address", ""),
    ({"root": f"gs://{'a' * 64}/x", "bucket": None}, "The name of a bucket has 3 to 63", ""),
    ({"root": "gs://other/podlift"}, "Two buckets are given", "root='gs://my-bucket/podlift'"),
    (
        {"service_account": "trainer"},
        "This is not a service account: NAME@PROJECT.iam.gserviceaccount.com. Received: 'trainer'",
        "service_account='trainer@my-project.iam.gserviceaccount.com'",
    ),
    ({"service_account": "me@example.com"}, "not as a person", "service_account=None"),
    ({"run_id": "r" * 129}, "at most 128 characters. Received: 129", ""),
    ({"image": TF + "cpu.2-16.py310:latest"}, "is retired", f"image='{MINE}2.16'"),
    ({"image": TF + "cpu.2-11:latest"}, "is retired", f"image='{MINE}2.16'"),
    ({"image": "https://gcr.io/p/tf:1"}, "and no scheme", "image='gcr.io/p/tf:1'"),
    (
        {"regions": ["us-central1", "us-central1::t4"], "image": {"cpu": "a/b:1", "gpu": "docker://a/b:2"}},
        "Received: 'docker://a/b:2'",
        "vertex_image={'cpu': 'a/b:1', 'gpu': 'a/b:2'}",
    ),
    (
        {"image": {"cpu": "a/b:1", "keeper": "docker://a/b c"}},
        "letters, digits and",
        "vertex_image={'cpu': 'a/b:1', 'keeper': 'a/bc'}",
    ),
    ({"image": {"keeper": TF + "cpu.2-11:latest"}}, "podlift image cpu --submit", f"'{MINE}2.16'"),
    ({"labels": {"Team": "ml"}}, "the key 'Team' holds 'T'", "labels={'team': 'ml'}"),
    ({"labels": {"team": "a.b c"}}, "of 'team' holds '. '", "labels={'team': 'a-b-c'}"),
    ({"labels": {"k" * 65: ""}}, "has 65 characters", f"labels={{'{'k' * 64}': ''}}"),
    ({"labels": {"podlift-run": "x"}}, "'podlift-run' is set by podlift", "labels={}"),
    (
        {"workers": 4, "timeout_s": 10 * 3600.0, "max_cost_usd": 2.0},
        "may cost 8.74 USD, at 0.87 USD an hour for 10 h in us-central1. Received: max_cost_usd=2",
        "timeout='2h17m'",
    ),
    ({"timeout_s": None, "max_cost_usd": 1.0}, "Cost limit exceeded: the run may cost 36.71 USD", "timeout='4h34m'"),
    (
        {"accelerator": "v5e-8", "timeout_s": 10 * 3600.0, "max_cost_usd": 40.0},
        "may cost 110.40 USD, at 11.04 USD an hour for 10 h in us-central1",
        "provisioning='spot'",
    ),
    ({"accelerator": "h100", "max_cost_usd": 0.5}, "The limit does not pay for a run of 10 min", "max_cost_usd=12.63"),
    (
        {**B200, "max_cost_usd": 10_000.0},
        "the run may cost more than 37.50 USD, as no source gives the price of the machine a4-highgpu-8g on spot",
        "Nearest: limit_allow_unknown_price=True.",
    ),
    (
        {**B200, "timeout_s": DAY, "max_cost_usd": 100.0},
        DEAR,
        "Nearest: timeout='2h40m', limit_allow_unknown_price=True.",
    ),
    (
        {"raw": in_raw(1, replicaCount=50, machineSpec={"machineType": "a3-highgpu-8g"}), "max_cost_usd": 5.0},
        "no source gives the price of the machines that vertex_raw changes on demand in us-central1",
        "allow_unknown_price=True",
    ),
    ({"accelerator": "a100", "provisioning": "flex", "max_cost_usd": 1e3}, "a100 as flex-start", UNKNOWN),
    (
        {
            "regions": ["us-central1:spot", "europe-west4"],
            "kms_key": "projects/acme/locations/us-central1/keyRings/ring/cryptoKeys/key",
        },
        "europe-west4: vertex_kms_key: The Cloud KMS key needs to be in the same region",
        "vertex_regions=['us-central1:spot', 'us-central1'].",
    ),
    (
        {"regions": ["us-east1:standard"], "provisioning": "spot"},
        "Every location has its own provisioning. Received: vertex_provisioning='spot'",
        "vertex_provisioning='standard'",
    ),
    (
        {"accelerator": "l4", "regions": ["us-east1", "US-East1:", "us-east1:standard:L4", "us-west1"]},
        "US-East1:, us-east1:standard:L4 is named more than once in vertex_regions",
        "vertex_regions=['us-east1', 'us-west1']",
    ),
    (
        {"regions": ["us-central1:spot", "us-central1:flex:v5e-8"]},
        "us-central1:flex:v5e-8: Flex-start is for GPUs, not for TPUs",
        "vertex_regions=['us-central1:spot', 'us-central1:standard:v5e-8']",
    ),
    (
        {"accelerator": "v5e-8", "regions": ["us-central1", "europe-west4:spot"]},
        "europe-west4:spot: v5e-8 is available in",
        "vertex_regions=['us-central1', 'us-central1:spot']",
    ),
    (
        {"regions": ["us-central1", "us-central1::v6e-8"]},
        "us-central1::v6e-8: accelerator='v6e-8' is not available",
        "vertex_regions=['us-central1', 'us-central1::v5e-8']",
    ),
    (
        {"workers": 2, "regions": ["us-central1", "us-central1::v5e-8"]},
        "us-central1::v5e-8: A job with TPUs has exactly one task",
        "workers=1",
    ),
    ({**B200, "timeout_s": DAY, "max_cost_usd": 1e2, "allow_unknown_price": True}, DEAR, "timeout='2h40m'"),
]


@pytest.mark.parametrize(("changes", "said", "nearest"), REFUSED)
def test_a_plan_that_cannot_run_is_refused_with_the_reason_and_the_nearest_that_can(changes, said, nearest) -> None:
    asked = Asked(changes)
    refused = [finding for finding in asked.of("error") if said in finding.message]
    assert len(refused) == 1, [finding.message for finding in asked.findings()]
    assert len(changes) > 1 or asked.of("error") == refused, "one mistake is one error"
    assert nearest in refused[0].message
    assert bool(refused[0].nearest) == bool(nearest)
    if not nearest:
        return
    for finding in asked.of("error"):
        asked.change(dict(finding.nearest))
    assert [finding.message for finding in asked.of("error")] == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accelerator": "v5e-8", "provisioning": "spot"},
        {"accelerator": "v2-8", "regions": ["asia-east1"]},
        {"accelerator": "t4:2", "machine": "n1-standard-32"},
        {"accelerator": "v100:8", "machine": "n1-highmem-96"},
        {"accelerator": "gb200:4", "raw": RESERVED, "own_tensorflow": True},
        {"accelerator": "b200:8", "own_tensorflow": True, "regions": ["us-west2"]},
        {"accelerator": "rtx-pro-6000", "own_tensorflow": True},
        {"accelerator": "l4", "regions": ["us-east4", "me-central2"]},
        {"accelerator": "l4", "provisioning": "flex", "workers": 4, "timeout_s": 7 * DAY},
        {"provisioning": "spot", "workers": 4, "ps": 2, "evaluator": True},
        {"machine": "m1-ultramem-40"},
        {"disk_gb": 64_000},
        {"env": dict(list(ENV_99.items())[:97])},
        {"ps": 2, "workers": 3, "strategies": ("ParameterServerStrategy", "MirroredStrategy")},
        {"project": "example.com:my-project"},
        {"project": None, "image": None, "bucket": None, "root": "gs://<bucket>/podlift"},
        {"bucket": "my-bucket/some/prefix", "root": "gs://my-bucket/other"},
        {"service_account": "123456-compute@developer.gserviceaccount.com"},
        {"image": "tensorflow/tensorflow:2.19.0-gpu"},
        {"image": "us-docker.pkg.dev/my-project/training/tf-gpu.2-17:latest"},
        {"raw": in_raw(0, replicaCount="1", machineSpec={"gpuPartitionSize": "1g.5gb"})},
        {"raw": {"jobSpec": {"workerPoolSpecs": [{"replicaCount": 1}], "persistentResourceId": "warm"}}},
        {"max_cost_usd": 0.22},
        {"max_cost_usd": 0.22, "raw": {**in_raw(0, diskSpec={"bootDiskSizeGb": 200}), "labels": {"a": "b"}}},
        {"regions": ["us-east1", "us-east1:standard"], "provisioning": "spot"},
        {**B200, "timeout_s": 7200.0, "max_cost_usd": 75.0, "allow_unknown_price": True},
        {"run_id": "r" * 128},
    ],
    ids=repr,
)
def test_its_near_miss_is_accepted(changes: dict[str, Any]) -> None:
    assert [finding.message for finding in Asked(changes).of("error")] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": "a100-80gb", "provisioning": "flex"}, "unknown whether flex-start is offered"),
        ({"accelerator": "t4", "machine": "n1-highmem-2"}, "little memory that with an accelerator its logs may stop"),
        (
            {"accelerator": "v5e-8", "facts": "2.21.0"},
            "v5e-8 needs TensorFlow 2.16 to 2.20 in the image: tensorflow-tpu",
        ),
        ({"facts": "2.14.1"}, "podlift is tested with TensorFlow 2.16 to 2.21 in the image; here it is 2.14.1"),
        ({"accelerator": "v5e-4", "image": "x/tensorflow-tpu:2.21"}, "v5e-4 needs TensorFlow 2.16 to 2.20, but"),
        ({"timeout_s": 30.0}, "limit_exit_wait='1m' is not below the limit of the whole job: timeout='30s'"),
        (
            {"workers": 2, "accelerator": "t4", "regions": ["us-central1", "us-central1::l4:2"]},
            "different numbers of replicas: us-central1:standard:t4 2, us-central1:standard:l4:2 4. ctx.global_batch_size()",
        ),
        (
            {"accelerator": "t4", "regions": ["us-central1", "us-central1::l4"]},
            "does not end with the same weights bit by bit",
        ),
        ({"provisioning": "spot", "grace_s": 60.0}, "more than the notice of a spot machine: 15 s at best"),
        ({"ps": 1}, "Parameter servers without workers"),
    ],
)
def test_a_doubtful_setting_is_a_warning(changes: dict[str, Any], said: str) -> None:
    if "facts" in changes:
        changes = {**changes, "facts": Facts(**{**FACTS.__dict__, "tensorflow": changes["facts"]})}
    asked = Asked(changes)
    assert [finding.message for finding in asked.of("warning") if said in finding.message], asked.findings()
    assert asked.of("error") == []


def test_locations_with_the_same_hardware_promise_the_same_weights() -> None:
    asked = Asked({"accelerator": "t4", "regions": ["us-central1:spot", "us-central1"]})
    assert not [finding for finding in asked.findings() if "replicas" in finding.message or "bit" in finding.message]


def test_a_tensorflow_that_google_does_not_document_for_a_tpu_is_said_to_be_untried() -> None:
    for changes, said in (
        ({"accelerator": "v5e-8"}, "Google documents TensorFlow up to 2.18 on v5e-8: 2.19 was not tried there."),
        ({"accelerator": "v2-8", "image": "x/tensorflow-tpu:2.20"}, "up to 2.18 on v2-8: 2.20 was not tried"),
    ):
        assert [finding.message for finding in Asked(changes).of("note") if said in finding.message]
        documented = {**changes, "image": "x/tensorflow-tpu:2.18"}
        assert not [finding for finding in Asked(documented).findings() if "documents TensorFlow" in finding.message]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_plain_plan_of_every_row_passes_or_leads_to_one_that_does(row) -> None:
    asked = Asked({"accelerator": row.name, **({"raw": RESERVED} if row.reservation else {})})
    assert bool(asked.of("error")) == bool(row.refused or row.own_tensorflow)
    asked.change({name: value for finding in asked.of("error") for name, value in finding.nearest})
    assert asked.of("error") == []


OPEN = [row for row in ROWS if not row.refused]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_row_on_any_of_its_machines_and_regions_passes(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(OPEN))
    hows = ["standard", "spot", *(["flex"] if row.flex else [])]
    asked = Asked(
        {
            "accelerator": row.name,
            "machine": data.draw(st.none() | st.sampled_from(row.machines or ("n1-standard-4", "n2-standard-16"))),
            "workers": 1 if row.family == "tpu" else data.draw(st.integers(1, 1000)),
            "provisioning": data.draw(st.sampled_from(hows)),
            "disk_gb": data.draw(st.integers(100, 64_000)),
            "regions": data.draw(st.lists(st.sampled_from(row.regions), min_size=1, unique=True)),
            "raw": RESERVED if row.reservation else {},
            "own_tensorflow": bool(row.own_tensorflow),
        }
    )
    assert asked.of("error") == []


IMAGES = st.sampled_from([TF + "gpu.2-17.py310:latest", "a/b:c", "docker://a/b", " a "])
ANY = {
    "accelerator": st.sampled_from([row.name for row in ROWS]),
    "machine": st.none() | st.sampled_from(sorted({m for row in ROWS for m in row.machines})) | st.text(max_size=12),
    "workers": st.integers(1, 4),
    "ps": st.integers(0, 2),
    "evaluator": st.booleans(),
    "provisioning": st.sampled_from(["standard", "spot", "flex"]),
    "disk_gb": st.integers(1, 100_000),
    "timeout_s": st.none() | st.floats(1, 1e7),
    "max_cost_usd": st.none() | st.floats(0.01, 1e5),
    "regions": st.lists(
        st.sampled_from(["us-central1", "europe-west4", "us-east4", "us-east1-b", "asia", "x"])
        | st.builds(
            "{}:{}:{}".format,
            st.sampled_from(["us-central1", "europe-west4", "us-east4", "us-west4", "us-east1-b"]),
            st.sampled_from(["", "standard", "spot", "flex"]),
            st.sampled_from(["", *(row.name for row in ROWS)]),
        ),
        min_size=1,
        max_size=4,
    ),
    "labels": st.dictionaries(st.text(max_size=70), st.text(max_size=70), max_size=3),
    "image": st.none() | IMAGES | st.dictionaries(st.sampled_from(["cpu", "gpu", "tpu", "keeper"]), IMAGES, min_size=1),
    "service_account": st.none() | st.text(max_size=20),
    "root": st.sampled_from(["", "/tmp/x", "gs://my-bucket/podlift", "gs://other/x"]),
    "isolated": st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=ANY))
@settings(max_examples=120, deadline=None)
def test_following_the_suggestions_leads_from_any_plan_to_an_accepted_one(changes: dict[str, Any]) -> None:
    asked = Asked(changes)
    # Each finding about locations names all of them.
    for _ in range(5 + 5 * len(changes.get("regions", ()))):
        refused = asked.of("error")
        if not refused:
            return
        for finding in refused:
            assert finding.nearest, finding.message
            asked.change(dict(finding.nearest))
    raise AssertionError([finding.message for finding in asked.of("error")])


JSON = any_json(st.floats(allow_nan=False), keys=st.sampled_from(["0", "1", "3", "9" * 30, "x"]))
POOL = st.fixed_dictionaries(
    {}, optional={"replicaCount": JSON, "machineSpec": JSON | st.fixed_dictionaries({"acceleratorType": JSON})}
)
POOLS = JSON | st.lists(POOL | JSON, max_size=6) | st.dictionaries(st.sampled_from("0134x"), POOL)


@given(st.sampled_from(["cpu", "l4", "v5e-8"]), POOLS | st.just({"0": {"replicaCount": "9" * 5000}}))
@settings(max_examples=60, deadline=None)
def test_any_patch_of_the_request_can_be_looked_at(name: str, pools: Any) -> None:
    for raw in ({"jobSpec": {"workerPoolSpecs": pools}}, {"jobSpec": pools}):
        asked = Asked({"accelerator": name, "raw": raw})
        for _ in range(6):
            asked.change({key: value for finding in asked.of("error") for key, value in finding.nearest})
        assert asked.of("error") == []


def test_a_plan_names_the_unrequested_effects_of_vertex() -> None:
    notes = [finding.message for finding in Asked({"timeout_s": None}).of("note")]
    unseen = "It was not checked whether gs://my-bucket exists, in a region of the job (us-central1). "
    unseen += "Next: podlift plan --online."
    assert notes == ["No timeout: Vertex AI stops the job after 7 days.", unseen]
    assert [finding.message for finding in Asked({}).of("note")] == [unseen]
    legacy = [finding.message for finding in Asked({"keras": "legacy"}).of("note")]
    assert legacy == ["code_keras='legacy' needs tf_keras, in the image or among the requirements.", unseen]
    assert [f.message for f in Asked({"root": "gs://<bucket>/podlift"}).of("note")] == []


def test_a_plan_is_refused_with_every_sentence_before_anything_is_written(write, root: Path) -> None:
    write("train.py", "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n")
    target = sdk.Vertex(**{**TARGET, "labels": {"Team": "ml"}, "disk_gb": 20})
    servers = "MultiWorkerMirroredStrategy trains without parameter servers"
    with input_error(V6E, "exactly one task", "vertex_disk_gb=20", "'Team' holds 'T'", servers):
        sdk.plan(sdk.Job("train.py", resources={"accelerator": "v6e-8", "ps": 1}), backend=target)
    assert not root.exists()


def test_checks_of_local_mode_are_left_out_for_vertex_and_the_other_way_round() -> None:
    job = sdk.Job("train.py", resources={"workers": 100}, code={"keras": "legacy"})
    crowded = [finding.message for finding in of_local(job, FACTS)]
    assert any("share 2 CPUs" in message for message in crowded)
    assert any("tf_keras" in message for message in crowded)
    there = [finding.message for finding in of_vertex(job, FACTS, target=sdk.Vertex())]
    assert not set(crowded) & set(there)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()", ("MultiWorkerMirroredStrategy",)),
        (
            "a.TPUStrategy\nb.experimental.ParameterServerStrategy\na.TPUStrategy",
            ("TPUStrategy", "ParameterServerStrategy"),
        ),
        ("# MirroredStrategy\n'MirroredStrategy'\nNotMirroredStrategy()", ()),
        ("def broken(:", ()),
    ],
)
def test_strategies_are_read_from_the_code_and_not_from_its_comments(source: str, expected: tuple[str, ...]) -> None:
    assert strategies_in(source) == expected
