"""What each local task is started with: the same variables, in the same shapes, as a task on Vertex AI sees."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ...hardware import accelerators
from ...spec import cluster
from ...spec.plan import Plan
from . import interpreter
from .interpreter import Interpreter

# Vertex AI gives the number of a project; there is none here, and code that parses it gets a number.
_PROJECT_NUMBER = "0"
# What belongs to the machine and its user, and has its own value on every machine: the only variables that tasks inherit.
_MACHINE = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|XDG_\w+|"
    r"SSL_CERT_(FILE|DIR)|(REQUESTS|CURL|AWS)_CA_BUNDLE|HTTPLIB2_CA_CERTS|GRPC_DEFAULT_SSL_ROOTS_FILE_PATH|((https?|no|all|ftp)_proxy)|((HTTPS?|NO|ALL|FTP)_PROXY)|"
    # How this machine proves who it is: in a cloud a task has a service account in their place.
    r"GOOGLE_APPLICATION_CREDENTIALS|GOOGLE_CLOUD_PROJECT|CLOUDSDK_CONFIG|STORAGE_EMULATOR_HOST|PODLIFT_EMULATOR|"
    r"PODLIFT_TPU_REPLICAS"
)
# A shell's own notes.
_SHELL = {
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "PS1",
    "PS2",
    "HISTFILE",
    "LS_COLORS",
    "LESSOPEN",
    "LESSCLOSE",
    "COLUMNS",
    "LINES",
}


def body(plan: Plan) -> dict[str, Any]:
    """Return commands and variables of attempt 1 as a plan shows them; "<port>" stands where a port will be.

    Where an environment is to be made of the requirements, its own interpreter takes the place of the one that is shown.
    """
    addresses = {task.name: f"{cluster.host_name(task, plan.run_id)}:<port>" for task in plan.members}
    isolated = plan.job["code"].get("isolated", False)
    return {
        **({"environment": plan.requirements} if isolated else {}),
        "tasks": [
            {
                "name": task.name,
                "command": command(plan, 1, task.name, interpreter.current(plan)),
                "env": environment(plan, 1, task, addresses, plan.paths.temporary),
                "copied": copied(plan.job["env"]),
            }
            for task in plan.members
        ],
    }


def command(plan: Plan, attempt: int, task: str, starter: Interpreter) -> list[str]:
    """Return the words that start a task."""
    return [starter.python, starter.task_main, plan.paths.payload(attempt), task]


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
    hardware = accelerators.row(plan.job["resources"]["accelerator"])
    if hardware.family != "gpu":
        found["CUDA_VISIBLE_DEVICES"] = "-1"
    if hardware.family == "tpu":
        node = {"project": "podlift-local", "zone": "local", "tpu_node_name": plan.run_id}
        found |= {"TPU_NODE_NAME": plan.run_id, "TPU_CONFIG": json.dumps(node)}
    if plan.job["code"]["keras"] == "legacy":
        found["TF_USE_LEGACY_KERAS"] = "1"
    return {**found, **{name: value for name, value in plan.job["env"].items() if isinstance(value, str)}}


def scratch(temporary: str, attempt: int, task: str) -> str:
    """Return a task's TMPDIR."""
    return posixpath.join(temporary, f"{attempt}-{task}")


def inherited(caller: Mapping[str, str], job: Mapping[str, Any]) -> dict[str, str]:
    """Return what a task sees of the environment that the run was submitted from.

    A cloud passes none of it, so a program that needs more than the machine itself does would pass here and fail there.

    Args:
        caller: the supervisor's variables, which are the caller's.
        job: the Job's env, as JSON: it names those that are copied.
    """
    kept = {name: value for name, value in caller.items() if _MACHINE.fullmatch(name)}
    # The supervisor needed its own folder on the path; its tasks get what the caller had.
    callers = {**caller, "PYTHONPATH": caller.get("PODLIFT_CALLER_PYTHONPATH", "")}
    return {**kept, **{name: callers[name] for name in copied(job) if name in callers}}


def dropped(caller: Mapping[str, str], job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the variables that a task does not see; podlift's own settings are not worth a word."""
    given = {name for name in caller if not _MACHINE.fullmatch(name) and not name.startswith("PODLIFT_")}
    return tuple(sorted(given - set(job) - _SHELL))


def copied(job: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables whose value is the caller's."""
    return [name for name, value in job.items() if not isinstance(value, str)]
