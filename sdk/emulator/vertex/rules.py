"""What the service rejects about a custom job that is well-formed. Pure.

These are Google's rules only. Which TensorFlow version runs where, and what a run costs, is podlift's knowledge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import machines
from .bodies import Problems, duration_s

_MAX_POOLS, _MAX_ENV, _MAX_PACKAGES, _MAX_NAME, _MAX_LABELS = 4, 100, 100, 128, 64
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NETWORK = re.compile(r"projects/[0-9]+/global/networks/[a-z0-9-]+")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)(/.*)?")
_DISKS = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
_DISK_GB = (100, 64000)
_WEEK_S = 7 * 86400
_JOB, _SPEC = "custom_job", "custom_job.job_spec"


def problems(job: Mapping[str, Any], region: str) -> Problems:
    """Return the field and the sentence of every mistake; nothing for a valid job."""
    spec = job.get("jobSpec", {})
    pools = spec.get("workerPoolSpecs", [])
    found = [*_named(job), *_labels(job.get("labels", {})), *_extent(pools)]
    for number, pool in enumerate(pools):
        if pool or number == 0:
            where = f"{_SPEC}.worker_pool_specs[{number}]"
            found += _pool(
                pool, where, first=number == 0, own_machine=not spec.get("persistentResourceId"), region=region
            )
    return [*found, *_tpu(spec), *_scheduling(spec), *_places(spec)]


def output_bucket(job: Mapping[str, Any]) -> str | None:
    prefix = job.get("jobSpec", {}).get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    match = _BUCKET.fullmatch(prefix)
    return match[1] if match else None


def with_defaults(job: dict[str, Any]) -> dict[str, Any]:
    spec = dict(job.get("jobSpec", {}))
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix")
    if base:
        spec["baseOutputDirectory"] = {"outputUriPrefix": base if base.endswith("/") else base + "/"}
    return {**job, "jobSpec": spec}


def _named(job: Mapping[str, Any]) -> Problems:
    name = job.get("displayName", "")
    if not name:
        return [(f"{_JOB}.display_name", "Required field is not set: custom_job.display_name.")]
    if len(name) > _MAX_NAME:
        return [(f"{_JOB}.display_name", f"The display name has {len(name)} characters; {_MAX_NAME} are allowed.")]
    return []


def _labels(labels: Mapping[str, str]) -> Problems:
    where = f"{_JOB}.labels"
    found = [
        (
            where,
            f"The {what} {json.dumps(text)} of a label is not allowed: up to 64 lowercase letters, digits, _ and -.",
        )
        for name, value in labels.items()
        for what, text in (("key", name), ("value", value))
        if not _label(text) or (what == "key" and not text)
    ]
    if len(labels) > _MAX_LABELS:
        found.append((where, f"There are {len(labels)} labels; {_MAX_LABELS} are allowed."))
    return found


def _label(text: str) -> bool:
    # Letters of all scripts are allowed, as long as they are not capital ones.
    return len(text) <= 64 and all(each in "_-" or (each.isalnum() and each == each.lower()) for each in text)


def _extent(pools: Sequence[Any]) -> Problems:
    where = f"{_SPEC}.worker_pool_specs"
    if not pools:
        return [(where, "Required field is not set: custom_job.job_spec.worker_pool_specs.")]
    if len(pools) > _MAX_POOLS:
        return [(where, f"There are {len(pools)} worker pools; {_MAX_POOLS} are allowed.")]
    return []


def _pool(pool: Mapping[str, Any], where: str, *, first: bool, own_machine: bool, region: str) -> Problems:
    found: Problems = []
    count = pool.get("replicaCount", 0)
    if first and count != 1:
        found.append(
            (f"{where}.replica_count", f"The replica count of the first worker pool has to be 1. Received: {count}.")
        )
    elif count < 1:
        found.append((f"{where}.replica_count", f"The replica count has to be 1 or more. Received: {count}."))
    machine = pool.get("machineSpec", {})
    if not machine.get("machineType"):
        if own_machine:
            found.append((f"{where}.machine_spec.machine_type", "Required field is not set: machine_type."))
    elif text := machines.problem(machine, region):
        found.append((f"{where}.machine_spec", text))
    return [*found, *_task(pool, where), *_disk(pool.get("diskSpec", {}), f"{where}.disk_spec")]


def _task(pool: Mapping[str, Any], where: str) -> Problems:
    container, package = pool.get("containerSpec"), pool.get("pythonPackageSpec")
    if container is None and package is None:
        return [(where, "One of container_spec and python_package_spec has to be set.")]
    found: Problems = []
    task = container or package or {}
    place = f"{where}.container_spec" if package is None else f"{where}.python_package_spec"
    required = {"imageUri": "image_uri"} if package is None else {"executorImageUri": "executor_image_uri"}
    if package is not None:
        required.update(packageUris="package_uris", pythonModule="python_module")
        if len(package.get("packageUris", [])) > _MAX_PACKAGES:
            found.append((f"{place}.package_uris", f"At most {_MAX_PACKAGES} package URIs are allowed."))
    for name, field in required.items():
        if not task.get(name):
            found.append((f"{place}.{field}", f"Required field is not set: {field}."))
    variables = task.get("env", [])
    if len(variables) > _MAX_ENV:
        found.append((f"{place}.env", f"There are {len(variables)} environment variables; {_MAX_ENV} are allowed."))
    found += [
        (
            f"{place}.env[{number}].name",
            f"An environment variable's name is a C identifier. Received: {json.dumps(name)}.",
        )
        for number, name in enumerate(each.get("name", "") for each in variables)
        if not _ENV.fullmatch(name)
    ]
    return found


def _disk(disk: Mapping[str, Any], where: str) -> Problems:
    found: Problems = []
    kind, size = disk.get("bootDiskType"), disk.get("bootDiskSizeGb")
    if kind and kind not in _DISKS:
        found.append((f"{where}.boot_disk_type", f"Boot disk type {kind!r} is not supported: {', '.join(_DISKS)}."))
    if size is not None and not _DISK_GB[0] <= size <= _DISK_GB[1]:
        text = f"The boot disk size has to be from {_DISK_GB[0]} to {_DISK_GB[1]} GB. Received: {size}."
        found.append((f"{where}.boot_disk_size_gb", text))
    return found


def _tpu(spec: Mapping[str, Any]) -> Problems:
    pools = [pool for pool in spec.get("workerPoolSpecs", []) if pool]
    tpus = [pool for pool in pools if machines.is_tpu(pool.get("machineSpec", {}))]
    if not tpus:
        return []
    found: Problems = []
    if len(pools) > 1 or any(pool.get("replicaCount", 0) > 1 for pool in tpus):
        found.append((f"{_SPEC}.worker_pool_specs", "A TPU job has exactly one worker pool with a replica count of 1."))
    strategy = spec.get("scheduling", {}).get("strategy")
    if strategy == "FLEX_START" or (
        strategy == "SPOT" and any(machines.hosts(pool["machineSpec"]) > 1 for pool in tpus)
    ):
        what = "TPUs" if strategy == "FLEX_START" else "TPU Pods"
        found.append((f"{_SPEC}.scheduling.strategy", f"Strategy {strategy} is not supported with {what}."))
    return found


def _scheduling(spec: Mapping[str, Any]) -> Problems:
    given, where = spec.get("scheduling", {}), f"{_SPEC}.scheduling"
    found: Problems = [
        (f"{where}.{field}", f"The {field} has to be a positive duration. Received: {given[name]}.")
        for name, field, least in (("timeout", "timeout", 1e-9), ("maxWaitDuration", "max_wait_duration", 0))
        if name in given and duration_s(given[name]) < least
    ]
    if given.get("strategy") != "FLEX_START":
        return found
    pools = [pool.get("machineSpec", {}) for pool in spec.get("workerPoolSpecs", []) if pool]
    if "timeout" in given and duration_s(given["timeout"]) > _WEEK_S:
        found.append((f"{where}.timeout", "With strategy FLEX_START the timeout is 7 days at most."))
    if any(pool != pools[0] for pool in pools):
        found.append((f"{where}.strategy", "Strategy FLEX_START requires the same machine in all worker pools."))
    for pool in pools:
        kind = pool.get("acceleratorType", "")
        if kind not in machines.FLEX_START and not machines.is_tpu(pool):
            text = f"Strategy FLEX_START is not supported with accelerator {kind or 'none'}."
            return [*found, (f"{where}.strategy", text)]
    return found


def _places(spec: Mapping[str, Any]) -> Problems:
    found: Problems = []
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix")
    if "baseOutputDirectory" in spec and not _BUCKET.fullmatch(base or ""):
        where = f"{_SPEC}.base_output_directory.output_uri_prefix"
        found.append(
            (where, f"The output URI prefix is a Cloud Storage URI such as gs://bucket/folder. Received: {base!r}.")
        )
    if (account := spec.get("serviceAccount")) and not _ACCOUNT.fullmatch(account):
        found.append((f"{_SPEC}.service_account", f"Not the email address of a service account: {account!r}."))
    if (network := spec.get("network")) and not _NETWORK.fullmatch(network):
        text = f"A network is written projects/NUMBER/global/networks/NAME. Received: {network!r}."
        found.append((f"{_SPEC}.network", text))
    if spec.get("tensorboard") and not account:
        found.append((f"{_SPEC}.service_account", "A TensorBoard requires a service account."))
    return found
