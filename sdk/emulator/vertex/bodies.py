"""Reads and validates the JSON of a custom job as strictly as the service does. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...backends.vertex.checks import job_rules
from ..errors import is_label, words
from ..messages import Problems, duration_s, read_json, read_message, snake_case
from . import machines
from .errors import invalid

# The service sets these; values that a client sends are validated and ignored.
_OUTPUTS = words(
    "name state createTime startTime endTime updateTime error webAccessUris satisfiesPzs satisfiesPzi trainingTaskMetadata"
)
_MAX_POOLS, _MAX_ENV, _MAX_PACKAGES, MAX_NAME, _MAX_LABELS = 4, 100, 100, 128, 64
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)(/.*)?")
_PACKAGE = re.compile(r"gs://[a-z0-9][a-z0-9._-]+/(.*/)?[^/]+")
_DISK_GB = (100, 64000)
_WEEK_S = 7 * 86400
_ACCOUNTS = ("serviceAccount", "service_account")
_JOB, _SPEC = "custom_job", "custom_job.job_spec"


def parse(body: bytes, kind: str = "CustomJob") -> dict[str, Any]:
    resource, problems = read_message(kind, read_json(body), snake_case(kind).lstrip("_"))
    if problems:
        raise invalid(problems)
    return {name: value for name, value in resource.items() if name not in _OUTPUTS}


def problems(job: Mapping[str, Any], region: str) -> Problems:
    """Return the field and the sentence of every mistake; nothing for a valid job."""
    spec, name = job.get("jobSpec", {}), job.get("displayName", "")
    pools, where = spec.get("workerPoolSpecs", []), f"{_SPEC}.worker_pool_specs"
    too_long = f"The display name has {len(name)} characters; {MAX_NAME} are allowed."
    too_many = f"There are {len(pools)} worker pools; {_MAX_POOLS} are allowed."
    mistakes = [
        *_unless(name, f"{_JOB}.display_name", "Required field is not set: custom_job.display_name."),
        *_unless(len(name) <= MAX_NAME, f"{_JOB}.display_name", too_long),
        *_label_problems(job.get("labels", {}), f"{_JOB}.labels"),
        *_unless(pools, where, f"Required field is not set: {where}."),
        *_unless(len(pools) <= _MAX_POOLS, where, too_many),
    ]
    for number, pool in enumerate(pools):
        if pool or number == 0:
            own_machine = not spec.get("persistentResourceId")
            mistakes += _pool(pool, f"{where}[{number}]", first=number == 0, own_machine=own_machine)
    return [*mistakes, *job_rules.problems(job, region), *_tpu(spec), *_scheduling(spec), *_places(spec)]


def bucket_of(uri: str) -> str:
    """Return the bucket of a Cloud Storage URI, "" for anything else."""
    match = _BUCKET.fullmatch(uri)
    return match[1] if match else ""


def account_of(created: Mapping[str, Any]) -> str:
    """Return the service account of a new job or training pipeline, "" for none."""
    parts = [part for part in (created, created.get("jobSpec"), created.get("trainingTaskInputs")) if part]
    named = [part.get(name) for part in parts if isinstance(part, Mapping) for name in _ACCOUNTS]
    return next((part for part in named if isinstance(part, str)), "")


def with_defaults(job: dict[str, Any]) -> dict[str, Any]:
    spec = dict(job.get("jobSpec", {}))
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix")
    if base:
        spec["baseOutputDirectory"] = {"outputUriPrefix": base if base.endswith("/") else base + "/"}
    return {**job, "jobSpec": spec}


def _unless(holds: object, field: str, text: str) -> Problems:
    return [] if holds else [(field, text)]


def _label_problems(labels: Mapping[str, str], where: str) -> Problems:
    allowed = "up to 64 lowercase letters, digits, _ and -."
    mistakes = [
        (where, f"The {what} {json.dumps(text)} of a label is not allowed: {allowed}")
        for name, value in labels.items()
        for what, text in (("key", name), ("value", value))
        if not is_label(text, 64) or (what == "key" and not text)
    ]
    too_many = f"There are {len(labels)} labels; {_MAX_LABELS} are allowed."
    return [*mistakes, *_unless(len(labels) <= _MAX_LABELS, where, too_many)]


def _pool(pool: Mapping[str, Any], where: str, *, first: bool, own_machine: bool) -> Problems:
    count = pool.get("replicaCount", 0)
    of_first, rule = ("of the first worker pool ", "1") if first else ("", "1 or more")
    text = f"The replica count {of_first}has to be {rule}. Received: {count}."
    mistakes = _unless(count == 1 if first else count >= 1, f"{where}.replica_count", text)
    if own_machine and not pool.get("machineSpec", {}).get("machineType"):
        mistakes.append((f"{where}.machine_spec.machine_type", "Required field is not set: machine_type."))
    return [*mistakes, *_task(pool, where), *_disk(pool.get("diskSpec", {}), f"{where}.disk_spec")]


def _task(pool: Mapping[str, Any], where: str) -> Problems:
    container, package = pool.get("containerSpec"), pool.get("pythonPackageSpec")
    if container is None and package is None:
        return [(where, "One of container_spec and python_package_spec has to be set.")]
    mistakes: Problems = []
    task = container or package or {}
    inner = f"{where}.container_spec" if package is None else f"{where}.python_package_spec"
    required = {"imageUri": "image_uri"} if package is None else {"executorImageUri": "executor_image_uri"}
    if package is not None:
        required.update(packageUris="package_uris", pythonModule="python_module")
        if len(package.get("packageUris", [])) > _MAX_PACKAGES:
            mistakes.append((f"{inner}.package_uris", f"At most {_MAX_PACKAGES} package URIs are allowed."))
        for number, uri in enumerate(package.get("packageUris", [])):
            text = (
                f"A package is a Cloud Storage URI such as gs://bucket/trainer-0.1.tar.gz. Received: {json.dumps(uri)}."
            )
            mistakes += _unless(_PACKAGE.fullmatch(uri or ""), f"{inner}.package_uris[{number}]", text)
    for name, field in required.items():
        if not task.get(name):
            mistakes.append((f"{inner}.{field}", f"Required field is not set: {field}."))
    variables = task.get("env", [])
    if len(variables) > _MAX_ENV:
        mistakes.append((f"{inner}.env", f"There are {len(variables)} environment variables; {_MAX_ENV} are allowed."))
    for number, name in enumerate(variable.get("name", "") for variable in variables):
        text = f"An environment variable's name is a C identifier. Received: {json.dumps(name)}."
        mistakes += _unless(_ENV.fullmatch(name), f"{inner}.env[{number}].name", text)
    return mistakes


def _disk(disk: Mapping[str, Any], where: str) -> Problems:
    size = disk.get("bootDiskSizeGb")
    wrong = f"The boot disk size has to be from {_DISK_GB[0]} to {_DISK_GB[1]} GB. Received: {size}."
    fits = size is None or _DISK_GB[0] <= size <= _DISK_GB[1]
    return _unless(fits, f"{where}.boot_disk_size_gb", wrong)


def _tpu(spec: Mapping[str, Any]) -> Problems:
    pools = [pool for pool in spec.get("workerPoolSpecs", []) if pool]
    tpus = [pool for pool in pools if machines.is_tpu(pool.get("machineSpec", {}))]
    if not tpus:
        return []
    mistakes: Problems = []
    if len(pools) > 1 or any(pool.get("replicaCount", 0) > 1 for pool in tpus):
        mistakes.append(
            (f"{_SPEC}.worker_pool_specs", "A TPU job has exactly one worker pool with a replica count of 1.")
        )
    strategy = spec.get("scheduling", {}).get("strategy")
    if strategy == "FLEX_START" or (
        strategy == "SPOT" and any(machines.hosts(pool["machineSpec"]) > 1 for pool in tpus)
    ):
        what = "TPUs" if strategy == "FLEX_START" else "TPU Pods"
        mistakes.append((f"{_SPEC}.scheduling.strategy", f"Strategy {strategy} is not supported with {what}."))
    return mistakes


def _scheduling(spec: Mapping[str, Any]) -> Problems:
    scheduling, where = spec.get("scheduling", {}), f"{_SPEC}.scheduling"
    mistakes: Problems = [
        (f"{where}.{field}", f"The {field} has to be a positive duration. Received: {scheduling[name]}.")
        for name, field, least in (("timeout", "timeout", 1e-9), ("maxWaitDuration", "max_wait_duration", 0))
        if name in scheduling and duration_s(scheduling[name]) < least
    ]
    if scheduling.get("strategy") != "FLEX_START":
        return mistakes
    pools = [pool.get("machineSpec", {}) for pool in spec.get("workerPoolSpecs", []) if pool]
    if "timeout" in scheduling and duration_s(scheduling["timeout"]) > _WEEK_S:
        mistakes.append((f"{where}.timeout", "With strategy FLEX_START the timeout is 7 days at most."))
    if any(pool != pools[0] for pool in pools):
        mistakes.append((f"{where}.strategy", "Strategy FLEX_START requires the same machine in all worker pools."))
    for pool in pools:
        kind = pool.get("acceleratorType", "")
        if kind not in machines.FLEX_START and not machines.is_tpu(pool):
            text = f"Strategy FLEX_START is not supported with accelerator {kind or 'none'}."
            return [*mistakes, (f"{where}.strategy", text)]
    return mistakes


def _places(spec: Mapping[str, Any]) -> Problems:
    base, account = spec.get("baseOutputDirectory", {}), spec.get("serviceAccount")
    prefix = base.get("outputUriPrefix")
    uri = f"The output URI prefix is a Cloud Storage URI such as gs://bucket/folder. Received: {prefix!r}."
    is_bucket = "baseOutputDirectory" not in spec or _BUCKET.fullmatch(prefix or "")
    is_account = not account or _ACCOUNT.fullmatch(account)
    return [
        *_unless(is_bucket, f"{_SPEC}.base_output_directory.output_uri_prefix", uri),
        *_unless(is_account, f"{_SPEC}.service_account", f"Not the email address of a service account: {account!r}."),
    ]
