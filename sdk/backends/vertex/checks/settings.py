"""Checks of the settings that a request passes on: network, key, TensorBoard, persistent resource, and the fields of `raw`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....hardware import machines, regions
from ....job.findings import Finding, error, note, warning
from ....job.job import Job
from ....text import joined
from ..job import body as job_body
from ..options import Vertex
from . import job_rules

_SPEC = "custom_job.job_spec"
# Fields of a request that a setting fills.
_FIELDS = {
    f"{_SPEC}.network": "network",
    f"{_SPEC}.psc_interface_config.network_attachment": "network",
    f"{_SPEC}.tensorboard": "tensorboard",
    f"{_SPEC}.service_account": "tensorboard",
    f"{_SPEC}.persistent_resource_id": "persistent_resource",
    "custom_job.encryption_spec.kms_key_name": "kms_key",
}
_NEXT = {
    "network": "projects/NUMBER/global/networks/NAME for VPC peering, or for a Private Service Connect interface "
    "projects/PROJECT/regions/REGION/networkAttachments/NAME",
    "kms_key": "gcloud kms keys list --location REGION --keyring KEYRING --format='value(name)'",
    "tensorboard": "gcloud ai tensorboards list --region REGION --format='value(name)'",
    "persistent_resource": "gcloud ai persistent-resources list --region REGION; the id is the end of the name",
}


def body(job: Job, target: Vertex) -> Iterator[Finding]:
    """Settings that Vertex AI would refuse in a region of the job, and fields that `raw` sets so that it would."""
    for region in filter(regions.KNOWN.__contains__, target.region_names):
        own = job_rules.problems(job_body.body(target, job.resources, with_raw=False), region)
        problems = job_rules.problems(job_body.body(target, job.resources), region)
        for field, text in problems:
            if (field, text) not in own:
                # A warning, because raw is the way to what podlift's tables do not have yet.
                yield warning(f"Vertex AI would reject the request that raw makes: {field}: {text.rstrip('.')}")
            elif field in _FIELDS:
                yield _of_setting(_FIELDS[field], text, target)


def _of_setting(name: str, text: str, target: Vertex) -> Finding:
    message = f"vertex_{name}: {text.rstrip('.')}"
    region = job_rules.region_of(str(getattr(target, name)))
    if "same region" in text and region in regions.KNOWN:
        return error(message, {"vertex.regions": [region]})
    if "must be specified" in text:
        return error(f"{message}. Next: vertex_service_account=NAME@PROJECT.iam.gserviceaccount.com")
    return error(f"{message}. Next: {_NEXT[name]}")


def billed(job: Job, target: Vertex) -> Iterator[Finding]:
    """The costs and the regions of a persistent resource."""
    name = target.persistent_resource
    if name is None:
        return
    where = joined(target.region_names, "and")
    yield note(
        f"The run uses the persistent resource {name!r} of {where}, which is billed until it is deleted, busy or not; "
        f"the price in this plan is not added to that. Delete it: gcloud ai persistent-resources delete {name} --region=REGION"
    )
    if len(target.region_names) > 1:
        yield warning(f"Each of {where} needs its own persistent resource {name!r}")


def online(answers: Mapping[str, Any], job: Job, target: Vertex) -> Iterator[Finding]:
    """Findings from the cloud's answers about the resources that settings name; `answers` by setting and region."""
    for key, answer in answers.items():
        name, _, region = key.partition("@")
        value, where = getattr(target, name, None), f" in {region}" if region else ""
        if answer["exists"] is None:
            yield note(f"vertex_{name} was not checked{where}: {str(answer['error']).rstrip('.')}")
        elif not answer["exists"]:
            yield error(f"vertex_{name}: there is no {value!r}{where} ({answer['error']}). Next: {_NEXT[name]}")
        elif name == "persistent_resource":
            here = [location for location in target.locations_for(job.resources) if location.region == region]
            bodies = [job_body.body(*target.at(location, job.resources)) for location in here]
            yield from (finding for body in bodies for finding in _fits(answer["about"], region, body, str(value)))
        elif name == "kms_key" and _unusable(answer["about"]):
            yield error(f"vertex_kms_key: {value!r} cannot encrypt: {_unusable(answer['about'])}")
        else:
            yield note(f"vertex_{name} exists{where}")


def _unusable(about: Mapping[str, Any]) -> str:
    """Return why a key of Cloud KMS cannot encrypt, "" if it can."""
    purpose, state = about.get("purpose"), job_rules.mapping(about.get("primary")).get("state")
    if purpose != "ENCRYPT_DECRYPT":
        return f"its purpose is {purpose}"
    return "" if state == "ENABLED" else f"its primary version is {state}"


def _fits(about: Mapping[str, Any], region: str, body: Mapping[str, Any], name: str) -> Iterator[Finding]:
    """Compare the pools of a job with its persistent resource: machine and disk must be the same, and enough."""
    state = about.get("state")
    if state != "RUNNING":
        yield warning(f"The persistent resource {name!r} in {region} is {state}, not RUNNING")
    listed = [resource for resource in about.get("resourcePools") or () if isinstance(resource, Mapping)]
    missing = []
    for pool in (pool for _, pool in job_rules.pools(body) if pool):
        fitting = [resource for resource in listed if _shape(resource) == _shape(pool)]
        if not any(_replicas(resource) >= _replicas(pool) for resource in fitting):
            missing.append(f"{_text(pool)} x {_replicas(pool)}")
    if missing:
        has = joined([f"{_text(resource)} x {_replicas(resource)}" for resource in listed], "and") or "no pool"
        yield error(
            f"The persistent resource {name!r} in {region} has no pool for {joined(missing, 'and')}. It has {has}. Machine "
            "and disk must be the same. Next: vertex_machine, vertex_disk_gb, or diskSpec.bootDiskType in vertex_raw"
        )
    else:
        yield note(f"The persistent resource {name!r} in {region} has the machines and disks of the job")


def _shape(pool: Mapping[str, Any]) -> tuple[object, ...]:
    spec, disk = job_rules.mapping(pool.get("machineSpec")), job_rules.mapping(pool.get("diskSpec"))
    machine = str(spec.get("machineType"))
    disk_type = disk.get("bootDiskType") or machines.default_disk(machine)
    accelerator = (spec.get("acceleratorType"), job_rules.number(spec.get("acceleratorCount")) or 0)
    return machine, *accelerator, disk_type, job_rules.number(disk.get("bootDiskSizeGb")) or 100


def _text(pool: Mapping[str, Any]) -> str:
    machine, kind, count, disk, size = _shape(pool)
    return f"{machine}{f' with {count} {kind}' if kind else ''}, {disk} of {size} GB"


def _replicas(pool: Mapping[str, Any]) -> int:
    scaled = job_rules.mapping(pool.get("autoscalingSpec")).get("maxReplicaCount")
    return job_rules.number(scaled or pool.get("replicaCount")) or 0
