"""Rules about the body of a custom job that a plan and the emulator share: machines, disks, and names of other resources. Pure.

A rule returns the field, as the proto names it, and a sentence. Sentences known from public issues are Google's own; the others
follow the words of the proto and the documentation. Values may be any JSON: another check reports a value of the wrong type.
Sources (read 2026-11-28): google.cloud.aiplatform.v1 (CustomJobSpec, EncryptionSpec, NfsMount, ReservationAffinity,
PscInterfaceConfig); documentation of Vertex AI, training/configure-compute, general/locations, training/use-reservations,
training/using-private-ip, training/train-nfs-share.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ....hardware import Accelerator, accelerators, machines, regions

Problem = tuple[str, str]
Json = Mapping[str, Any]

_JOB, _SPEC = "custom_job", "custom_job.job_spec"
_POD_CORES = 32
# More digits than any number of machines.
_DIGITS = 9
_RESERVATIONS = {1: "NO_RESERVATION", 2: "ANY_RESERVATION", 3: "SPECIFIC_RESERVATION"}
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_PROJECT, _NAME = r"projects/[a-z0-9.:-]+", r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_LOCATION = rf"{_PROJECT}/locations/(?P<region>[a-z0-9-]+)"
_NETWORK = re.compile(rf"projects/[0-9]+/global/networks/{_NAME}")
_ATTACHMENT = re.compile(rf"{_PROJECT}/regions/(?P<region>[a-z0-9-]+)/networkAttachments/{_NAME}")
_KMS_KEY = re.compile(rf"{_LOCATION}/keyRings/[\w-]{{1,63}}/cryptoKeys/[\w-]{{1,63}}", re.ASCII)
_PERSISTENT_RESOURCE = re.compile(_NAME)
_CONTEXT = re.compile(rf"{_LOCATION}/metadataStores/[\w-]+/contexts/[a-z0-9][a-z0-9-]{{0,127}}", re.ASCII)
_RESERVATION = re.compile(rf"{_PROJECT}/zones/(?P<region>[a-z0-9-]+)-[a-z0-9]+/reservations/{_NAME}")
# Packages run in Google's prebuilt images only (PythonPackageSpec).
_EXECUTOR = re.compile(
    r"((us|europe|asia)-docker\.pkg\.dev/vertex-ai|((us|eu|asia)\.)?gcr\.io/cloud-aiplatform)/training/[\w.-]+(:[\w.-]+)?"
)
_STORE = "projects/{project}/locations/{location}/metadataStores/{store}"
# By field: its name in the proto, its form, and the pattern of the form.
_FORMS = {
    "tensorboard": (
        "tensorboard",
        "projects/{project}/locations/{location}/tensorboards/{tensorboard}",
        re.compile(rf"{_LOCATION}/tensorboards/[0-9]+"),
    ),
    "experiment": ("experiment", f"{_STORE}/contexts/{{experiment}}", _CONTEXT),
    "experimentRun": ("experiment_run", f"{_STORE}/contexts/{{experiment}}-{{run}}", _CONTEXT),
}


def problems(job: Json, region: str) -> list[Problem]:
    """Return every mistake of a job that one region's service finds by these rules."""
    spec = mapping(job.get("jobSpec"))
    wrong_fields = [*_key(job, region), *_names(spec, region), *_network(job, region)]
    for index, pool in pools(job):
        where = f"{_SPEC}.worker_pool_specs[{index}]"
        machine_spec = mapping(pool.get("machineSpec"))
        wrong = machine(machine_spec, region) if machine_spec.get("machineType") else None
        wrong_fields += [(f"{where}.machine_spec", wrong)] if wrong else []
        wrong_fields += _disk(machine_spec, mapping(pool.get("diskSpec")), f"{where}.disk_spec")
        wrong_fields += _reservation(spec, machine_spec, region, f"{where}.machine_spec.reservation_affinity")
        wrong_fields += _mounts(pool, spec, f"{where}.nfs_mounts")
        wrong_fields += _executor(pool, f"{where}.python_package_spec.executor_image_uri")
    return wrong_fields


def rows_of(machine_type: object) -> list[Accelerator]:
    return [row for row in accelerators.ROWS if machine_type in row.machines]


def machine(spec: Json, region: str) -> str | None:
    """Return the mistake in a machine spec, as a sentence; None if training has such machines in the region."""
    kind, accelerator = spec.get("machineType", ""), spec.get("acceleratorType") or ""
    count, topology = number(spec.get("acceleratorCount") or 0), spec.get("tpuTopology") or ""
    if count is None or not all(isinstance(value, str) for value in (kind, accelerator, topology)):
        return None
    rows = rows_of(kind)
    if not rows and kind not in machines.LISTED:
        return f'Machine type "{kind}" is not supported.'
    if bool(accelerator) != bool(count):
        return "Both `accelerator_type` and `accelerator_count` should be specified or none."
    if kind == "cloud-tpu":
        wrong = _old_tpu(accelerator, count, topology)
    elif any(row.topology for row in rows):
        wrong = _new_tpu(kind, accelerator, topology, rows)
    else:
        wrong = _gpu(kind, accelerator, count, topology, rows)
    return wrong or _absent(kind, accelerator, count, region, rows)


def _old_tpu(accelerator: str, count: int, topology: str) -> str | None:
    if accelerator not in ("TPU_V2", "TPU_V3"):
        return f'Machine type "cloud-tpu" requires accelerator type TPU_V2 or TPU_V3. Received: {accelerator!r}.'
    if topology:
        return 'Machine type "cloud-tpu" has no TPU topology.'
    if count != 8 and (count < _POD_CORES or count % _POD_CORES):
        return f"Accelerator count {count} is not supported for {accelerator}; it is 8 or a multiple of {_POD_CORES}."
    return None


def _new_tpu(kind: str, accelerator: str, topology: str, rows: list[Accelerator]) -> str | None:
    if accelerator:
        return f'Machine type "{kind}" requires a TPU topology and no accelerator type. Received: {accelerator!r}.'
    topologies = [str(row.topology) for row in rows]
    if topology in topologies:
        return None
    return f'TPU topology {topology!r} is not supported for machine type "{kind}": {", ".join(topologies)}.'


def _gpu(kind: str, accelerator: str, count: int, topology: str, rows: list[Accelerator]) -> str | None:
    if topology:
        return f'Machine type "{kind}" has no TPU topology.'
    if not accelerator:
        # The accelerator is optional only for machines that exist without one.
        return None if kind in machines.LISTED else f'Machine type "{kind}" requires accelerator type {rows[0].type}.'
    counts = sorted(row.count or 0 for row in rows if row.type == accelerator)
    if not counts:
        return f'Accelerator "{accelerator}" is not supported for machine type "{kind}".'
    if count not in counts:
        choices = ", ".join(map(str, counts))
        return f'Accelerator count {count} of {accelerator} is not supported for machine type "{kind}": {choices}.'
    return None


def _absent(kind: str, accelerator: str, count: int, region: str, rows: list[Accelerator]) -> str | None:
    if kind in machines.LISTED and not accelerator:
        rows = [accelerators.row("cpu")]
    # Pods of v2 and v3 are all in the regions of the smallest.
    fitting = [row for row in rows if row.type in (None, accelerator) and (row.hosts > 1) == (count >= _POD_CORES)]
    if any(region in row.regions for row in fitting or rows):
        return None
    with_accelerator = f" with accelerator {accelerator}" if accelerator else ""
    return f'Machine type "{kind}"{with_accelerator} is not supported in region {region}.'


def _disk(spec: Json, disk: Json, where: str) -> Iterator[Problem]:
    kind, machine_type = disk.get("bootDiskType") or "", spec.get("machineType") or ""
    if not isinstance(kind, str) or not isinstance(machine_type, str):
        return
    kind = kind or machines.default_disk(machine_type)
    if kind not in machines.DISKS:
        yield (
            f"{where}.boot_disk_type",
            f"Boot disk type {kind!r} is not supported: {', '.join(machines.DISKS)}.",
        )
    elif kind not in machines.boot_disks(machine_type):
        yield f"{where}.boot_disk_type", f"{kind} disk type cannot be used by {machine_type} machine type."


def _reservation(spec: Json, machine_spec: Json, region: str, where: str) -> Iterator[Problem]:
    affinity = mapping(machine_spec.get("reservationAffinity"))
    value = affinity.get("reservationAffinityType")
    kind = _RESERVATIONS.get(value, str(value)) if isinstance(value, int) else value
    reserved = kind in ("ANY_RESERVATION", "SPECIFIC_RESERVATION")
    machine_type = machine_spec.get("machineType")
    # Machines of a persistent resource were reserved when it was created.
    own_machine = not spec.get("persistentResourceId")
    if own_machine and not reserved and any(row.reservation for row in rows_of(machine_type)):
        yield where, f'Machine type "{machine_type}" requires a reservation: ANY_RESERVATION or SPECIFIC_RESERVATION.'
    if "reservationAffinity" in machine_spec and kind not in _RESERVATIONS.values():
        yield where, f"The reservation affinity type has to be set: {', '.join(_RESERVATIONS.values())}."
    if reserved and mapping(spec.get("scheduling")).get("strategy") == "FLEX_START":
        yield where, "A reservation cannot be used with strategy FLEX_START."
    if reserved and not own_machine:
        yield where, "A reservation cannot be used on a persistent resource."
    if kind == "SPECIFIC_RESERVATION":
        yield from _specific(affinity, region, where)


def _specific(affinity: Json, region: str, where: str) -> Iterator[Problem]:
    key, values = affinity.get("key"), affinity.get("values")
    if key != _RESERVATION_KEY:
        yield f"{where}.key", f"The key of a SPECIFIC_RESERVATION is {_RESERVATION_KEY}. Received: {key!r}."
    names = values if isinstance(values, list) else []
    wrong = [name for name in names if not (isinstance(name, str) and _RESERVATION.fullmatch(name))]
    if wrong or not names:
        form = "projects/{project}/zones/{zone}/reservations/{reservation}"
        yield f"{where}.values", f"A reservation has the form `{form}`. Received: {names!r}."
    for name in names if not wrong else ():
        yield from _elsewhere(f"{where}.values", "reservation", _RESERVATION, name, region)


def location(region: str) -> Iterator[Problem]:
    """Yield the mistakes in the region of a request."""
    if region not in regions.KNOWN:
        near = regions.meant(region)
        text = f"The provided location ID doesn't match the endpoint. Received: {region[:100]!r}, which is no region of Vertex"
        yield "parent", f"{text} AI. The nearest valid location ID is `{near}`."


def _key(job: Json, region: str) -> Iterator[Problem]:
    where, name = f"{_JOB}.encryption_spec.kms_key_name", mapping(job.get("encryptionSpec")).get("kmsKeyName")
    if "encryptionSpec" not in job or not isinstance(name, str | None):
        return
    if not _KMS_KEY.fullmatch(name or ""):
        form = "projects/my-project/locations/my-region/keyRings/my-kr/cryptoKeys/my-key"
        yield where, f"The Cloud KMS key has the form `{form}`. Received: {name!r}."
    else:
        yield from _elsewhere(where, "Cloud KMS key", _KMS_KEY, str(name), region)


def _names(spec: Json, region: str) -> Iterator[Problem]:
    for field, (proto, form, pattern) in _FORMS.items():
        name, where = spec.get(field), f"{_SPEC}.{proto}"
        if name and isinstance(name, str) and not pattern.fullmatch(name):
            yield where, f"The {proto} has the form `{form}`. Received: {name!r}."
        elif name and isinstance(name, str):
            yield from _elsewhere(where, proto, pattern, name, region)
    if spec.get("tensorboard") and not spec.get("serviceAccount"):
        yield f"{_SPEC}.service_account", f"{_SPEC}.service_account must be specified when uploading to TensorBoard"
    name = spec.get("persistentResourceId")
    if name and isinstance(name, str) and not _PERSISTENT_RESOURCE.fullmatch(name):
        yield (
            f"{_SPEC}.persistent_resource_id",
            "persistent_resource_id can only contain numbers, lower case letters and hyphens. The first character must be a "
            "letter, and the last character must be a letter or number.",
        )


def _network(job: Json, region: str) -> Iterator[Problem]:
    spec, where = mapping(job.get("jobSpec")), f"{_SPEC}.network"
    network = spec.get("network")
    if network and isinstance(network, str):
        if not _NETWORK.fullmatch(network):
            form = "projects/{project number}/global/networks/{network}"
            yield (
                where,
                f"The network has the form `{form}`, with lowercase letters in its name. Received: {network!r}.",
            )
        types = [mapping(pool.get("machineSpec")).get("acceleratorType") for _, pool in pools(job)]
        without = sorted({str(row.type) for row in accelerators.ROWS if row.type in types and not row.peering})
        if without:
            yield where, f"VPC peering is not supported with {', '.join(without)}; a network attachment (PSC-I) is."
    where = f"{_SPEC}.psc_interface_config.network_attachment"
    attachment = mapping(spec.get("pscInterfaceConfig")).get("networkAttachment")
    if attachment and isinstance(attachment, str):
        if "/" in attachment and _ATTACHMENT.fullmatch(attachment):
            yield from _elsewhere(where, "network attachment", _ATTACHMENT, attachment, region)
        elif not re.fullmatch(_NAME, attachment):
            form = "projects/{project}/regions/{region}/networkAttachments/{name}"
            yield where, f"The network attachment is a name or has the form `{form}`. Received: {attachment!r}."


def _mounts(pool: Json, spec: Json, where: str) -> Iterator[Problem]:
    mounts = pool.get("nfsMounts")
    for index, mount in enumerate(map(mapping, mounts if isinstance(mounts, list) else ())):
        server, path, point = (mount.get(name, "") for name in ("server", "path", "mountPoint"))
        here = f"{where}[{index}]"
        if not _is_address(server):
            yield f"{here}.server", f"The NFS server is an IP address in your network. Received: {server!r}."
        if not str(path).startswith("/"):
            yield f"{here}.path", f"The NFS path has to start with '/'. Received: {path!r}."
        if not re.fullmatch(r"[\w.-]+", str(point), re.A) or point in (".", ".."):
            yield (
                f"{here}.mount_point",
                f"The mount point is the name of a directory in /mnt/nfs. Received: {point!r}.",
            )
    if mounts and not spec.get("network") and not spec.get("pscInterfaceConfig"):
        yield where, "NFS mounts require a network or a psc_interface_config."


def _is_address(server: object) -> bool:
    try:
        return bool(ipaddress.ip_address(str(server)))
    except ValueError:
        return False


def _executor(pool: Json, where: str) -> Iterator[Problem]:
    image = mapping(pool.get("pythonPackageSpec")).get("executorImageUri")
    if image and isinstance(image, str) and not _EXECUTOR.fullmatch(image):
        description = (
            "a prebuilt container for training, such as us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest"
        )
        yield where, f"The executor image is {description}. Received: {image!r}."


def _elsewhere(where: str, what: str, pattern: re.Pattern[str], name: str, region: str) -> Iterator[Problem]:
    match = pattern.fullmatch(name)
    if match and match["region"] != region:
        yield where, f"The {what} needs to be in the same region as the job, {region}. Received: {name!r}."


def pools(job: Json) -> Iterator[tuple[int, Json]]:
    """Yield the pools of a job, each with its index."""
    listed = mapping(job.get("jobSpec")).get("workerPoolSpecs")
    for index, pool in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(pool, Mapping):
            yield index, pool


def number(value: object) -> int | None:
    """Return a whole number of JSON, even one written as text; None for anything else."""
    text = value if isinstance(value, str) else ""
    return value if type(value) is int else int(text[:_DIGITS]) if text.isdecimal() else None


def region_of(name: str) -> str:
    """Return the region or location in the name of a resource, "" if there is none."""
    match = re.search(r"/(?:locations|regions)/([a-z0-9-]+)/", name)
    return match[1] if match else ""


def mapping(value: object) -> Json:
    return value if isinstance(value, Mapping) else {}
