"""Rules of Vertex AI about custom jobs.

Sources: custom_job.proto, machine_resources.proto and env_var.proto of aiplatform v1; the pages configure-compute,
distributed-training, training-with-tpu-vm, schedule-jobs-dws, use-spot-vms, custom-service-account and locations; the issues
885 and 1073 of python-aiplatform (all read 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rule import PLACE, PROJECT, REGION, Rule, Sent, bucket, lacking

from sdk.emulator.project.state import CALLER, account_name, agents
from sdk.emulator.vertex.environment import project_number

IMAGE = "us-central1-docker.pkg.dev/acme/train/image:1"
# The prebuilt ones for TensorFlow are all retired.
EXECUTOR = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest"
REPOSITORY = "//artifactregistry.googleapis.com/projects/acme/locations/us-central1/repositories/train"
ACCOUNT = "trainer@acme.iam.gserviceaccount.com"
CONTAINER = {"imageUri": IMAGE, "command": ["python3"]}
N1: dict[str, Any] = {"machineType": "n1-standard-4"}
JOBS = f"/v1/{PLACE}/customJobs"


def pool(count: object = "1", **more: Any) -> dict[str, Any]:
    return {"machineSpec": N1, "replicaCount": count, "containerSpec": CONTAINER, **more}


def job(*pools: dict[str, Any], given: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"displayName": "digits", **(given or {}), "jobSpec": {"workerPoolSpecs": list(pools) or [pool()], **spec}}


def create(says: str, body: Any, code: int = 200, part: str = "", **more: Any) -> Rule:
    region = more.pop("region", REGION)
    return Rule(
        says=says, path=f"/v1/projects/{PROJECT}/locations/{region}/customJobs", body=body, code=code, part=part, **more
    )


def names_and_labels() -> Iterator[Rule]:
    yield create("a job needs a display name", job(given={"displayName": ""}), 400, "display_name")
    yield create("a display name has 128 characters", job(given={"displayName": "x" * 128}))
    yield create("a display name has no 129 characters", job(given={"displayName": "x" * 129}), 400, "128 are allowed")
    for says, labels, code in (
        ("a label's key has 64 characters", {"k" * 64: "v"}, 200),
        ("a label's key has no 65 characters", {"k" * 65: "v"}, 400),
        ("a label's value has 64 characters", {"k": "v" * 64}, 200),
        ("a label's value has no 65 characters", {"k": "v" * 65}, 400),
        ("a label's value may be empty", {"k": ""}, 200),
        ("a label's key is not empty", {"": "v"}, 400),
        ("a label's key has no capitals", {"Key": "v"}, 400),
        ("a label's value has no capitals", {"k": "Value"}, 400),
        ("a label has no spaces", {"k": "a b"}, 400),
        ("a label has no dots", {"k": "a.b"}, 400),
        ("labels have letters of all alphabets", {"größe": "小"}, 200),
        ("labels have digits, dashes and underscores", {"k_1-2": "v_1-2"}, 200),
        ("a job has 64 labels", {f"k{number}": "" for number in range(64)}, 200),
        ("a job has no 65 labels", {f"k{number}": "" for number in range(65)}, 400),
    ):
        yield create(says, job(given={"labels": labels}), code, "label" if code == 400 else "")


def pools() -> Iterator[Rule]:
    where = "job_spec.worker_pool_specs"
    yield create("a job needs a worker pool", {"displayName": "x", "jobSpec": {}}, 400, where)
    yield create("a job has four pools", job(pool(), pool("2"), pool(), pool()))
    yield create("a job has no fifth pool", job(*[pool()] * 5), 400, "There are 5 worker pools; 4 are allowed")
    yield create("the chief is alone", job(pool("2")), 400, "of the first worker pool has to be 1")
    yield create("the first pool has a replica", job(pool("0")), 400, "replica_count")
    yield create("the first pool is not empty", job({}, pool()), 400, "[0]")
    yield create("a pool without tasks is an empty object", job(pool(), {}, pool()))
    yield create("workers have a positive count", job(pool(), pool("0")), 400, "1 or more. Received: 0")
    yield create("a count is not negative", job(pool(), pool("-1")), 400, "1 or more. Received: -1")
    yield create("a count is a whole number", job(pool("1.5")), 400, "TYPE_INT64")
    yield create("int64 is written as text", job(pool(), pool("3")), part='"replicaCount":"3"')
    yield create("int64 is read as a number", job(pool(1)), part='"replicaCount":"1"')
    yield create("a pool has a task", job({"machineSpec": N1, "replicaCount": "1"}), 400, "One of container_spec")
    both = {"executorImageUri": EXECUTOR, "packageUris": ["gs://b-b/x.tar.gz"], "pythonModule": "m"}
    yield create(
        "a pool has one task only", job(pool(pythonPackageSpec=both)), 400, "oneof field 'task' is already set"
    )
    yield create("a container has an image", job(pool(containerSpec={"args": ["x"]})), 400, "image_uri")
    yield create("a pool has a machine", job(pool(machineSpec={})), 400, "machine_type")


def packages() -> Iterator[Rule]:
    right = {"executorImageUri": EXECUTOR, "packageUris": ["gs://mine/x.tar.gz"], "pythonModule": "trainer"}

    def packaged(**changes: Any) -> dict[str, Any]:
        return job({"machineSpec": N1, "replicaCount": "1", "pythonPackageSpec": {**right, **changes}})

    yield create("a package is run by an executor image", packaged())
    for field, name in (("executorImageUri", "executor_image_uri"), ("pythonModule", "python_module")):
        yield create(f"a package needs {name}", packaged(**{field: ""}), 400, f"Required field is not set: {name}")
    yield create("a package needs package_uris", packaged(packageUris=[]), 400, "package_uris")
    yield create("a job has 100 packages", packaged(packageUris=["gs://mine/x.tar.gz"] * 100))
    yield create("a job has no 101 packages", packaged(packageUris=["gs://mine/x.tar.gz"] * 101), 400, "At most 100")
    for uri in ("x.tar.gz", "https://host/x.tar.gz", "gs://mine", "gs://mine/folder/", "/gcs/mine/x.tar.gz"):
        yield create(
            f"{uri} is no package in a bucket", packaged(packageUris=[uri]), 400, "A package is a Cloud Storage URI"
        )


def variables() -> Iterator[Rule]:
    def env(*names: str) -> dict[str, Any]:
        return job(pool(containerSpec={**CONTAINER, "env": [{"name": each, "value": "v"} for each in names]}))

    yield create("a container has 100 variables", env(*[f"V{number}" for number in range(100)]))
    yield create(
        "a container has no 101 variables", env(*[f"V{number}" for number in range(101)]), 400, "100 are allowed"
    )
    for good in ("_", "a1", "A_B"):
        yield create(f"{good} is a name of a variable", env(good))
    for bad in ("", "1A", "A-B", "A B", "A.B", "Ä"):
        yield create(f"{bad!r} is no C identifier", env(bad), 400, "C identifier")
    value = job(pool(containerSpec={**CONTAINER, "env": [{"name": "A", "value": 1}]}))
    yield create("a variable's value is a string", value, 400, "TYPE_STRING")
    secret = job(pool(containerSpec={**CONTAINER, "env": [{"name": "A", "valueFrom": {}}]}))
    yield create("a variable has no reference to a secret", secret, 400, 'Unknown name \\"valueFrom\\"')


def machine(kind: str, accelerator: str = "", count: int = 0, topology: str = "") -> dict[str, Any]:
    given = {"machineType": kind, "acceleratorType": accelerator, "acceleratorCount": count, "tpuTopology": topology}
    return {name: value for name, value in given.items() if value}


def cpus() -> Iterator[Rule]:
    offered = (
        *("e2-standard-4", "e2-standard-32", "e2-highmem-2", "e2-highmem-16", "e2-highcpu-16", "e2-highcpu-32"),
        *("n1-standard-4", "n1-standard-96", "n1-highmem-2", "n1-highmem-96", "n1-highcpu-16", "n1-highcpu-96"),
        *("n2-standard-4", "c2-standard-4", "c2-standard-30", "c2-standard-60"),
    )
    for kind in offered:
        yield create(f"{kind} trains", job(pool(machineSpec=machine(kind))))
    hyperdisk = {"bootDiskType": "hyperdisk-balanced"}
    yield create("n4-standard-4 trains", job(pool(machineSpec=machine("n4-standard-4"), diskSpec=hyperdisk)))
    missing = (
        *(
            "n1-standard-1",
            "n1-standard-2",
            "n1-standard-5",
            "n1-highcpu-8",
            "n1-ultramem-40",
            "e2-micro",
            "e2-standard-2",
        ),
        *(
            "e2-highmem-32",
            "e2-highcpu-8",
            "c2-standard-31",
            "c3-standard-4",
            "t2d-standard-4",
            "standard_gpu",
            "N1-STANDARD-4",
        ),
    )
    for kind in missing:
        yield create(
            f"{kind} does not train", job(pool(machineSpec=machine(kind))), 400, f'"{kind}'.replace('"', '\\"')
        )


def gpus() -> Iterator[Rule]:
    fits = (
        ("n1-standard-4", "NVIDIA_TESLA_T4", 1),
        ("n1-standard-4", "NVIDIA_TESLA_T4", 4),
        ("n1-highmem-2", "NVIDIA_TESLA_P4", 1),
        ("n1-standard-8", "NVIDIA_TESLA_V100", 8),
        ("n1-standard-16", "NVIDIA_TESLA_V100", 2),
        ("n1-standard-32", "NVIDIA_TESLA_T4", 2),
        ("n1-standard-64", "NVIDIA_TESLA_T4", 4),
        ("n1-standard-96", "NVIDIA_TESLA_V100", 8),
        ("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1),
        ("a2-highgpu-8g", "NVIDIA_TESLA_A100", 8),
        ("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16),
        ("a2-ultragpu-4g", "NVIDIA_A100_80GB", 4),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8),
        ("a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB", 8),
        ("g2-standard-4", "NVIDIA_L4", 1),
        ("g2-standard-24", "NVIDIA_L4", 2),
        ("g2-standard-48", "NVIDIA_L4", 4),
        ("g2-standard-96", "NVIDIA_L4", 8),
    )
    for kind, accelerator, count in fits:
        yield create(f"{kind} has {count} {accelerator}", job(pool(machineSpec=machine(kind, accelerator, count))))
    wrong = (
        ("n1-standard-4", "NVIDIA_TESLA_T4", 3),
        ("n1-standard-4", "NVIDIA_TESLA_T4", 8),
        ("n1-standard-16", "NVIDIA_TESLA_V100", 1),
        ("n1-standard-32", "NVIDIA_TESLA_T4", 1),
        ("n1-standard-64", "NVIDIA_TESLA_V100", 4),
        ("n1-standard-96", "NVIDIA_TESLA_T4", 2),
        ("a2-highgpu-1g", "NVIDIA_TESLA_A100", 2),
        ("a2-highgpu-2g", "NVIDIA_TESLA_A100", 1),
        ("a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB", 4),
        ("g2-standard-24", "NVIDIA_L4", 1),
        ("g2-standard-4", "NVIDIA_L4", 2),
    )
    for kind, accelerator, count in wrong:
        spec = pool(machineSpec=machine(kind, accelerator, count))
        yield create(
            f"{kind} has no {count} {accelerator}", job(spec), 400, f"Accelerator count {count} of {accelerator}"
        )
    apart = (
        ("e2-standard-4", "NVIDIA_TESLA_T4", 1),
        ("n2-standard-4", "NVIDIA_TESLA_T4", 1),
        ("a2-highgpu-1g", "NVIDIA_A100_80GB", 1),
        ("a2-ultragpu-1g", "NVIDIA_TESLA_A100", 1),
        ("a3-highgpu-8g", "NVIDIA_H100_MEGA_80GB", 8),
        ("n1-standard-4", "NVIDIA_L4", 1),
        ("n1-standard-4", "NVIDIA_TESLA_K80", 1),
    )
    for kind, accelerator, count in apart:
        spec = pool(machineSpec=machine(kind, accelerator, count))
        yield create(f"{kind} has no {accelerator}", job(spec), 400, accelerator, name="INVALID_ARGUMENT")
    for kind in ("a2-highgpu-1g", "a3-highgpu-8g", "g2-standard-4"):
        yield create(
            f"{kind} names its accelerator", job(pool(machineSpec=machine(kind))), 400, "requires accelerator type"
        )
    counted = pool(machineSpec={**N1, "acceleratorCount": 1})
    yield create("a count needs a type of accelerator", job(counted), 400, "machine_spec")
    typed = pool(machineSpec={**N1, "acceleratorType": "NVIDIA_TESLA_T4"})
    yield create("a type of accelerator needs a count", job(typed), 400, "machine_spec")
    unknown = pool(machineSpec={**N1, "acceleratorType": "NVIDIA_T4", "acceleratorCount": 1})
    yield create("an accelerator is one of the enum", job(unknown), 400, "AcceleratorType")
    v100 = job(pool(machineSpec=machine("n1-standard-8", "NVIDIA_TESLA_V100", 1)))
    for region in ("us-east1", "us-west1", "europe-west4", "asia-east1"):
        yield create(f"V100 are in {region}", v100, region=region)
    yield create("V100 are not in us-east4", v100, 400, "is not supported in region us-east4", region="us-east4")


def tpus() -> Iterator[Rule]:
    v2, v3 = machine("cloud-tpu", "TPU_V2", 8), machine("cloud-tpu", "TPU_V3", 8)
    v5e = machine("ct5lp-hightpu-4t", topology="2x2")
    for says, spec, code, part, region in (
        ("a v2 has 8 cores", v2, 200, "", REGION),
        ("a v3 has 8 cores", v3, 200, "", REGION),
        ("a pod of v2 has multiples of 32 cores", {**v2, "acceleratorCount": 32}, 200, "", REGION),
        ("a v2 has no 4 cores", {**v2, "acceleratorCount": 4}, 400, "Accelerator count 4", REGION),
        ("a pod of v3 has no 40 cores", {**v3, "acceleratorCount": 40}, 400, "Accelerator count 40", REGION),
        ("a v2 has no topology", {**v2, "tpuTopology": "2x2"}, 400, "has no TPU topology", REGION),
        (
            "cloud-tpu names its generation",
            machine("cloud-tpu"),
            400,
            "requires accelerator type TPU_V2 or TPU_V3",
            REGION,
        ),
        ("v2 is in europe-west4", v2, 200, "", "europe-west4"),
        ("v2 is in asia-east1", v2, 200, "", "asia-east1"),
        ("v3 is not in asia-east1", v3, 400, "region asia-east1", "asia-east1"),
        ("v2 is not in us-east1", v2, 400, "region us-east1", "us-east1"),
        ("a v5e has a topology", v5e, 200, "", REGION),
        ("a v5e of one chip is 1x1", machine("ct5lp-hightpu-1t", topology="1x1"), 200, "", REGION),
        ("a v5e of eight chips is 2x4", machine("ct5lp-hightpu-8t", topology="2x4"), 200, "", REGION),
        ("a v5e of 256 chips is 16x16", machine("ct5lp-hightpu-4t", topology="16x16"), 200, "", REGION),
        ("a v5e is not 3x3", machine("ct5lp-hightpu-4t", topology="3x3"), 400, "TPU topology '3x3'", REGION),
        ("one chip is not 2x2", machine("ct5lp-hightpu-1t", topology="2x2"), 400, "TPU topology '2x2'", REGION),
        ("a v5e without a topology is none", machine("ct5lp-hightpu-4t"), 400, "TPU topology ''", REGION),
        (
            "a v5e has no type of accelerator",
            {**v5e, "acceleratorType": "TPU_V5_LITEPOD", "acceleratorCount": 4},
            400,
            "no accelerator type",
            REGION,
        ),
        ("v5e trains in us-west4", v5e, 200, "", "us-west4"),
        ("v5e does not train in europe-west4", v5e, 400, "region europe-west4", "europe-west4"),
        ("v5e does not train in us-south1", v5e, 400, "region us-south1", "us-south1"),
        ("a machine without TPUs has no topology", {**N1, "tpuTopology": "2x2"}, 400, "has no TPU topology", REGION),
    ):
        yield create(says, job(pool(machineSpec=spec)), code, part, region=region)
    one = "exactly one worker pool with a replica count of 1"
    yield create("a TPU job has one pool", job(pool(machineSpec=v5e), pool()), 400, one)
    yield create("a TPU job has no workers with TPUs", job(pool(), pool("2", machineSpec=v5e)), 400, one)
    pod = machine("ct5lp-hightpu-4t", topology="4x4")
    spot, flex = {"strategy": "SPOT"}, {"strategy": "FLEX_START"}
    yield create("a single TPU machine may be a spot machine", job(pool(machineSpec=v5e), scheduling=spot))
    yield create("TPU pods are no spot machines", job(pool(machineSpec=pod), scheduling=spot), 400, "with TPU Pods")
    yield create("TPUs have no flex start", job(pool(machineSpec=v5e), scheduling=flex), 400, "not supported with TPUs")


def scheduling() -> Iterator[Rule]:
    a100 = pool(machineSpec=machine("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1))
    t4 = pool(machineSpec=machine("n1-standard-4", "NVIDIA_TESLA_T4", 1))
    flex = {"strategy": "FLEX_START"}
    for says, pools_, given, code, part in (
        ("a timeout is a duration", [pool()], {"timeout": "3600s"}, 200, ""),
        ("a timeout has fractions", [pool()], {"timeout": "1.5s"}, 200, ""),
        ("a timeout is not zero", [pool()], {"timeout": "0s"}, 400, "timeout"),
        ("a timeout is not negative", [pool()], {"timeout": "-1s"}, 400, "timeout"),
        ("a duration ends in s", [pool()], {"timeout": "1h"}, 400, "Duration"),
        ("a duration is no number", [pool()], {"timeout": 3600}, 400, "Duration"),
        ("0 waits without a limit", [a100], {**flex, "maxWaitDuration": "0s"}, 200, ""),
        ("a wait is not negative", [a100], {**flex, "maxWaitDuration": "-1s"}, 400, "max_wait_duration"),
        ("a strategy is a name", [pool()], {"strategy": "SPOT"}, 200, ""),
        ("a strategy is a number", [pool()], {"strategy": 4}, 200, ""),
        ("a strategy is one of the enum", [pool()], {"strategy": "PREEMPTIBLE"}, 400, "Strategy"),
        ("strategy 5 does not exist", [pool()], {"strategy": 5}, 400, "Strategy"),
        ("A100 have flex start", [a100], flex, 200, ""),
        ("T4 have no flex start", [t4], flex, 400, "not supported with accelerator NVIDIA_TESLA_T4"),
        ("CPUs have no flex start", [pool()], flex, 400, "not supported with accelerator none"),
        ("flex start takes one kind of machines", [a100, pool()], flex, 400, "the same machine in all worker pools"),
        ("flex start takes 7 days", [a100], {**flex, "timeout": "604800s"}, 200, ""),
        ("flex start takes no 8 days", [a100], {**flex, "timeout": "691200s"}, 400, "7 days at most"),
        ("a job may restart with its workers", [pool(), pool()], {"restartJobOnWorkerRestart": True}, 200, ""),
        ("a switch is true or false", [pool()], {"disableRetries": "yes"}, 400, "TYPE_BOOL"),
    ):
        yield create(says, job(*pools_, scheduling=given), code, part)
    for size, code in ((99, 400), (100, 200), (64_000, 200), (64_001, 400)):
        disk = pool(diskSpec={"bootDiskSizeGb": size})
        yield create(f"a boot disk of {size} GB", job(disk), code, "from 100 to 64000" if code == 400 else "")
    for kind, code in (("pd-ssd", 200), ("pd-standard", 200), ("pd-extreme", 400), ("local-ssd", 400)):
        disk = pool(diskSpec={"bootDiskType": kind, "bootDiskSizeGb": 100})
        yield create(f"a boot disk {kind}", job(disk), code, "is not supported" if code == 400 else "")


def places() -> Iterator[Rule]:
    def output(uri: str) -> dict[str, Any]:
        return job(baseOutputDirectory={"outputUriPrefix": uri})

    here, regional = [bucket("mine")], "It must be in the same regional location as the service location `us-central1`"
    yield create(
        "an output directory is in the job's region", output("gs://mine/run"), part="gs://mine/run/", before=here
    )
    yield create("an output directory may be a whole bucket", output("gs://mine"), part="gs://mine/", before=here)
    yield create("an output directory is in a bucket", output("/gcs/mine/run"), 400, "a Cloud Storage URI")
    yield create("an output directory has a URI", job(baseOutputDirectory={}), 400, "a Cloud Storage URI")
    yield create("the bucket of an output directory exists", output("gs://none/x"), 400, "does not exist")
    elsewhere: tuple[tuple[str, Sent, str], ...] = (
        ("another region", bucket("other", "europe-west4"), "`europe-west4`"),
        ("a multi-region", bucket("other", "US"), "`us`"),
        ("a pair of regions", bucket("other", "NAM4"), "`nam4`"),
        (
            "a pair of one's own",
            bucket("other", "US", customPlacementConfig={"dataLocations": ["US-CENTRAL1", "US-EAST1"]}),
            "`us`",
        ),
    )
    for what, made, place in elsewhere:
        says = f"an output directory is not in {what}"
        part = f"`gs://other/run` is in location {place}. {regional}"
        yield create(says, output("gs://other/run"), 400, part, before=[made], name="FAILED_PRECONDITION")
    package = {"executorImageUri": EXECUTOR, "packageUris": ["gs://other/x.tar.gz"], "pythonModule": "m"}
    packaged = job({"machineSpec": N1, "replicaCount": "1", "pythonPackageSpec": package})
    staged = [bucket("other", "EU")]
    yield create(
        "a package is staged in the job's region",
        packaged,
        400,
        "is in location `eu`",
        before=staged,
        name="FAILED_PRECONDITION",
    )
    for network, code in (
        ("projects/12/global/networks/net", 200),
        ("projects/acme/global/networks/net", 400),
        ("net", 400),
    ):
        yield create(f"{network} is a network: {code}", job(network=network), code, "network" if code == 400 else "")


def accounts_and_images() -> Iterator[Rule]:
    may_not = f"You do not have permission to act as service_account: {ACCOUNT}. (or it may not exist)."
    used = job(serviceAccount=ACCOUNT)
    yield create("a job runs as an account", used)
    yield create("an account is an email address", job(serviceAccount="trainer"), 400, "Not the email address")
    yield create("an account exists", used, 400, may_not, before=[lacking(absent=[account_name(ACCOUNT)])])
    withheld = {
        "member": f"user:{CALLER}",
        "resource": account_name(ACCOUNT),
        "role": "roles/iam.serviceAccountUser",
        "permissions": ["iam.serviceAccounts.actAs"],
    }
    yield create("the caller may act as the account", used, 400, may_not, before=[lacking(withheld=[withheld])])
    board = f"projects/{PROJECT}/locations/{REGION}/tensorboards/1"
    yield create("a TensorBoard needs an account", job(tensorboard=board), 400, "job_spec.service_account")
    yield create("a TensorBoard with an account", job(tensorboard=board, serviceAccount=ACCOUNT))
    gone = f"Image {IMAGE} was not found."
    yield create("the repository of an image exists", job(), 400, gone, before=[lacking(absent=[REPOSITORY])])
    agent = agents(project_number(PROJECT))[0]
    pulls = {
        "member": f"serviceAccount:{agent}",
        "resource": REPOSITORY,
        "role": "roles/artifactregistry.reader",
        "permissions": ["artifactregistry.repositories.downloadArtifacts"],
    }
    part = f"{agent} does not have permission to access Artifact Registry repository projects/acme"
    yield create("Vertex AI's agent may pull the image", job(), 403, part, before=[lacking(withheld=[pulls])])
    yield create("the agents are made by the first job", job(), before=[lacking(absent=[account_name(agent)])])
    built = f"us-central1-docker.pkg.dev/acme/train/cpu:emulated@sha256:{'0' * 64}"
    missing = job(pool(containerSpec={"imageUri": built}))
    yield create("an image that an emulator named was built in it", missing, 400, f"Image {built} was not found")
    for image in (
        "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest",
        "gcr.io/cloud-aiplatform/training/tf-gpu.2-8",
    ):
        old = job(pool(containerSpec={"imageUri": image}))
        yield create(f"{image} is retired", old, 400, "past its end of availability")


def the_api() -> Iterator[Rule]:
    yield create("an unknown field is refused", job(given={"displayNme": "x"}), 400, 'Unknown name \\"displayNme\\"')
    snake = {"display_name": "x", "job_spec": {"worker_pool_specs": [pool()]}}
    yield create("fields are read in the spelling of the proto", snake)
    yield create("a field is given once", {**job(), "display_name": "x"}, 400, "twice")
    yield create("a field has its type", job(given={"labels": ["x"]}), 400, "labels")
    yield create("a null is no value", job(given={"labels": None}))
    yield create("what the service sets is ignored", job(given={"state": "JOB_STATE_SUCCEEDED"}), part="JOB_STATE_")
    unknown = "The provided location ID doesn't match the endpoint."
    for region in ("us", "us-central1-a", "mars-west1"):
        yield create(f"{region} is no region of Vertex AI", job(), 400, unknown, region=region)
    for says, method, path, body, code, part in (
        ("a job that is not there", "GET", f"{JOBS}/1", None, 404, "does not exist"),
        ("a cancel of a job that is not there", "POST", f"{JOBS}/1:cancel", {}, 404, "does not exist"),
        ("a delete of a job that is not there", "DELETE", f"{JOBS}/1", None, 404, "does not exist"),
        ("a cancel has no fields", "POST", f"{JOBS}/1:cancel", {"force": True}, 400, "Unknown name"),
        ("custom jobs are not changed", "PATCH", f"{JOBS}/1", {}, 405, "does not serve"),
        ("jobs are listed in a region", "GET", JOBS.replace(REGION, "mars-west1"), None, 400, unknown),
        ("a list takes pages", "GET", f"{JOBS}?pageSize=2", None, 200, ""),
        ("a page has a size", "GET", f"{JOBS}?pageSize=x", None, 400, "page"),
        ("a page size is not negative", "GET", f"{JOBS}?pageSize=-1", None, 400, "page"),
        ("a page token is one of a list", "GET", f"{JOBS}?pageToken=x", None, 400, "token"),
        ("a list has no parameter pagesize", "GET", f"{JOBS}?pagesize=1", None, 400, "Cannot bind query parameter"),
        ("custom jobs have no order", "GET", f"{JOBS}?orderBy=createTime", None, 400, "Cannot bind query parameter"),
        ("a filter has a field", "GET", f'{JOBS}?filter=display_name="x"', None, 200, ""),
        ("a filter knows its fields", "GET", f'{JOBS}?filter=colour="x"', None, 400, "filter"),
        ("a filter is complete", "GET", f"{JOBS}?filter=state%3D", None, 400, "filter"),
        ("endpoints are not served", "GET", f"/v1/{PLACE}/endpoints", None, 405, "does not serve"),
        (
            "hyperparameter tuning is not served",
            "POST",
            f"/v1/{PLACE}/hyperparameterTuningJobs",
            {},
            405,
            "does not serve",
        ),
        ("v1beta1 is not served", "GET", f"/v1beta1/{PLACE}/customJobs", None, 405, "does not serve"),
    ):
        yield Rule(says=says, method=method, path=path, body=body, code=code, part=part)
    binary = {"Content-Type": "application/octet-stream"}
    yield Rule(says="a body is JSON", path=JOBS, data=b"{}", headers=binary, code=400, part="is JSON")
    yield Rule(says="a body is an object", path=JOBS, data=b"[]", code=400, part="custom_job")
    yield Rule(says="a body can be parsed", path=JOBS, data=b"{", code=400, part="Invalid JSON payload")


RULES = [
    *names_and_labels(), *pools(), *packages(), *variables(), *cpus(), *gpus(), *tpus(), *scheduling(), *places(),
    *accounts_and_images(), *the_api(),
]  # fmt: skip
