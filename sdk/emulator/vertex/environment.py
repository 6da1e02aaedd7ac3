"""What a replica of an emulated job is told about itself: names, addresses, and the variables that Vertex AI sets. Pure.

The shapes are those that Vertex AI documents, and where it documents none, those that real jobs have shown:
https://cloud.google.com/vertex-ai/docs/training/distributed-training and .../code-requirements (read 2026-11).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

# By the place of the pool; an evaluator is in nobody's cluster.
_ROLES = ("chief", "worker", "ps", "evaluator")
_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_PROJECT_DIGITS = 12


@dataclass(frozen=True)
class Replica:
    """One container of a job.

    Args:
        pool: the place of its worker pool.
        index: its place in the pool.
    """

    pool: int
    index: int

    @property
    def name(self) -> str:
        """What logs and errors call it: "workerpool0-0"."""
        return f"workerpool{self.pool}-{self.index}"

    @property
    def role(self) -> str:
        """What TensorFlow calls it."""
        return _ROLES[self.pool]

    def host(self, token: str) -> str:
        """Return the name of its machine, which stays the same when it is restarted.

        Args:
            token: ten hex digits of the job.
        """
        return f"cmle-training-workerpool{self.pool}-{token}-{self.index}"


def worker_pools(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the worker pools of a CustomJob; one that is skipped is {}."""
    found: list[Mapping[str, Any]] = job["jobSpec"]["workerPoolSpecs"]
    return found


def replicas(job: Mapping[str, Any]) -> list[Replica]:
    """Return all replicas of a CustomJob, the primary one first."""
    return [Replica(pool, i) for pool, spec in enumerate(worker_pools(job)) for i in range(_count(spec))]


def _count(pool: Mapping[str, Any]) -> int:
    return int(pool.get("replicaCount", 0))


def host_token(job_id: str) -> str:
    """Return the ten hex digits in the host names of a job."""
    return hashlib.sha256(job_id.encode()).hexdigest()[:10]


def project_number(project: str) -> str:
    """Return the number of a project; whoever gives a number gets it back."""
    if project.isascii() and project.isdigit():
        return project
    return str(10 ** (_PROJECT_DIGITS - 1) + int(hashlib.sha256(project.encode()).hexdigest(), 16) % 10**11)


def cluster_env(replica: Replica, addresses: Mapping[Replica, str], spec: Mapping[str, Any]) -> dict[str, str]:
    """Return `CLUSTER_SPEC`, and with more than one replica `TF_CONFIG`.

    Args:
        replica: who it is for.
        addresses: "host:port" of every replica, in order.
        spec: the jobSpec, which both repeat.
    """
    by_pool: dict[str, list[str]] = {}
    by_role: dict[str, list[str]] = {}
    for member, address in addresses.items():
        by_pool.setdefault(f"workerpool{member.pool}", []).append(address)
        if member.role != "evaluator":
            by_role.setdefault(member.role, []).append(address)
    common = {"environment": "cloud", "job": spec}
    place = {"type": f"workerpool{replica.pool}", "index": replica.index}
    found = {"CLUSTER_SPEC": json.dumps({"cluster": by_pool, "task": place, **common})}
    if len(addresses) > 1:
        cloud = hashlib.sha256(addresses[replica].encode()).hexdigest()[:16]
        task = {"type": replica.role, "index": replica.index, "cloud": cloud}
        found["TF_CONFIG"] = json.dumps({"cluster": by_role, "task": task, **common})
    return found


def service_env(job: Mapping[str, Any], *, job_id: str, project: str, region: str) -> dict[str, str]:
    """Return what Vertex AI sets in every replica of a job.

    Args:
        job: the CustomJob.
        job_id: its number.
        project: of the request; the variable holds a number.
        region: where it "runs".
    """
    found = {"CLOUD_ML_JOB_ID": job_id, "CLOUD_ML_PROJECT_ID": project_number(project), "CLOUD_ML_REGION": region}
    base = (job["jobSpec"].get("baseOutputDirectory") or {}).get("outputUriPrefix")
    if base:
        base = base.rstrip("/")
        folders = {"MODEL_DIR": "model", "CHECKPOINT_DIR": "checkpoints", "TENSORBOARD_LOG_DIR": "logs"}
        found.update({f"AIP_{name}": f"{base}/{folder}/" for name, folder in folders.items()})
    return found


def emulator_env(url: str, secret: str, hosts: Iterable[str]) -> dict[str, str]:
    """Return what leads a replica to the emulator, where the cloud would need nothing.

    Args:
        url: the emulator's.
        secret: the replica's, by which the metadata server knows who asks.
        hosts: the names of the replicas, whose connections go through no proxy.
    """
    # What reads them puts http:// before and a path behind, so a part of a path may stand here.
    place = f"{urlsplit(url).netloc}/{secret}"
    spared = ",".join(["localhost", "127.0.0.1", *hosts])
    return {
        "PODLIFT_EMULATOR": url,
        "STORAGE_EMULATOR_HOST": url,
        # By both: a client asks the address whether there is a server, and the name for a token.
        "GCE_METADATA_HOST": place,
        "GCE_METADATA_IP": place,
        # The emulator holds every port while the replicas bind theirs: nobody else can take one in between.
        "TF_GRPC_REUSE_PORT": "true",
        "no_grpc_proxy": spared,
        "no_proxy": spared,
        "NO_PROXY": spared,
    }


def expand_env(given: Iterable[Mapping[str, str]], known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a container, with every `$(NAME)` replaced that is known or was given before.

    What is not known stays as it is, and `$$(NAME)` stands for `$(NAME)`, as in Kubernetes.

    Args:
        given: {"name", "value"} in order.
        known: the variables that the service sets.
    """
    found: dict[str, str] = {}
    for variable in given:
        found[variable["name"]] = _expanded(variable.get("value", ""), {**known, **found})
    return found


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return known.get(match[2], match[0])

    return _REFERENCE.sub(replaced, text)


def container_command(pool: Mapping[str, Any]) -> list[str]:
    """Return the words of a pool's container; [] where only its image knows them."""
    container = pool.get("containerSpec") or {}
    return [*container.get("command", ()), *container.get("args", ())]


def unsupported_pools(job: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each worker pool that cannot be run on this machine."""
    found = []
    for place, pool in enumerate(worker_pools(job)):
        if pool and "pythonPackageSpec" not in pool and not container_command(pool):
            image = (pool.get("containerSpec") or {}).get("imageUri")
            found.append(
                f"jobSpec.workerPoolSpecs[{place}].containerSpec has neither command nor args: only the image says what it "
                f"runs, and this emulator runs processes, not images. Received: imageUri {image!r}. Next: write the image's "
                "ENTRYPOINT and CMD into command and args."
            )
    return found


def pool_env(pool: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return what the caller has set for a pool's replicas."""
    found: Sequence[Mapping[str, str]] = (pool.get("containerSpec") or pool.get("pythonPackageSpec") or {}).get(
        "env", ()
    )
    return found
