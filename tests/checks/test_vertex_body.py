"""Each rule about a job's body, in one table: the emulator's answer, and a plan that says the same of the same request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import GOLDEN_FILES, any_json

import sdk
from sdk.backends.vertex.checks import job_rules, of_vertex
from sdk.backends.vertex.job import body as job_body
from sdk.checks import Facts, Finding
from sdk.emulator.vertex import bodies
from sdk.emulator.vertex.errors import invalid
from sdk.job.raw import patched

FACTS = Facts(
    python="3.11.9", executable="python3", tensorflow="2.19.0", keras="3.10.0", tf_keras=None, cpus=2, isolation=None
)
PLAIN = json.loads((GOLDEN_FILES / "vertex" / "bodies.json").read_text())["one task"]
HERE, P, EAST = "us-central1", "projects/acme/locations", "projects/acme/locations/us-east1"
STORE = f"{P}/{HERE}/metadataStores/default/contexts"
KEY = "keyRings/ring/cryptoKeys/key"
GB200 = {"machineType": "a4x-highgpu-4g", "acceleratorType": "NVIDIA_GB200", "acceleratorCount": 4}
H200 = {"machineType": "a3-ultragpu-8g", "acceleratorType": "NVIDIA_H200_141GB", "acceleratorCount": 8}
L4 = {"machineType": "g2-standard-4", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
NETWORK = "projects/12/global/networks/mine"


def pool(**fields: Any) -> dict[str, Any]:
    return {"jobSpec": {"workerPoolSpecs": {"0": fields}}}


def machine(kind: str, **fields: Any) -> dict[str, Any]:
    return pool(machineSpec={"machineType": kind, **fields})


def gpu(kind: str, accelerator: str, count: int | None) -> dict[str, Any]:
    return machine(kind, acceleratorType=accelerator, acceleratorCount=count)


def disk(kind: str, boots_from: str) -> dict[str, Any]:
    return pool(machineSpec={"machineType": kind}, diskSpec={"bootDiskType": boots_from})


def spec(**fields: Any) -> dict[str, Any]:
    return {"jobSpec": fields}


def mount(network: str | None = NETWORK, **fields: Any) -> dict[str, Any]:
    one = {"server": "10.0.0.2", "path": "/share", "mountPoint": "data", **fields}
    return {"jobSpec": {"network": network, "workerPoolSpecs": {"0": {"nfsMounts": [one]}}}}


def reserved(kind: object, *, base: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    affinity = {"reservationAffinityType": kind, **fields}
    return pool(machineSpec={**(base or {"machineType": "n1-standard-4"}), "reservationAffinity": affinity})


def named(*values: str, key: str = "compute.googleapis.com/reservation-name") -> dict[str, Any]:
    return reserved("SPECIFIC_RESERVATION", key=key, values=list(values))


MACHINE, DISK = ".machine_spec", ".disk_spec.boot_disk_type"
RESERVATION, ELSEWHERE = ".machine_spec.reservation_affinity", "needs to be in the same region as the job"
# The request as a change of a plain one, the field, and the message.
RULES: list[tuple[dict[str, Any], str, str]] = [
    (machine("n2-standard-7"), MACHINE, 'Machine type "n2-standard-7" is not supported.'),
    (machine("a4x-maxgpu-4g-metal"), MACHINE, 'Machine type "a4x-maxgpu-4g-metal" is not supported.'),
    (
        gpu("n1-standard-4", "NVIDIA_TESLA_P100", 1),
        MACHINE,
        'Accelerator "NVIDIA_TESLA_P100" is not supported for machine type "n1-standard-4".',
    ),
    (gpu("n1-standard-4", "NVIDIA_TESLA_T4", 3), MACHINE, "Accelerator count 3 of NVIDIA_TESLA_T4 is not"),
    (
        gpu("n1-standard-4", "NVIDIA_TESLA_T4", None),
        MACHINE,
        "Both `accelerator_type` and `accelerator_count` should be specified or none.",
    ),
    (machine("a2-highgpu-1g"), MACHINE, 'Machine type "a2-highgpu-1g" requires accelerator type NVIDIA_TESLA'),
    (machine("tpu7x-standard-4t", tpuTopology="3x5x7"), MACHINE, "TPU topology '3x5x7' is not supported for"),
    (machine("ct5lp-hightpu-8t", tpuTopology="2x2"), MACHINE, "TPU topology '2x2' is not supported for"),
    (machine("n1-standard-4", tpuTopology="2x2"), MACHINE, "has no TPU topology."),
    (gpu("cloud-tpu", "TPU_V2", 16), MACHINE, "Accelerator count 16 is not supported for TPU_V2; it is 8 or a"),
    (gpu("cloud-tpu", "TPU_V3", 32), MACHINE, "TPU_V3 is not supported in region us-central1."),
    (disk("n1-standard-4", "floppy"), DISK, "Boot disk type 'floppy' is not supported: pd-ssd, pd-standard"),
    (disk("n4-standard-4", "pd-ssd"), DISK, "pd-ssd disk type cannot be used by n4-standard-4 machine type."),
    (disk("n2-standard-4", "hyperdisk-balanced"), DISK, "hyperdisk-balanced disk type cannot be used by n2-stand"),
    (
        pool(machineSpec=H200, diskSpec={"bootDiskType": "pd-ssd"}),
        DISK,
        "pd-ssd disk type cannot be used by a3-ultragpu-8g machine type.",
    ),
    (pool(machineSpec=GB200), RESERVATION, 'Machine type "a4x-highgpu-4g" requires a reservation'),
    (reserved("TYPE_UNSPECIFIED"), RESERVATION, "The reservation affinity type has to be set: NO_RE"),
    (named("projects/p/zones/us-central1-a/reservations/r", key="name"), ".key", "The key of a SPECIFIC_RESERV"),
    (named(), ".values", "A reservation has the form `projects/{project}/zones/{zone}/reservations/{reserv"),
    (named("projects/p/zones/europe-west4-a/reservations/r"), ".values", f"The reservation {ELSEWHERE}, us-central1."),
    (
        patched(reserved("ANY_RESERVATION", base=L4), spec(scheduling={"strategy": "FLEX_START"})),
        RESERVATION,
        "A reservation cannot be used with strategy FLEX_START.",
    ),
    (
        patched(reserved("ANY_RESERVATION"), spec(persistentResourceId="warm")),
        RESERVATION,
        "A reservation cannot be used on a persistent resource.",
    ),
    ({"encryptionSpec": {"kmsKeyName": "key"}}, ".kms_key_name", "The Cloud KMS key has the form `proje"),
    (
        {"encryptionSpec": {"kmsKeyName": f"{EAST}/{KEY}"}},
        ".kms_key_name",
        "The Cloud KMS key needs to be in the same region as the job, us-central1.",
    ),
    (
        spec(tensorboard=f"{P}/{HERE}/tensorboards/1", serviceAccount=None),
        ".service_account",
        "custom_job.job_spec.service_account must be specified when uploading to TensorBoard",
    ),
    (
        spec(tensorboard="123", serviceAccount="a@acme.iam.gserviceaccount.com"),
        ".tensorboard",
        "The tensorboard has the form `projects/{project}/locations/{location}/tensorboards/{tensorboard}`.",
    ),
    (spec(experiment="mine"), ".experiment", "The experiment has the form `projects/{project}/"),
    (spec(experiment=f"{EAST}/metadataStores/default/contexts/mine"), ".experiment", f"The experiment {ELSEWHERE}"),
    (
        spec(persistentResourceId="Warm"),
        ".persistent_resource_id",
        "persistent_resource_id can only contain numbers, lower case letters and hyphens.",
    ),
    (spec(network="default"), ".network", "The network has the form `projects/{project number}/glob"),
    (
        patched(pool(machineSpec=H200), spec(network=NETWORK)),
        ".network",
        "VPC peering is not supported with NVIDIA_H200_141GB; a network attachment (PSC-I) is.",
    ),
    (
        spec(pscInterfaceConfig={"networkAttachment": "regions/us-central1/networkAttachments/a"}),
        ".network_attachment",
        "The network attachment is a name or has the form `projects/{project}/regions/{region}/networkAttachments/{name}",
    ),
    (
        spec(pscInterfaceConfig={"networkAttachment": "projects/acme/regions/us-east1/networkAttachments/a"}),
        ".network_attachment",
        "The network attachment needs to be in the same region as the job",
    ),
    (mount(server="nas.corp"), ".server", "The NFS server is an IP address in your network. Rec"),
    (mount(path="share"), ".path", "The NFS path has to start with '/'. Received: 'share'."),
    (mount(mountPoint="/mnt/x"), ".mount_point", "The mount point is the name of a directory in"),
    (mount(network=None), ".nfs_mounts", "NFS mounts require a network or a psc_interface_config."),
    (
        pool(
            containerSpec=None,
            pythonPackageSpec={
                "executorImageUri": "us-docker.pkg.dev/acme/train/tf:1",
                "packageUris": ["gs://b/t.tar.gz"],
                "pythonModule": "t",
            },
        ),
        ".executor_image_uri",
        "The executor image is a prebuilt container for training",
    ),
]


def answer(raw: dict[str, Any], region: str = HERE) -> list[tuple[str, str]]:
    """The fields and sentences with which the emulator refuses the plain job with a change."""
    body = patched({**PLAIN, "jobSpec": {**PLAIN["jobSpec"], "scheduling": {}}}, raw)
    found = bodies.problems(bodies.parse(json.dumps(body).encode()), region)
    if found:
        refused = invalid(found)
        assert (refused.code, refused.status) == (400, "INVALID_ARGUMENT")
        assert refused.details[0]["fieldViolations"] == [{"field": field, "description": text} for field, text in found]
    return found


def planned(region: str = HERE, **fields: Any) -> list[Finding]:
    options = {"project": "my-project", "bucket": "my-bucket", "image": "a/b:1", "regions": [region]}
    target = sdk.Vertex(**{**options, **fields})
    return of_vertex(sdk.Job("train.py", limits={"timeout_s": 3600.0}), FACTS, target=target)


@pytest.mark.parametrize(("raw", "field", "said"), RULES)
def test_a_plan_reports_the_services_refusal_of_a_request(raw, field: str, said: str) -> None:
    found = [(where, text) for where, text in answer(raw) if where.endswith(field) and said in text]
    assert len(found) == 1, answer(raw)
    where, text = found[0]
    messages = [each.message for each in planned(raw=raw) if each.level == "warning"]
    assert f"Vertex AI would reject the request that raw makes: {where}: {text.rstrip('.')}." in messages


@pytest.mark.parametrize(
    "raw",
    [
        pool(machineSpec={"machineType": "n4-standard-2"}, diskSpec={"bootDiskType": "hyperdisk-balanced"}),
        pool(machineSpec=H200),
        machine("tpu7x-standard-4t", tpuTopology="4x8x8"),
        disk("n4-standard-4", "hyperdisk-balanced"),
        patched(reserved("ANY_RESERVATION", base=GB200), pool(diskSpec={"bootDiskType": "hyperdisk-balanced"})),
        named("projects/other-project/zones/us-central1-ai1a/reservations/mine"),
        {"encryptionSpec": {"kmsKeyName": f"projects/acme.com:keys/locations/{HERE}/{KEY}"}},
        spec(tensorboard=f"projects/12/locations/{HERE}/tensorboards/34", serviceAccount="a@b.iam.gserviceaccount.com"),
        spec(experiment=f"{STORE}/mine", experimentRun=f"{STORE}/mine-1", persistentResourceId="warm-1"),
        spec(network=NETWORK),
        spec(pscInterfaceConfig={"networkAttachment": f"projects/acme/regions/{HERE}/networkAttachments/mine"}),
        mount(),
    ],
    ids=repr,
)
def test_its_near_miss_passes_both(raw: dict[str, Any]) -> None:
    assert answer(raw) == []
    assert [each.message for each in planned(raw=raw) if "would reject" in each.message] == []


# Every field that a rule reads.
FULL = {
    "encryptionSpec": {"kmsKeyName": f"{P}/{HERE}/{KEY}"},
    "jobSpec": {
        "workerPoolSpecs": {"0": {
            "machineSpec": {
                "machineType": "cloud-tpu", "acceleratorType": "TPU_V2", "acceleratorCount": 8, "tpuTopology": "",
                "reservationAffinity": {
                    "reservationAffinityType": "SPECIFIC_RESERVATION",
                    "key": "compute.googleapis.com/reservation-name",
                    "values": ["projects/p/zones/us-central1-a/reservations/r"],
                },
            },
            "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
            "nfsMounts": [{"server": "10.0.0.2", "path": "/share", "mountPoint": "data"}],
            "pythonPackageSpec": {"executorImageUri": "x"},
            "replicaCount": "1",
        }},
        "scheduling": {"strategy": "FLEX_START"}, "network": NETWORK,
        "pscInterfaceConfig": {"networkAttachment": "mine"}, "tensorboard": f"{P}/{HERE}/tensorboards/1",
        "experiment": f"{STORE}/mine", "experimentRun": f"{STORE}/mine-1", "persistentResourceId": "warm",
        "serviceAccount": "a@b.iam.gserviceaccount.com",
    },
}  # fmt: skip


def paths(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, each in value.items() if isinstance(value, dict) else ():
        yield from ((*above, name), *paths(each, (*above, name)))


JSON = any_json(st.floats(), st.just("9" * 5000), leaves=4)


@given(st.lists(st.tuples(st.sampled_from([*paths(FULL)]), JSON), min_size=1, max_size=3))
@example([(("jobSpec", "workerPoolSpecs"), [{"machineSpec": {"machineType": "n1-standard-4"}}])])
@settings(max_examples=150, deadline=None)
def test_any_json_in_any_field_of_a_request_can_be_checked(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    raw: Any = FULL
    for path, value in changes:
        for name in reversed(path):
            value = {name: value}
        raw = patched(raw, value)
    known = {f"persistent_resource@{HERE}": resource()}
    target = sdk.Vertex(raw=raw, persistent_resource="warm", network=NETWORK)
    facts = replace(FACTS, online={"settings": known})
    assert of_vertex(sdk.Job("train.py", resources={"accelerator": "v2-8"}), facts, target=target)


@pytest.mark.parametrize(
    ("fields", "raw"),
    [
        ({"tensorboard": f"{P}/{HERE}/tensorboards/1"}, spec(serviceAccount="abc@p-123456.iam.gserviceaccount.com")),
        ({"kms_key": f"{EAST}/{KEY}"}, {"encryptionSpec": {"kmsKeyName": f"{P}/{HERE}/{KEY}"}}),
    ],
)
def test_a_setting_that_raw_completes_or_corrects_is_no_mistake(fields: dict[str, Any], raw: dict[str, Any]) -> None:
    assert [each.message for each in planned(**fields) if each.level == "error"]
    assert [each.message for each in planned(**fields, raw=raw) if each.level == "error"] == []


@pytest.mark.parametrize("accelerator", ["cpu", "rtx-pro-6000", "h200:8", "b200:8", "gb200:4", "l4"])
def test_a_job_boots_from_a_disk_that_its_machine_can_boot_from(accelerator: str) -> None:
    machine = "n4-standard-4" if accelerator == "cpu" else None
    made = job_body.body(sdk.Vertex(machine=machine), sdk.Resources(accelerator=accelerator))
    assert [text for field, text in job_rules.problems(made, HERE) if field.endswith(DISK)] == []
    (_, pool), *_ = job_rules.pools(made)
    assert ("bootDiskType" in pool["diskSpec"]) == (accelerator not in ("h200:8", "l4"))


def test_a_regions_persistent_resource_is_compared_with_the_machines_of_its_places() -> None:
    known = {
        f"persistent_resource@{HERE}": resource(),
        "persistent_resource@us-east1": resource(machineSpec=L4),
        "persistent_resource@us-west1": resource(),
    }
    target = sdk.Vertex(persistent_resource="warm", regions=[HERE, "us-east1::l4", "us-west1::l4"])
    found = of_vertex(sdk.Job("train.py"), replace(FACTS, online={"settings": known}), target=target)
    fits, lacks = ([f"in {each} {said}" for each in regions] for said, regions in (
        ("has the machines", (HERE, "us-east1")), ("has no pool for g2-standard-4 with 1 NVIDIA_L4", ("us-west1",))
    ))  # fmt: skip
    said = [each.message for each in found if "The persistent resource 'warm' in" in each.message]
    assert len(said) == 3
    assert all(any(part in each for each in said) for part in (*fits, *lacks)), said


def test_a_region_that_does_not_exist_is_refused_by_both() -> None:
    ((field, text),) = job_rules.location("mars-west1")
    assert field == "parent"
    assert text.startswith("The provided location ID doesn't match the endpoint. Received: 'mars-west1'")
    assert any("Vertex AI has no region 'mars-west1'" in each.message for each in planned("mars-west1"))


@pytest.mark.parametrize(
    ("fields", "said", "nearest"),
    [
        (
            {"kms_key": f"{P}/europe-west4/{KEY}"},
            "vertex_kms_key: The Cloud KMS key needs to be in the same region as the job, us-central1.",
            "vertex_regions=['europe-west4']",
        ),
        ({"kms_key": "key"}, "vertex_kms_key: The Cloud KMS key has the form", "gcloud kms keys list"),
        ({"network": "default"}, "vertex_network: The network has the form", "networkAttachments/NAME"),
        (
            {"network": "projects/acme/regions/us-east1/networkAttachments/a"},
            "vertex_network: The network attachment needs to be in the same region",
            "vertex_regions=['us-east1']",
        ),
        (
            {"tensorboard": f"{P}/{HERE}/tensorboards/1"},
            "vertex_tensorboard: custom_job.job_spec.service_account must be specified when uploading to TensorBoard",
            "vertex_service_account=NAME@PROJECT.iam.gserviceaccount.com",
        ),
        ({"tensorboard": "1"}, "vertex_tensorboard: The tensorboard has the form", "gcloud ai tensorboards list"),
        (
            {"persistent_resource": "Warm"},
            "vertex_persistent_resource: persistent_resource_id can only",
            "gcloud ai pers",
        ),
    ],
)
def test_a_setting_that_names_another_resource_is_checked_in_a_plan(fields, said: str, nearest: str) -> None:
    refused = [each.message for each in planned(**fields) if each.level == "error" and said in each.message]
    assert len(refused) == 1 and nearest in refused[0], planned(**fields)


def test_a_persistent_resource_is_said_to_be_billed_until_it_is_deleted() -> None:
    (said,) = [each.message for each in planned(persistent_resource="warm") if "warm" in each.message]
    assert "billed until it is deleted, busy or not" in said
    assert "gcloud ai persistent-resources delete warm --region=REGION" in said
    two = [each.message for each in planned(persistent_resource="warm", regions=["us-central1", "us-east1"])]
    assert "Each of us-central1 and us-east1 needs its own persistent resource 'warm'." in two


def exists(**about: Any) -> dict[str, Any]:
    return {"exists": True, "error": "", "about": about}


def resource(state: str = "RUNNING", **pool: Any) -> dict[str, Any]:
    fields = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1", **pool}
    disk = {"diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100}}
    return exists(state=state, resourcePools=[{**disk, **fields}])


FITS, LACKS = "has the machines and disks of the job.", "has no pool for n1-standard-4, pd-ssd of 100 GB x 1."
GONE = "vertex_persistent_resource: there is no 'warm' in us-central1 (404: not found). Next: gcloud ai persistent"
EIGHT, SLOW = {"machineType": "n1-standard-8"}, {"bootDiskType": "pd-standard", "bootDiskSizeGb": 100}
WARM = f"persistent_resource@{HERE}"


@pytest.mark.parametrize(
    ("known", "level", "said"),
    [
        ({WARM: resource()}, "note", FITS),
        ({WARM: resource(autoscalingSpec={"maxReplicaCount": "4"})}, "note", FITS),
        ({WARM: resource("PROVISIONING")}, "warning", "is PROVISIONING, not RUNNING"),
        ({WARM: resource(machineSpec=EIGHT)}, "error", f"{LACKS} It has n1-standard-8, pd-ssd of 100 GB x 1."),
        ({WARM: resource(diskSpec=SLOW)}, "error", f"{LACKS} It has n1-standard-4, pd-standard of 100 GB x 1."),
        ({WARM: resource(replicaCount="0")}, "error", LACKS),
        ({WARM: {"exists": False, "error": "404: not found", "about": {}}}, "error", GONE),
        ({"kms_key": exists(purpose="ASYMMETRIC_SIGN")}, "error", "cannot encrypt: its purpose is ASYMMETRIC_SIGN"),
        (
            {"kms_key": exists(purpose="ENCRYPT_DECRYPT", primary={"state": "DISABLED"})},
            "error",
            "its primary version is DISABLED",
        ),
        ({"tensorboard": exists()}, "note", "vertex_tensorboard exists."),
        ({"network": {"exists": None, "error": "403: no", "about": {}}}, "note", "vertex_network was not checked: 403"),
    ],
)
def test_the_clouds_answer_about_a_named_resource_is_compared_with_the_job(known, level: str, said: str) -> None:
    facts = Facts(**{**FACTS.__dict__, "online": {"settings": known}})
    named = {"persistent_resource": "warm", "kms_key": f"{P}/{HERE}/{KEY}", "network": NETWORK}
    target = sdk.Vertex(
        **named, tensorboard=f"{P}/{HERE}/tensorboards/1", service_account="a-b@c.iam.gserviceaccount.com"
    )
    found = of_vertex(sdk.Job("train.py"), facts, target=target)
    assert [each.level for each in found if said in each.message] == [level], [each.message for each in found]
