"""The files that a backend with containers writes into the root: podlift itself, and the launch spec of the agents."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from .. import checks
from ..clock import Clock
from ..hardware import accelerators
from ..job.container import ContainerTerms
from ..job.layout import RootPaths
from ..job.plan import Plan
from ..records.sync import push
from ..records.sync.index import KEYS, SyncedRun
from ..storage import cache, posix
from ..storage.folder_files import in_folder, path_of
from ..storage.parallel import in_parallel
from ..storage.registry import Files
from ..storage.store import Store, create

# The oldest and newest supported Python.
PYTHON_RANGE = ("3.10", "3.13")
HIDDEN = "***"
# Kubernetes, which also runs the containers of Vertex AI, replaces $$ with $ and expands $(NAME).
_EXPANDED = re.compile(r"\$(?=\()|\${2,}")


def launch_spec(
    plan: Plan, number: int, runtime: str, terms: ContainerTerms, replicas: tuple[int, int] | None = None
) -> dict[str, object]:
    """Return the launch spec of the agents of a job.

    Args:
        plan: the plan as the job has it.
        number: the number of the job within the run, from 1.
        runtime: the sha256 of the runtime archive.
        terms: the rules of the service that the agents follow.
        replicas: see `Payload.replicas`.
    """
    root = RootPaths(plan.root)
    payload = replace(plan.payload(0), bundle="", run_url="", store="", replicas=replicas)
    return {
        "version": 1,
        "run": plan.url,
        "job": number,
        "payload": json.loads(payload.to_json()),
        "bundle": {"key": key_of(root.bundle(plan.code.digest)), "sha256": plan.code.digest},
        "runtime": {"key": key_of(root.runtime(runtime)), "sha256": runtime},
        "requirements": {name: getattr(plan.code.requirements, name) for name in ("lines", "options", "constraints")},
        "tensorflow": _tensorflow(plan),
        "python": list(PYTHON_RANGE),
        "retry": asdict(plan.job.retry),
        "container": json.loads(json.dumps(asdict(terms))),
        "preload": plan.preload,
    }


def variables(plan: Plan, copied: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of all tasks; `copied` are values that are stored nowhere; a missing one is "***"."""
    row = accelerators.lookup(plan.job.resources.accelerator)
    job_variables = {
        name: value if isinstance(value, str) else copied.get(name, HIDDEN)
        for name, value in plan.job.env.items()
        # Tasks read secrets themselves.
        if name not in plan.job.secrets
    }
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if plan.job.code.keras == "legacy" else {}
    return {**dict(row.env), **legacy, **job_variables, "PODLIFT_RUN": plan.url, "PODLIFT_TASKS": ",".join(plan.tasks)}


def _tensorflow(plan: Plan) -> list[str]:
    """Return the oldest and newest TensorFlow release that both podlift and the hardware support."""
    row = accelerators.lookup(plan.job.resources.accelerator)
    low, high = checks.TENSORFLOW_RANGE
    if row.tensorflow is not None:
        low, high = max(low, row.tensorflow[0]), min(high, row.tensorflow[1])
    return [".".join(map(str, low)), ".".join(map(str, high))]


def escaped(value: str) -> str:
    """Escape a variable's value, so that Kubernetes does not expand $(NAME) in it."""
    return _EXPANDED.sub(lambda match: match[0] * 2, value)


def job_name(run_id: str, number: int) -> str:
    """Return the name of a job of a run, which a cluster gives only once."""
    return f"{run_id}-{number}"


def bucket_of(root: str) -> str:
    """Return how the first stage of a container names a root: by its bucket, or "/" for a folder that machines share."""
    return "/" if in_folder(root) else root.split("/")[2]


def key_of(url: str) -> str:
    """Return the name of an object below that."""
    return path_of(url).lstrip("/") if in_folder(url) else url.removeprefix("gs://").partition("/")[2]


def create_spec(store: Store, key: str, spec: Mapping[str, object]) -> str:
    """Write what a container reads, unless another process has, and return the sha256 of the one that counts."""
    data = _encoded(spec)
    return hashlib.sha256(data if create(store, key, data) else bytes(store.get(key))).hexdigest()


def created_file(files: Files, key: str, spec: object) -> str:
    """Write a spec as a plain file, unless another process has, and return the sha256 of the one that counts."""
    return hashlib.sha256(files.create(key, _encoded(spec))).hexdigest()


def digest_of_spec(spec: object) -> str:
    """Return the sha256 of the file that `created_file` writes."""
    return hashlib.sha256(_encoded(spec)).hexdigest()


def _encoded(spec: object) -> bytes:
    return json.dumps(spec, sort_keys=True).encode()


def upload_requests(plan: Plan, clock: Clock) -> None:
    """Upload the records of the client, which has submitted and resumed the run."""
    copy = SyncedRun(plan.paths, plan.url, clock)
    names = [name for name in posix.list_names(plan.paths.events) if name.startswith("0000.client")]
    in_parallel(copy.upload, [f"{KEYS.events}/{name}" for name in names])


@dataclass(frozen=True, kw_only=True)
class Archives:
    """The sha256 of each archive in the root that every container starts with."""

    runtime: str
    entrypoint: str


def upload_archives(plan: Plan) -> Archives:
    """Upload podlift itself. A removal that runs now keeps it, or has removed it before."""
    from ..packaging.runtime_archive import entrypoint_file, runtime_archive

    root = RootPaths(plan.root)
    archive, entrypoint = runtime_archive(cache.cache_folder(os.environ)), entrypoint_file()
    uploads = ((archive, root.runtime(archive.digest)), (entrypoint, root.entrypoint(entrypoint.digest)))
    in_parallel(lambda pair: push.upload_archive(str(pair[0].path), pair[1]), uploads)
    return Archives(runtime=archive.digest, entrypoint=entrypoint.digest)
