"""What each local task is started with: the same variables, in the same shapes, as a task on Vertex AI sees."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import cluster
from ...planner import Plan
from ...runtime import first_stage

# Vertex AI gives the number of a project; there is none here, and code that parses it gets a number.
_PROJECT_NUMBER = "0"


def body(plan: Plan) -> dict[str, Any]:
    """Return commands and variables of attempt 1 as a plan shows them; "<port>" stands where a port will be."""
    addresses = {task.name: f"{cluster.host_name(task, plan.run_id)}:<port>" for task in plan.members}
    return {
        "tasks": [
            {
                "name": task.name,
                "command": command(plan, 1, task.name),
                "env": environment(plan, 1, task, addresses, plan.paths.temporary),
            }
            for task in plan.members
        ]
    }


def command(plan: Plan, attempt: int, task: str) -> list[str]:
    """Return the words that start a task."""
    return [plan.facts["executable"], str(Path(first_stage.__file__)), plan.paths.payload(attempt), task]


def environment(
    plan: Plan, attempt: int, task: cluster.Task, addresses: Mapping[str, str], temporary: str
) -> dict[str, str]:
    """Return the variables that podlift sets for a task, the job's own ones among them.

    Args:
        plan: the run.
        attempt: counts from 1.
        task: who it is for.
        addresses: "host:port" of every task, by name.
        temporary: the folder that holds the tasks' own temporary folders.
    """
    paths = plan.paths
    found = {
        "CLOUD_ML_JOB_ID": plan.run_id,
        "CLOUD_ML_PROJECT_ID": _PROJECT_NUMBER,
        "AIP_MODEL_DIR": f"{paths.model}/",
        "AIP_CHECKPOINT_DIR": f"{paths.checkpoints}/",
        "AIP_TENSORBOARD_LOG_DIR": f"{paths.tensorboard}/",
        "PODLIFT_RUN": paths.url,
        "PODLIFT_TASK": task.name,
        "PODLIFT_ATTEMPT": str(attempt),
        "TMPDIR": scratch(temporary, attempt, task.name),
        "PYTHONUNBUFFERED": "1",
        # The supervisor holds every port while the tasks bind theirs: nobody else can take one in between.
        "TF_GRPC_REUSE_PORT": "true",
        # The tasks' own connections must not go through a proxy that the user has set for the internet.
        "no_grpc_proxy": ",".join(["localhost", *(address.rpartition(":")[0] for address in addresses.values())]),
        **cluster.environment(task, plan.members, addresses, {"run": plan.run_id}),
    }
    if plan.job["resources"]["accelerator"] == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = "-1"
    if plan.job["code"]["keras"] == "legacy":
        found["TF_USE_LEGACY_KERAS"] = "1"
    return {**found, **plan.job["env"]}


def scratch(temporary: str, attempt: int, task: str) -> str:
    """Return a task's TMPDIR."""
    return posixpath.join(temporary, f"{attempt}-{task}")


def inherited(caller: Mapping[str, str]) -> dict[str, str]:
    """Return what a task sees of the environment that the run was submitted from: all but podlift's own settings."""
    kept = {name: value for name, value in caller.items() if not name.startswith("PODLIFT_")}
    for name in ("TF_CONFIG", "CLUSTER_SPEC"):
        kept.pop(name, None)
    # The supervisor needed its own folder on the path; its tasks get what the caller had.
    kept.pop("PYTHONPATH", None)
    if "PODLIFT_CALLER_PYTHONPATH" in caller:
        kept["PYTHONPATH"] = caller["PODLIFT_CALLER_PYTHONPATH"]
    return kept
