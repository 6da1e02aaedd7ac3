"""The tasks of a cluster, and the environment variables that describe it to each task. No TensorFlow, no I/O.

Vertex AI documents the formats: `TF_CONFIG` if there is more than one task, `CLUSTER_SPEC` always.
https://cloud.google.com/vertex-ai/docs/training/distributed-training (read 2026-11)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .policies import Resources
from .targets import Target


@dataclass(frozen=True)
class Task:
    """One process of the cluster."""

    role: str  # "chief", "worker", "ps" or "evaluator"
    index: int  # among the tasks of that role
    pool: int  # of Vertex AI: 0 holds the first task, 1 the other workers, 2 parameter servers, 3 the evaluator
    pool_index: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


def tasks(workers: int, cluster: str = "chief", *, ps: int = 0, evaluator: bool = False) -> tuple[Task, ...]:
    """Return the tasks of a cluster. The first one decides whether the run succeeds."""
    first = Task("chief" if cluster == "chief" else "worker", 0, 0, 0)
    offset = 0 if cluster == "chief" else 1
    others = (Task("worker", i + offset, 1, i) for i in range(workers - 1))
    servers = (Task("ps", i, 2, i) for i in range(ps))
    return (first, *others, *servers, *([Task("evaluator", 0, 3, 0)] if evaluator else []))


def members(resources: Resources, target: Target) -> tuple[Task, ...]:
    """Return the tasks of a job."""
    return tasks(resources.workers, target.shape, ps=resources.ps, evaluator=resources.evaluator)


def named(names: Sequence[str]) -> tuple[Task, ...]:
    """Return the tasks of a cluster by their names, the first one first."""
    counts: dict[int, int] = {}
    tasks = []
    for number, name in enumerate(names):
        role, _, index = name.rpartition("-")
        pool = {"ps": 2, "evaluator": 3}.get(role, 1) if number else 0
        tasks.append(Task(role, int(index), pool, counts.get(pool, 0)))
        counts[pool] = counts.get(pool, 0) + 1
    return tuple(tasks)


def role_of(name: str) -> str:
    return name.rpartition("-")[0]


def restarts_alone(task: str, names: Sequence[str]) -> bool:
    """True if a task of a cluster is restarted alone when its process dies, while the other tasks continue."""
    if task == names[0]:
        return False
    # These tasks hold no state of the training. The first task reconnects to workers of parameter servers, and no task is
    # connected to an evaluator. All others are restarted together, because their state must be of the same step.
    return role_of(task) == "evaluator" or (role_of(task) == "worker" and has_servers(names))


def has_servers(names: Sequence[str]) -> bool:
    return any(role_of(name) == "ps" for name in names)


def in_step(names: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks of a cluster that take every training step together, including the first one.

    With parameter servers this is only the first task: the others serve it until it ends. An evaluator is independent.
    """
    if has_servers(names):
        return tuple(names[:1])
    return tuple(name for name in names if role_of(name) != "evaluator")


def end_by_themselves(names: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks that end without being stopped; parameter servers and their workers are stopped."""
    return (*in_step(names), *(name for name in names if role_of(name) == "evaluator"))


# The variables that `environment` returns.
VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC")


def network(names: Sequence[str]) -> dict[str, str]:
    """Return the variables that TensorFlow needs so that the first task notices lost workers and parameter servers."""
    return {"GRPC_FAIL_FAST": "use_caller"} if has_servers(names) else {}


def host_name(task: Task, run_id: str) -> str:
    """Return the name that the task's machine would have on Vertex AI, with ten hex digits derived from the run's id."""
    token = hashlib.sha256(run_id.encode()).hexdigest()[:10]
    return f"cmle-training-workerpool{task.pool}-{token}-{task.pool_index}"


def environment(
    task: Task, members: Sequence[Task], addresses: Mapping[str, str], job: Mapping[str, object]
) -> dict[str, str]:
    """Return `TF_CONFIG` (if there is more than one member) and `CLUSTER_SPEC` for one task.

    `addresses` holds "host:port" of each task by name, and `job` becomes "job" in both variables.
    """
    roles: dict[str, list[str]] = {}
    pools: dict[str, list[str]] = {}
    for member in members:
        # `TF_CONFIG` does not list an evaluator as part of the cluster.
        if member.role != "evaluator":
            roles.setdefault(member.role, []).append(addresses[member.name])
        pools.setdefault(f"workerpool{member.pool}", []).append(addresses[member.name])
    spec = {
        "cluster": pools,
        "environment": "cloud",
        "task": {"type": f"workerpool{task.pool}", "index": task.pool_index},
        "job": job,
    }
    variables = {"CLUSTER_SPEC": json.dumps(spec)}
    if len(members) > 1:
        config = {
            "cluster": roles,
            "environment": "cloud",
            "job": job,
            "task": {"type": task.role, "index": task.index, "cloud": host_name(task, str(job.get("run", "")))},
        }
        variables["TF_CONFIG"] = json.dumps(config)
    return variables
