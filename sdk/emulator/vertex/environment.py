"""Names, addresses, environment variables and Python environments of the replicas of an emulated job.

The values have the form that Vertex AI documents, or if it documents none, the form that real jobs have shown:
https://cloud.google.com/vertex-ai/docs/training/distributed-training and .../code-requirements (read 2026-11).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shlex
import site
import sys
import sysconfig
import venv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...hardware import accelerators
from . import machines

# By the index of the pool; an evaluator is not a member of the cluster.
_ROLES = ("chief", "worker", "ps", "evaluator")
_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
_PROJECT_DIGITS = 12
# In a folder with other programs, only Python's own files are read-only.
_SHARED = ("/", "/usr", "/usr/local")
_SCRIPT_BYTES = 1 << 16
_CFG = "include-system-site-packages = "
# Newer versions of pip allow --user only if site does, which turns it off after the .pth files and before this function.
_USER_PACKAGES = (
    "import site; site.addusersitepackages = lambda known, site=site: setattr(site, 'ENABLE_USER_SITE', True) or known"
)


@dataclass(frozen=True)
class Replica:
    """One container of a job: the index of its worker pool, and its index in the pool."""

    pool: int
    index: int

    @property
    def name(self) -> str:
        return f"workerpool{self.pool}-{self.index}"

    @property
    def role(self) -> str:
        return _ROLES[self.pool]

    def host(self, token: str) -> str:
        """Return the name of its machine, which stays the same after a restart; `token` is the job's, see `host_token`."""
        return f"cmle-training-workerpool{self.pool}-{token}-{self.index}"


def worker_pools(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the worker pools of a CustomJob; one that is skipped is {}."""
    pools: list[Mapping[str, Any]] = job["jobSpec"]["workerPoolSpecs"]
    return pools


def replicas(job: Mapping[str, Any]) -> list[Replica]:
    counts = [int(spec.get("replicaCount", 0)) for spec in worker_pools(job)]
    return [Replica(pool, index) for pool, count in enumerate(counts) for index in range(count)]


def host_token(job_id: str) -> str:
    return hashlib.sha256(job_id.encode()).hexdigest()[:10]


def project_number(project: str) -> str:
    if project.isascii() and project.isdigit():
        return project
    return str(10 ** (_PROJECT_DIGITS - 1) + int(hashlib.sha256(project.encode()).hexdigest(), 16) % 10**11)


def cluster_env(replica: Replica, addresses: Mapping[Replica, str], spec: Mapping[str, Any]) -> dict[str, str]:
    """Return `CLUSTER_SPEC`, and with more than one replica `TF_CONFIG`."""
    by_pool: dict[str, list[str]] = {}
    by_role: dict[str, list[str]] = {}
    for member, address in addresses.items():
        by_pool.setdefault(f"workerpool{member.pool}", []).append(address)
        if member.role != "evaluator":
            by_role.setdefault(member.role, []).append(address)
    common = {"environment": "cloud", "job": spec}
    task_id = {"type": f"workerpool{replica.pool}", "index": replica.index}
    variables = {"CLUSTER_SPEC": json.dumps({"cluster": by_pool, "task": task_id, **common})}
    if len(addresses) > 1:
        cloud = hashlib.sha256(addresses[replica].encode()).hexdigest()[:16]
        task = {"type": replica.role, "index": replica.index, "cloud": cloud}
        variables["TF_CONFIG"] = json.dumps({"cluster": by_role, "task": task, **common})
    return variables


def service_env(job: Mapping[str, Any], *, job_id: str, project: str, region: str) -> dict[str, str]:
    """Return the variables that Vertex AI sets in every replica of a job."""
    variables = {"CLOUD_ML_JOB_ID": job_id, "CLOUD_ML_PROJECT_ID": project_number(project), "CLOUD_ML_REGION": region}
    base = (job["jobSpec"].get("baseOutputDirectory") or {}).get("outputUriPrefix")
    if base:
        base = base.rstrip("/")
        folders = {"MODEL_DIR": "model", "CHECKPOINT_DIR": "checkpoints", "TENSORBOARD_LOG_DIR": "logs"}
        variables.update({f"AIP_{name}": f"{base}/{folder}/" for name, folder in folders.items()})
    return variables


def stand_in_env(pool: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a replica needs because CPUs stand in for its accelerator."""
    machine = pool.get("machineSpec") or {}
    return accelerators.STAND_IN_ENV if machine.get("acceleratorType") or machines.is_tpu(machine) else {}


def emulator_env(url: str, secret: str, hosts: Iterable[str]) -> dict[str, str]:
    """Return the variables by which a replica finds the emulator; in the cloud it would need none."""
    # Clients prepend http:// and append a path, so the value may contain the first part of a path.
    address = f"{urlsplit(url).netloc}/{secret}"
    spared = ",".join(["localhost", "127.0.0.1", *hosts])
    return {
        "PODLIFT_EMULATOR": url,
        "STORAGE_EMULATOR_HOST": url,
        # Both: a client detects the server by its address, and requests tokens by its name.
        "GCE_METADATA_HOST": address,
        "GCE_METADATA_IP": address,
        # The emulator holds every port until the replicas bind theirs, so that no other process can take one.
        "TF_GRPC_REUSE_PORT": "true",
        "no_grpc_proxy": spared,
        "no_proxy": spared,
        "NO_PROXY": spared,
    }


def expand_env(env: Iterable[Mapping[str, str]], service_env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a container, with every `$(NAME)` replaced that is known or precedes it.

    An unknown one stays as it is, and `$$(NAME)` stands for `$(NAME)`, as in Kubernetes. `service_env` has the service's own.
    """
    variables: dict[str, str] = {}
    for variable in env:
        values = {**service_env, **variables}

        def replaced(match: re.Match[str], values: Mapping[str, str] = values) -> str:
            return "$" if match[1] == "$" else values.get(match[2], match[0])

        variables[variable["name"]] = _REFERENCE.sub(replaced, variable.get("value", ""))
    return variables


def container_command(pool: Mapping[str, Any]) -> list[str]:
    container = pool.get("containerSpec") or {}
    return [*container.get("command", ()), *container.get("args", ())]


def unsupported_pools(job: Mapping[str, Any]) -> list[str]:
    problems = []
    for number, pool in enumerate(worker_pools(job)):
        if pool and "pythonPackageSpec" not in pool and not container_command(pool):
            image = (pool.get("containerSpec") or {}).get("imageUri")
            problems.append(
                f"jobSpec.workerPoolSpecs[{number}].containerSpec has neither command nor args: only the image names the "
                f"command, and this emulator runs processes, not images. Received: imageUri {image!r}. Next: write the image's "
                "ENTRYPOINT and CMD into command and args."
            )
    return problems


def pool_env(pool: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    task = pool.get("containerSpec") or pool.get("pythonPackageSpec") or {}
    variables: Sequence[Mapping[str, str]] = task.get("env", ())
    return variables


def make_environment(folder: Path) -> dict[str, str]:
    """Make the environment of one start of a replica in a new folder, and return the variables that activate it.

    The folder also holds the user's packages, as of `pip install --user`.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    # Python reads "False" as false; pip rejects packages of the user, which are in the environment, only for "false".
    cfg = folder / "pyvenv.cfg"
    cfg.write_text(cfg.read_text().replace(f"{_CFG}false", f"{_CFG}False"))
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # By addsitedir: a line with only a path would skip the .pth files in that folder.
    lines = [_USER_PACKAGES, *(f"import site; site.addsitedir({script!r})" for script in site_folders())]
    (packages / "podlift-emulator.pth").write_text("\n".join([*lines, *_pip_of_python(), ""]))
    python = shlex.quote(str(folder / "bin" / "python"))
    pips = dict.fromkeys(("pip", "pip3", f"pip3.{sys.version_info[1]}"), "-m pip")
    for name, words in {**_scripts(), **pips}.items():
        script = folder / "bin" / name
        if not script.exists():
            script.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            script.chmod(0o755)
    return {"PYTHONUSERBASE": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}"}


@functools.cache
def site_folders() -> tuple[str, ...]:
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    folders = [*users, *site.getsitepackages()]
    return tuple(folder for folder in dict.fromkeys(folders) if folder in sys.path and Path(folder).is_dir())


@functools.cache
def read_only_folders() -> tuple[str, ...]:
    names = {*site_folders(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    names |= {prefix for prefix in (sys.prefix, sys.base_prefix) if os.path.realpath(prefix) not in _SHARED}
    for folder in ("/usr/lib", "/usr/local/lib"):
        names |= {str(path) for path in Path(folder).glob("python3*")}
    folders = sorted({Path(name).resolve() for name in names})
    whole = [folder for folder in folders if folder.is_dir() and not any(other in folder.parents for other in folders)]
    return tuple(map(str, whole))


@functools.cache
def _pip_of_python() -> tuple[str, ...]:
    """Return the pip that comes with Python if the emulator's interpreter has none, as in environments made by uv."""
    if importlib.util.find_spec("pip") is not None:
        return ()
    import ensurepip

    folders = [
        Path(ensurepip.__file__).parent / "_bundled",
        Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/nowhere"),
    ]
    return tuple(str(wheel) for folder in folders for wheel in sorted(folder.glob("pip-*.whl")))[:1]


@functools.cache
def _scripts() -> dict[str, str]:
    """Return the Python programs beside the emulator's interpreter: they find a job's own packages too."""
    folder, scripts = Path(sys.executable).parent, {}
    if os.path.realpath(folder) in ("/bin", "/usr/bin"):
        return {}
    for script in sorted(folder.iterdir()):
        try:
            with script.open("rb") as file:
                head = file.read(2) + file.readline() + file.readline()
        except OSError:
            continue
        if head.startswith(b"#!") and os.fsencode(folder / "python") in head and script.stat().st_size < _SCRIPT_BYTES:
            scripts[script.name] = shlex.quote(str(script))
    return scripts
