"""Rules of Vertex AI about custom jobs.

Sources: custom_job.proto, machine_resources.proto and env_var.proto of aiplatform v1; the pages configure-compute,
distributed-training, training-with-tpu-vm, schedule-jobs-dws, use-spot-vms, custom-service-account and locations; the issues
885 and 1073 of python-aiplatform (all read 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from rule import PLACE, PROJECT, REGION, Rule, bucket, lacking

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


def taken(says: str, body: Any, part: str = "", *, region: str = REGION, **more: Any) -> Rule:
    return Rule(says=says, path=f"/v1/projects/{PROJECT}/locations/{region}/customJobs", body=body, part=part, **more)


def refused(says: str, body: Any, part: str, *, code: int = 400, **more: Any) -> Rule:
    return taken(says, body, part, code=code, **more)


def names_and_labels() -> Iterator[Rule]:
    yield refused("a job needs a display name", job(given={"displayName": ""}), "display_name")
    yield taken("a display name has 128 characters", job(given={"displayName": "x" * 128}))
    yield refused("a display name has no 129 characters", job(given={"displayName": "x" * 129}), "128 are allowed")
    for says, labels in (
        ("a label's key and value have 64 characters", {"k" * 64: "v" * 64, "empty": ""}),
        ("labels have letters of all alphabets, digits, dashes and underscores", {"größe_1-2": "小_1-2"}),
        ("a job has 64 labels", {f"k{number}": "" for number in range(64)}),
    ):
        yield taken(says, job(given={"labels": labels}))
    for says, labels in (
        ("a label's key has no 65 characters", {"k" * 65: "v"}),
        ("a label's value has no 65 characters", {"k": "v" * 65}),
        ("a label's key is not empty", {"": "v"}),
        ("a label's key has no capitals", {"Key": "v"}),
        ("a label's value is text", {"k": ["v"]}),
        ("a job has no 65 labels", {f"k{number}": "" for number in range(65)}),
    ):
        yield refused(says, job(given={"labels": labels}), "label")


def pools() -> Iterator[Rule]:
    where = "job_spec.worker_pool_specs"
    yield refused("a job needs a worker pool", {"displayName": "x", "jobSpec": {}}, where)
    yield taken("a job has four pools", job(pool(), pool("2"), {}, pool()))
    yield refused("a job has no fifth pool", job(*[pool()] * 5), "There are 5 worker pools; 4 are allowed")
    yield refused("the chief is alone", job(pool("2")), "of the first worker pool has to be 1")
    yield refused("the first pool has a replica", job(pool("0")), "replica_count")
    yield refused("the first pool is not empty", job({}, pool()), "[0]")
    yield refused("workers have a positive count", job(pool(), pool("0")), "1 or more. Received: 0")
    yield refused("a count is a whole number", job(pool("1.5")), "TYPE_INT64")
    yield refused("a pool has a task", job({"machineSpec": N1, "replicaCount": "1"}), "One of container_spec")
    both = {"executorImageUri": EXECUTOR, "packageUris": ["gs://b-b/x.tar.gz"], "pythonModule": "m"}
    yield refused("a pool has one task only", job(pool(pythonPackageSpec=both)), "oneof field 'task' is already set")
    yield refused("a container has an image", job(pool(containerSpec={"args": ["x"]})), "image_uri")
    yield refused("a pool has a machine", job(pool(machineSpec={})), "machine_type")


def packages() -> Iterator[Rule]:
    right = {"executorImageUri": EXECUTOR, "packageUris": ["gs://mine/x.tar.gz"] * 100, "pythonModule": "trainer"}

    def packaged(**changes: Any) -> dict[str, Any]:
        return job({"machineSpec": N1, "replicaCount": "1", "pythonPackageSpec": {**right, **changes}})

    yield taken("an executor image runs 100 packages", packaged())
    yield refused("a package needs an image", packaged(executorImageUri=""), "not set: executor_image_uri")
    yield refused("a package needs a module", packaged(pythonModule=""), "not set: python_module")
    yield refused("a package needs package_uris", packaged(packageUris=[]), "package_uris")
    yield refused("a job has no 101 packages", packaged(packageUris=["gs://mine/x.tar.gz"] * 101), "At most 100")
    for uri in ("", "x.tar.gz", "https://host/x.tar.gz", "gs://mine", "gs://mine/folder/"):
        yield refused(f"{uri!r} is no package", packaged(packageUris=[uri]), "A package is a Cloud Storage URI")


def variables() -> Iterator[Rule]:
    def env(*names: str, **more: Any) -> dict[str, Any]:
        return job(pool(containerSpec={**CONTAINER, "env": [{"name": name, "value": "v", **more} for name in names]}))

    hundred = [f"V{number}" for number in range(99)]
    yield taken("a container has 100 variables", env(*hundred, "_a1"))
    yield refused("a container has no 101 variables", env(*hundred, "A", "B"), "100 are allowed")
    for bad in ("", "1A", "A-B", "Ä"):
        yield refused(f"{bad!r} is no C identifier", env(bad), "C identifier")
    yield refused("a variable's value is a string", env("A", value=1), "TYPE_STRING")
    yield refused("a variable has no reference to a secret", env("A", valueFrom={}), 'Unknown name \\"valueFrom\\"')


def machine(kind: str, accelerator: str = "", count: int = 0, topology: str = "") -> dict[str, Any]:
    given = {"machineType": kind, "acceleratorType": accelerator, "acceleratorCount": count, "tpuTopology": topology}
    return {name: value for name, value in given.items() if value}


def on(kind: str, accelerator: str = "", count: int = 0, topology: str = "") -> dict[str, Any]:
    return job(pool(machineSpec=machine(kind, accelerator, count, topology)))


def cpus() -> Iterator[Rule]:
    for kind in ("e2-highcpu-32", "n1-standard-96", "n2-standard-16", "c2-standard-60"):
        yield taken(f"{kind} trains", on(kind))
    hyperdisk = {"bootDiskType": "hyperdisk-balanced"}
    yield taken("n4-standard-4 trains", job(pool(machineSpec=machine("n4-standard-4"), diskSpec=hyperdisk)))
    for kind in ("n1-standard-1", "n1-highcpu-8", "e2-standard-2", "c2-standard-31", "t2d-standard-4", "N1-STANDARD-4"):
        yield refused(f"{kind} does not train", on(kind), f'\\"{kind}')


def gpus() -> Iterator[Rule]:
    for kind, accelerator, count in (
        ("n1-standard-4", "NVIDIA_TESLA_T4", 4), ("n1-standard-16", "NVIDIA_TESLA_V100", 2),
        ("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16), ("a2-ultragpu-4g", "NVIDIA_A100_80GB", 4),
        ("a3-highgpu-8g", "NVIDIA_H100_80GB", 8), ("g2-standard-96", "NVIDIA_L4", 8),
    ):  # fmt: skip
        yield taken(f"{kind} has {count} {accelerator}", on(kind, accelerator, count))
    for kind, accelerator, count in (
        ("n1-standard-4", "NVIDIA_TESLA_T4", 3), ("n1-standard-16", "NVIDIA_TESLA_V100", 1),
        ("a2-highgpu-2g", "NVIDIA_TESLA_A100", 1), ("g2-standard-24", "NVIDIA_L4", 1),
    ):  # fmt: skip
        words = f"Accelerator count {count} of {accelerator}"
        yield refused(f"{kind} has no {count} {accelerator}", on(kind, accelerator, count), words)
    for kind, accelerator in (
        ("e2-standard-4", "NVIDIA_TESLA_T4"), ("a2-highgpu-1g", "NVIDIA_A100_80GB"), ("n1-standard-4", "NVIDIA_L4"),
        ("n1-standard-4", "NVIDIA_TESLA_K80"),
    ):  # fmt: skip
        yield refused(f"{kind} has no {accelerator}", on(kind, accelerator, 1), accelerator, name="INVALID_ARGUMENT")
    yield refused("g2 names its accelerator", on("g2-standard-4"), "requires accelerator type NVIDIA_L4")
    yield refused("a count needs a type of accelerator", on("n1-standard-4", "", 1), "machine_spec")
    yield refused("a type of accelerator needs a count", on("n1-standard-4", "NVIDIA_TESLA_T4"), "machine_spec")
    yield refused("an accelerator is one of the enum", on("n1-standard-4", "NVIDIA_T4", 1), "AcceleratorType")
    v100 = on("n1-standard-8", "NVIDIA_TESLA_V100", 1)
    yield taken("V100 are in europe-west4", v100, region="europe-west4")
    yield refused("V100 are not in us-east4", v100, "is not supported in region us-east4", region="us-east4")


def tpus() -> Iterator[Rule]:
    v2, v5e = on("cloud-tpu", "TPU_V2", 8), on("ct5lp-hightpu-4t", topology="2x2")
    for says, body, region in (
        ("a v2 has 8 cores", v2, REGION),
        ("a pod of v2 has multiples of 32 cores", on("cloud-tpu", "TPU_V2", 32), REGION),
        ("v2 is in asia-east1", v2, "asia-east1"),
        ("a v5e of one chip is 1x1", on("ct5lp-hightpu-1t", topology="1x1"), REGION),
        ("a v5e of 256 chips is 16x16", on("ct5lp-hightpu-4t", topology="16x16"), REGION),
        ("v5e trains in us-west4", v5e, "us-west4"),
        ("a topology of Ironwood has three numbers", on("tpu7x-standard-4t", topology="2x2x1"), REGION),
    ):
        yield taken(says, body, region=region)
    typed = {**machine("ct5lp-hightpu-4t", "TPU_V5_LITEPOD", 4), "tpuTopology": "2x2"}
    for says, body, part, region in (
        ("a v2 has no 4 cores", on("cloud-tpu", "TPU_V2", 4), "Accelerator count 4", REGION),
        ("a pod of v3 has no 40 cores", on("cloud-tpu", "TPU_V3", 40), "8 or a multiple of 32", REGION),
        ("a v2 has no topology", on("cloud-tpu", "TPU_V2", 8, "2x2"), "has no TPU topology", REGION),
        ("cloud-tpu names its generation", on("cloud-tpu"), "requires accelerator type TPU_V2 or TPU_V3", REGION),
        ("v3 is not in asia-east1", on("cloud-tpu", "TPU_V3", 8), "region asia-east1", "asia-east1"),
        ("a v5e is not 3x3", on("ct5lp-hightpu-4t", topology="3x3"), "TPU topology '3x3'", REGION),
        ("a v5e has a topology", on("ct5lp-hightpu-8t"), "TPU topology ''", REGION),
        ("a v5e has no type of accelerator", job(pool(machineSpec=typed)), "no accelerator type", REGION),
        ("v5e does not train in us-south1", v5e, "region us-south1", "us-south1"),
        ("v4 does not train", on("ct4p-hightpu-4t", topology="2x2x1"), "is not supported", REGION),
        ("a machine without TPUs has no topology", on("n1-standard-4", topology="2x2"), "has no TPU topology", REGION),
    ):
        yield refused(says, body, part, region=region)
    tpu = pool(machineSpec=machine("ct5lp-hightpu-4t", topology="2x2"))
    pod = pool(machineSpec=machine("ct5lp-hightpu-4t", topology="4x4"))
    one = "exactly one worker pool with a replica count of 1"
    yield refused("a TPU job has one pool", job(tpu, pool()), one)
    yield refused("a TPU job has no workers with TPUs", job(pool(), {**tpu, "replicaCount": "2"}), one)
    spot, flex = {"strategy": "SPOT"}, {"strategy": "FLEX_START"}
    yield taken("a single TPU machine may be a spot machine", job(tpu, scheduling=spot))
    yield refused("TPU pods are no spot machines", job(pod, scheduling=spot), "with TPU Pods")
    yield refused("TPUs have no flex start", job(tpu, scheduling=flex), "not supported with TPUs")


def scheduling() -> Iterator[Rule]:
    a100 = pool(machineSpec=machine("a2-highgpu-1g", "NVIDIA_TESLA_A100", 1))
    l4 = pool(machineSpec=machine("g2-standard-4", "NVIDIA_L4", 1))
    flex = {"strategy": "FLEX_START"}
    for says, pools_, given in (
        ("a timeout is a duration with fractions", [pool()], {"timeout": "1.5s"}),
        ("0 waits without a limit", [a100], {**flex, "maxWaitDuration": "0s"}),
        ("flex start takes 7 days", [a100], {**flex, "timeout": "604800s"}),
        ("a job may restart with its workers", [pool(), pool()], {"restartJobOnWorkerRestart": True}),
    ):
        yield taken(says, job(*pools_, scheduling=given))
    for says, pools_, given, part in (
        ("a timeout is not zero", [pool()], {"timeout": "0s"}, "timeout"),
        ("a duration ends in s", [pool()], {"timeout": "1h"}, "Duration"),
        ("a wait is not negative", [a100], {**flex, "maxWaitDuration": "-1s"}, "max_wait_duration"),
        ("a strategy is one of the enum", [pool()], {"strategy": "PREEMPTIBLE"}, "Strategy"),
        ("CPUs have no flex start", [pool()], flex, "not supported with accelerator none"),
        ("flex start takes one kind of machines", [a100, l4], flex, "the same machine in all worker pools"),
        ("flex start takes no 8 days", [a100], {**flex, "timeout": "604801s"}, "7 days at most"),
        ("a switch is true or false", [pool()], {"disableRetries": "yes"}, "TYPE_BOOL"),
    ):
        yield refused(says, job(*pools_, scheduling=given), part)
    largest = {"bootDiskType": "pd-standard", "bootDiskSizeGb": 64_000}
    yield taken("a boot disk has 64000 GB", job(pool(diskSpec=largest)))
    for size in (99, 64_001):
        yield refused(f"a boot disk of {size} GB", job(pool(diskSpec={"bootDiskSizeGb": size})), "from 100 to 64000")
    yield refused("no boot disk local-ssd", job(pool(diskSpec={"bootDiskType": "local-ssd"})), "is not supported")


def places() -> Iterator[Rule]:
    def output(uri: str) -> dict[str, Any]:
        return job(baseOutputDirectory={"outputUriPrefix": uri})

    yield taken("an output directory may be a whole bucket", output("gs://mine"), "gs://mine/", before=[bucket("mine")])
    yield refused("an output directory is in a bucket", output("/gcs/mine/run"), "a Cloud Storage URI")
    yield refused("an output directory has a URI", job(baseOutputDirectory={}), "a Cloud Storage URI")
    yield refused("the bucket of an output directory exists", output("gs://none/x"), "does not exist")
    regional = "It must be in the same regional location as the service location `us-central1`"
    own_pair = {"customPlacementConfig": {"dataLocations": ["US-CENTRAL1", "US-EAST1"]}}
    for what, location, more in (
        ("another region", "europe-west4", {}), ("a multi-region", "us", {}), ("a pair of one's own", "us", own_pair),
    ):  # fmt: skip
        says, before = f"an output directory is not in {what}", [bucket("other", location.upper(), **more)]
        part = f"`gs://other/run` is in location `{location}`. {regional}"
        yield refused(says, output("gs://other/run"), part, before=before, name="FAILED_PRECONDITION")
    package = {"executorImageUri": EXECUTOR, "packageUris": ["gs://other/x.tar.gz"], "pythonModule": "m"}
    packaged = job({"machineSpec": N1, "replicaCount": "1", "pythonPackageSpec": package})
    staged = {"before": [bucket("other", "EU")], "name": "FAILED_PRECONDITION"}
    yield refused("a package is staged in the job's region", packaged, "is in location `eu`", **staged)
    yield taken("a network has the project's number", job(network="projects/12/global/networks/net"))
    for network in ("projects/acme/global/networks/net", "net"):
        yield refused(f"{network} is no network", job(network=network), "network")


def accounts_and_images() -> Iterator[Rule]:
    may_not = f"You do not have permission to act as service_account: {ACCOUNT}. (or it may not exist)."
    used = job(serviceAccount=ACCOUNT)
    yield taken("a job runs as an account", used)
    yield refused("an account is an email address", job(serviceAccount="trainer"), "Not the email address")
    yield refused("an account exists", used, may_not, before=[lacking(absent=[account_name(ACCOUNT)])])
    withheld = {"member": f"user:{CALLER}", "resource": account_name(ACCOUNT),
                "role": "roles/iam.serviceAccountUser", "permissions": ["iam.serviceAccounts.actAs"]}  # fmt: skip
    yield refused("the caller may act as the account", used, may_not, before=[lacking(withheld=[withheld])])
    board = f"projects/{PROJECT}/locations/{REGION}/tensorboards/1"
    yield refused("a TensorBoard needs an account", job(tensorboard=board), "job_spec.service_account")
    yield taken("a TensorBoard with an account", job(tensorboard=board, serviceAccount=ACCOUNT))
    gone = f"Image {IMAGE} was not found."
    yield refused("the repository of an image exists", job(), gone, before=[lacking(absent=[REPOSITORY])])
    agent = agents(project_number(PROJECT))[0]
    pulls = {"member": f"serviceAccount:{agent}", "resource": REPOSITORY, "role": "roles/artifactregistry.reader",
             "permissions": ["artifactregistry.repositories.downloadArtifacts"]}  # fmt: skip
    part = f"{agent} does not have permission to access Artifact Registry repository projects/acme"
    yield refused("Vertex AI's agent may pull the image", job(), part, code=403, before=[lacking(withheld=[pulls])])
    yield taken("the agents are made by the first job", job(), before=[lacking(absent=[account_name(agent)])])
    retired = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest"
    for image in (retired, retired.replace("us", "europe", 1), "gcr.io/cloud-aiplatform/training/tf-gpu.2-8"):
        old = job(pool(containerSpec={"imageUri": image}))
        yield refused(f"{image} is retired", old, "past its end of availability")


def the_api() -> Iterator[Rule]:
    yield refused("a field is given once", {**job(), "display_name": "x"}, "twice")
    yield taken("what the service sets is ignored", job(given={"state": "JOB_STATE_SUCCEEDED"}), "JOB_STATE_QUEUED")
    running = [("POST", JOBS, job())]
    unknown = "The provided location ID doesn't match the endpoint."
    for region in ("us", "us-central1-a", "mars-west1"):
        yield refused(f"{region} is no region of Vertex AI", job(), unknown, region=region)
    for says, method, path, body, code, part in (
        ("a job that is not there", "GET", f"{JOBS}/1", None, 404, "does not exist"),
        ("a job's number is no number of 40 digits", "GET", f"{JOBS}/{'9' * 40}", None, 404, "does not exist"),
        ("a cancel has no fields", "POST", f"{JOBS}/1:cancel", {"force": True}, 400, "Unknown name"),
        ("a field is text that can be encoded", "POST", f"{JOBS}/1:cancel", {"\ud800": 1}, 400, "Unknown name"),
        ("custom jobs are not changed", "PATCH", f"{JOBS}/1", {}, 405, "does not serve"),
        ("jobs are listed in a region", "GET", JOBS.replace(REGION, "mars-west1"), None, 400, unknown),
        ("an empty list has no field", "GET", f"{JOBS}?pageSize=2", None, 200, "{}"),
        ("a page has a size", "GET", f"{JOBS}?pageSize=x", None, 400, "page"),
        ("a list has no parameter pagesize", "GET", f"{JOBS}?pagesize=1", None, 400, "Cannot bind query parameter"),
        ("custom jobs have no order", "GET", f"{JOBS}?orderBy=createTime", None, 400, "Cannot bind query parameter"),
        ("endpoints are not served", "GET", f"/v1/{PLACE}/endpoints", None, 405, "does not serve"),
        ("lines are not written", "POST", "/v2/entries:write", {}, 405, "does not serve"),
        ("lines have a filter that can be encoded", "POST", "/v2/entries:list", {"\ud800": 1}, 400, "Unknown name"),
        ("the emulator has no such address", "POST", "/_vertex/nothing", {}, 404, ""),
        ("v1beta1 is not served", "GET", f"/v1beta1/{PLACE}/customJobs", None, 405, "does not serve"),
    ):
        yield Rule(says=says, method=method, path=path, body=body, code=code, part=part)
    for query, part in (
        ("filter=display_nam='x'", "unknown field 'display_nam'. Did you mean 'display_name'?"),
        ("filter=display_name>'x'", "display_name is compared by = != :"),
        ("filter=state='DONE'", "unknown state"),
        ("filter=create_time>'yesterday'", "RFC 3339"),
        ("filter=display_name='x' AND", "expected the name of a field"),
        ("filter=(display_name='x'", "expected ')'"),
        ("filter=display_name", "expected a comparison"),
        (f"filter={'(' * 5000}", "nested too deeply"),
        ("pageToken=abc", "page token"),
        ("readMask=nothing", "no field 'nothing'"),
    ):
        path = f"{JOBS}?{quote(query, safe='=')}"
        yield Rule(says=f"no list with {query[:40]}", method="GET", path=path, code=400, part=part, before=running)
    for says, asked, part in (
        ("is an object", [], "is not an object"),
        ("names projects", {"resourceNames": ["acme"]}, "resources such as projects"),
        ("is in the order of time", {"resourceNames": ["projects/p"], "orderBy": "severity"}, "timestamp asc"),
        ("has times", {"resourceNames": ["projects/p"], "filter": "timestamp>yesterday"}, "RFC 3339"),
        ("has a page token", {"resourceNames": ["projects/p"], "pageToken": "x"}, "page token"),
    ):
        yield Rule(says=f"a request for lines {says}", path="/v2/entries:list", body=asked, code=400, part=part)
    binary = {"Content-Type": "application/octet-stream"}
    yield Rule(says="a body is JSON", path=JOBS, data=b"{}", headers=binary, code=400, part="is JSON")


RULES = [
    *names_and_labels(), *pools(), *packages(), *variables(), *cpus(), *gpus(), *tpus(), *scheduling(), *places(),
    *accounts_and_images(), *the_api(),
]  # fmt: skip
