"""The environments of tasks on this machine: the same variables, in the same form, as on Vertex AI."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from ..hardware import accelerators
from ..job import cluster
from ..job.plan import Plan

# Vertex AI sets the project's number. Code that parses it must find a number here too.
_PROJECT_NUMBER = "0"
# Variables of the machine and its user. Tasks inherit only these.
_MACHINE = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|XDG_\w+|"
    r"SSL_CERT_(FILE|DIR)|(REQUESTS|CURL|AWS)_CA_BUNDLE|HTTPLIB2_CA_CERTS|GRPC_DEFAULT_SSL_ROOTS_FILE_PATH|((https?|no|all|ftp)_proxy)|((HTTPS?|NO|ALL|FTP)_PROXY)|"
    # Credentials of this machine. In a cloud, tasks have a service account instead.
    r"GOOGLE_APPLICATION_CREDENTIALS|GOOGLE_CLOUD_PROJECT|CLOUDSDK_CONFIG|STORAGE_EMULATOR_HOST|PODLIFT_EMULATOR|"
    r"PODLIFT_(TPU|GPU)_REPLICAS"
)
# Set by the shell itself.
_SHELL = set(
    ["PWD", "OLDPWD", "SHLVL", "_", "PS1", "PS2", "HISTFILE", "LS_COLORS", "LESSOPEN", "LESSCLOSE", "COLUMNS", "LINES"]
)


def environment(
    plan: Plan, attempt: int, task: cluster.Task, addresses: Mapping[str, str], temporary: str
) -> dict[str, str]:
    """Return the variables that podlift sets for a task, including the job's own."""
    paths = plan.paths
    variables = {
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
        # Tasks bind the ports that the supervisor reserves (process/ports.py).
        "TF_GRPC_REUSE_PORT": "true",
        # Connections between tasks must not use the user's internet proxy.
        "no_grpc_proxy": ",".join(["localhost", *(address.rpartition(":")[0] for address in addresses.values())]),
        **cluster.network(plan.tasks),
        **cluster.environment(task, plan.members, addresses, {"run": plan.run_id}),
    }
    hardware = accelerators.row(plan.job.resources.accelerator)
    variables["CUDA_VISIBLE_DEVICES"] = _gpus(plan, task)
    if hardware.family == "tpu":
        node = {"project": "podlift-local", "zone": "local", "tpu_node_name": plan.run_id}
        variables |= {"TPU_NODE_NAME": plan.run_id, "TPU_CONFIG": json.dumps(node)}
    if plan.stands_in and hardware.family != "cpu":
        variables |= {name: value for name, value in accelerators.STAND_IN_ENV.items() if name not in plan.job.env}
    if plan.job.code.keras == "legacy":
        variables["TF_USE_LEGACY_KERAS"] = "1"
    return {**variables, **{name: value for name, value in plan.job.env.items() if isinstance(value, str)}}


def _gpus(plan: Plan, task: cluster.Task) -> str:
    """Return the GPUs of this machine that a task sees: none, or its own if the run is to use them."""
    row = accelerators.row(plan.job.resources.accelerator)
    if row.family != "gpu" or task.role == "ps":
        return "-1"
    if plan.stands_in:
        return accelerators.HIDDEN_GPUS
    using = [name for name in plan.tasks if cluster.role_of(name) != "ps"]
    first, count = using.index(task.name), accelerators.per_task(row)
    return ",".join(str(gpu) for gpu in range(first * count, (first + 1) * count))


def scratch(temporary: str, attempt: int, task: str) -> str:
    return posixpath.join(temporary, f"{attempt}-{task}")


def inherited(caller: Mapping[str, str], copied: Collection[str]) -> dict[str, str]:
    """Return the part of the caller's environment that a task inherits.

    A cloud inherits none of it: a program that needs more than the machine's own variables must not pass here and fail there.
    """
    machine_variables = {name: value for name, value in caller.items() if _MACHINE.fullmatch(name)}
    # The supervisor has podlift's folder on the path. Tasks get the caller's path.
    callers = {**caller, "PYTHONPATH": caller.get("PODLIFT_CALLER_PYTHONPATH", "")}
    return {**machine_variables, **{name: callers[name] for name in copied if name in callers}}


def callers_values(plan: Plan, caller: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task on this machine that come from the caller: copied ones, secrets, and the machine's own."""
    files = {name: secret.file for name, secret in plan.job.secrets.items() if secret.file is not None}
    values = {name: Path(plan.code.project, file).read_text().rstrip("\n") for name, file in files.items()}
    return {**inherited(caller, plan.job.callers), **values}


def dropped(caller: Mapping[str, str], own: Collection[str]) -> tuple[str, ...]:
    """Return the names of the caller's variables that tasks do not inherit, without the job's `own` and podlift's."""
    candidates = {name for name in caller if not _MACHINE.fullmatch(name) and not name.startswith("PODLIFT_")}
    return tuple(sorted(candidates - set(own) - _SHELL))
