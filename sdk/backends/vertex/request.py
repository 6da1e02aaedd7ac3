"""The request that makes a plan a custom job of Vertex AI, and the order that its containers read. Pure.

Sources: the messages CustomJob, WorkerPoolSpec and Scheduling of google.cloud.aiplatform.v1; documentation of Vertex AI,
training/distributed-training (pools: the place in the list is the role) and training/configure-compute (read 2026-11-20).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ... import checks, ids
from ...checks import Finding
from ...hardware import accelerators
from ...runtime.container.loader import LOADER
from ...spec.layout import RootPaths
from ...spec.plan import Plan

NO_PROJECT, NO_IMAGE = "<project>", "<image>"
ORDER_UNKNOWN, STAGE_UNKNOWN = "<sha256 of the order>", "<sha256 of the first stage>"
HIDDEN = "***"
# The oldest and the newest Python that podlift runs on.
PYTHON_RANGE = ("3.10", "3.13")
_STRATEGIES = {"spot": "SPOT", "flex": "FLEX_START"}
# Kubernetes, which is what runs the containers, makes one dollar of two, and a value of $(NAME).
_EXPANDED = re.compile(r"\$(?=\()|\${2,}")
_MILLISECONDS = 1000
# $0 is the script. A function, because what is read in one sees none of the words behind, and cannot shift them.
_WITH_SCRIPT = (
    'begin() { if [ -r "$0" ]; then . "$0"; else echo "podlift: no $0 on this machine: NCCL goes without it" >&2; fi; }; '
    'begin; exec "$@"'
)


def parent(plan: Plan, region: str | None = None) -> str:
    """Return where the job is made; by default in the first region of the plan."""
    options = plan.backend_options
    return f"projects/{options['project'] or NO_PROJECT}/locations/{region or options['regions'][0]}"


def url(plan: Plan) -> str:
    """Return what is asked for the job."""
    return f"https://{plan.backend_options['regions'][0]}-aiplatform.googleapis.com/v1/{parent(plan)}/customJobs"


def missing(plan: Plan) -> list[str]:
    """Return a sentence about everything without which nothing can start: the plan shows <...> in its place."""
    options = plan.backend_options
    unset = [
        ("project", options["project"], "vertex_project"),
        ("container image", options["image"], "vertex_image"),
        ("bucket", not plan.root.startswith("gs://<"), "vertex_bucket"),
    ]
    return [
        f"No {what} is configured for vertex. Next: --{name.replace('_', '-')}, PODLIFT_{name.upper()}, or a table [vertex] "
        "in podlift.toml."
        for what, value, name in unset
        if not value
    ]


def findings(plan: Plan) -> list[Finding]:
    """Return what the request shows and nothing else does."""
    raw = plan.backend_options["raw"]
    patched = f"The request is patched by raw=, unseen: {', '.join(_leaves(raw))}."
    return [Finding("note", patched)] if raw else []


def render(
    plan: Plan,
    *,
    number: int = 1,
    stage: str = STAGE_UNKNOWN,
    order_digest: str = ORDER_UNKNOWN,
    copied: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the body of the request, a CustomJob in JSON.

    Args:
        plan: the run.
        number: which job of the run it is, from 1.
        stage: sha256 of the program that a container runs first.
        order_digest: sha256 of what it has to do.
        copied: values of the variables that are the caller's; "***" stands for those that are missing here.
    """
    root = RootPaths(plan.root)
    first_stage = [root.root.split("/")[2], _key(root.entrypoint(stage)), stage]
    arguments = [*first_stage, _key(root.run(plan.run_id).launch_spec(number)), order_digest]
    container = {
        "imageUri": plan.backend_options["image"] or NO_IMAGE,
        "args": arguments,
        "env": [{"name": name, "value": value} for name, value in _variables(plan, copied or {}).items()],
    }
    spec = {
        "workerPoolSpecs": _pools(plan, container),
        **_scheduling(plan),
        "baseOutputDirectory": {"outputUriPrefix": plan.url},
    }
    if plan.backend_options["service_account"]:
        spec["serviceAccount"] = plan.backend_options["service_account"]
    body = {"displayName": plan.run_id, "labels": _labels(plan, number), "jobSpec": spec}
    patched: dict[str, Any] = _patched(body, plan.backend_options["raw"])
    return patched


def order(plan: Plan, number: int, runtime: str) -> dict[str, Any]:
    """Return what the containers of a job read to know what to do.

    Args:
        plan: the run.
        number: which job of the run it is, from 1.
        runtime: sha256 of the archive of what a container needs of podlift.
    """
    root = RootPaths(plan.root)
    payload = replace(plan.payload(0), bundle="", run_url="", store="")
    return {
        "version": 1,
        "run": plan.url,
        "job": number,
        "payload": json.loads(payload.to_json()),
        "bundle": {"key": _key(root.bundle(plan.digest)), "sha256": plan.digest},
        "runtime": {"key": _key(root.runtime(runtime)), "sha256": runtime},
        "requirements": {name: list(plan.requirements.get(name, ())) for name in ("lines", "options", "constraints")},
        "tensorflow": _tensorflow(plan),
        "python": list(PYTHON_RANGE),
        "retry": plan.job["retry"],
        "env_copied": copied_names(plan),
    }


def copied_names(plan: Plan) -> list[str]:
    """Return the names of the variables whose values are the caller's: they travel in the request, and nowhere else."""
    return [name for name, value in plan.job["env"].items() if not isinstance(value, str)]


def _pools(plan: Plan, container: dict[str, Any]) -> list[dict[str, Any]]:
    pools: list[dict[str, Any]] = []
    for pool in accelerators.pools(plan.job["resources"], plan.backend_options):
        # The place in the list is the role: a pool without tasks keeps its own.
        pools += [{} for _ in range(pool.index - len(pools))]
        pools.append(
            {
                "machineSpec": _machine(pool),
                "replicaCount": str(pool.replicas),
                "diskSpec": {"bootDiskSizeGb": plan.backend_options["disk_gb"]},
                "containerSpec": {**container, "command": _command(pool.accelerator)},
            }
        )
    return pools


def _machine(pool: accelerators.Pool) -> dict[str, Any]:
    row = pool.accelerator
    found: dict[str, Any] = {"machineType": pool.machine}
    found |= {"acceleratorType": row.type, "acceleratorCount": row.count} if row.type else {}
    return {**found, "tpuTopology": row.topology} if row.topology else found


def _command(row: accelerators.Accelerator) -> list[str]:
    """Return the words of a container's command; where the machine has a script to be read, the shell reads it first."""
    start = ["python3", "-c", LOADER]
    return start if row.script is None else ["bash", "-c", _WITH_SCRIPT, row.script, *start]


def _scheduling(plan: Plan) -> dict[str, Any]:
    timeout_s, provisioning = plan.job["limits"]["timeout_s"], plan.backend_options["provisioning"]
    found: dict[str, Any] = {}
    if timeout_s is not None:
        found["timeout"] = _duration(timeout_s)
    if provisioning in _STRATEGIES:
        found["strategy"] = _STRATEGIES[provisioning]
    if len(plan.tasks) > 1 and not plan.job["resources"]["ps"]:
        # In training in lockstep no task can go on without the others.
        found["restartJobOnWorkerRestart"] = True
    return {"scheduling": found} if found else {}


def _duration(seconds: float) -> str:
    """Return it as protobuf writes it, in whole milliseconds."""
    text = f"{math.ceil(seconds * _MILLISECONDS) / _MILLISECONDS:.3f}".rstrip("0").rstrip(".")
    return f"{text}s"


def _labels(plan: Plan, number: int) -> dict[str, str]:
    own = {
        "podlift-run": plan.run_id,
        "podlift-job": str(number),
        "podlift-project": ids.slug(plan.project.rpartition("/")[2]),
    }
    return {**plan.backend_options["labels"], **own}


def _variables(plan: Plan, copied: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of every task; Vertex AI itself adds those that say who the task is."""
    row = accelerators.lookup(plan.job["resources"]["accelerator"])
    given = {
        name: value if isinstance(value, str) else copied.get(name, HIDDEN) for name, value in plan.job["env"].items()
    }
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if plan.job["code"]["keras"] == "legacy" else {}
    own = {"PODLIFT_RUN": plan.url, "PODLIFT_TASKS": ",".join(plan.tasks)}
    return {name: escaped(value) for name, value in {**dict(row.env), **legacy, **given, **own}.items()}


def escaped(value: str) -> str:
    """Return the text that is `value` when the cloud has looked for $(NAME) in it."""
    return _EXPANDED.sub(lambda found: found[0] * 2, value)


def _tensorflow(plan: Plan) -> list[str]:
    """Return the oldest and the newest release that podlift was tried with and that the hardware runs."""
    row = accelerators.lookup(plan.job["resources"]["accelerator"])
    low, high = checks.TENSORFLOW_RANGE
    if row.tensorflow is not None:
        low, high = max(low, row.tensorflow[0]), min(high, row.tensorflow[1])
    return [".".join(map(str, low)), ".".join(map(str, high))]


def _key(place: str) -> str:
    """Return the name of an object in its bucket."""
    return place.removeprefix("gs://").partition("/")[2]


def _patched(value: Any, patch: Any) -> Any:
    """Return a value with a patch merged into it: a list as a whole or by the numbers of its items, None removes."""
    if not isinstance(patch, Mapping):
        return patch
    if isinstance(value, list) and patch and all(name.isdigit() for name in patch):
        # What is put behind the end keeps its number, as an evaluator's pool does.
        found = [*value, *({} for _ in range(len(value), 1 + max(map(int, patch))))]
        for name, item in patch.items():
            found[int(name)] = _patched(found[int(name)], item)
        return [item for item in found if item is not None]
    merged = dict(value) if isinstance(value, Mapping) else {}
    for name, item in patch.items():
        if item is None:
            merged.pop(name, None)
        else:
            merged[name] = _patched(merged.get(name), item)
    return merged


def _leaves(patch: Mapping[str, Any], above: Sequence[str] = ()) -> list[str]:
    """Return the paths that a patch sets: `jobSpec.network`."""
    found: list[str] = []
    for name, item in patch.items():
        inside = isinstance(item, Mapping) and item
        found += _leaves(item, [*above, name]) if inside else [".".join([*above, name])]
    return found
