"""The parts of a custom job that follow from the settings and the hardware alone, without its containers. Pure.

Sources: the messages CustomJob, CustomJobSpec and WorkerPoolSpec of google.cloud.aiplatform.v1; documentation of Vertex AI,
training/distributed-training (the index of a pool is its role).
"""

from __future__ import annotations

from typing import Any

from ....hardware import machines
from ....hardware.accelerators import Pool
from ....job.policies import Resources
from ....job.raw import patched
from ..options import Vertex

ATTACHMENTS = "/networkAttachments/"


def body(target: Vertex, resources: Resources, *, with_raw: bool = True) -> dict[str, Any]:
    """Return the fields of the job that are known before there is a run, by default with `raw` merged in."""
    account = {"serviceAccount": target.service_account} if target.service_account else {}
    resource = {"persistentResourceId": target.persistent_resource} if target.persistent_resource else {}
    board = {"tensorboard": target.tensorboard} if target.tensorboard else {}
    spec = {"workerPoolSpecs": pools(target, resources), **network(target), **resource, **board, **account}
    job: dict[str, Any] = {"jobSpec": spec, **encryption(target)}
    return patched(job, target.raw) if with_raw else job


def pools(target: Vertex, resources: Resources) -> list[dict[str, Any]]:
    """Return the pools without their containers. The index of a pool is its role, so a pool without tasks keeps its index."""
    specs: list[dict[str, Any]] = []
    for pool in target.pools(resources):
        specs += [{} for _ in range(pool.index - len(specs))]
        specs.append(
            {
                "machineSpec": _machine(pool),
                "replicaCount": str(pool.replicas),
                "diskSpec": disk(pool.machine, target.disk_gb),
            }
        )
    return specs


def disk(machine: str, size_gb: int) -> dict[str, object]:
    """Return the boot disk of a machine, with its type if the machine does not boot from the default one."""
    kinds = machines.boot_disks(machine)
    kind = {} if machines.default_disk(machine) in kinds else {"bootDiskType": kinds[0]}
    return {**kind, "bootDiskSizeGb": size_gb}


def network(target: Vertex) -> dict[str, object]:
    """Return the field of a job's network: one that is peered, or an attachment in one."""
    if not target.network:
        return {}
    attached = ATTACHMENTS in target.network
    return {"pscInterfaceConfig": {"networkAttachment": target.network}} if attached else {"network": target.network}


def encryption(target: Vertex) -> dict[str, object]:
    """Return the field of a job's key."""
    return {"encryptionSpec": {"kmsKeyName": target.kms_key}} if target.kms_key else {}


def _machine(pool: Pool) -> dict[str, object]:
    row = pool.accelerator
    spec: dict[str, object] = {"machineType": pool.machine}
    spec |= {"acceleratorType": row.type, "acceleratorCount": row.count} if row.type else {}
    return {**spec, "tpuTopology": row.topology} if row.topology else spec
