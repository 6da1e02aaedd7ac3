"""Renders a plan as the request for a custom job of Vertex AI, and as the launch spec that its containers read. Pure.

Sources: the messages CustomJob, WorkerPoolSpec and Scheduling of google.cloud.aiplatform.v1; documentation of Vertex AI,
training/distributed-training (the index of a pool is its role) and training/configure-compute (read 2026-11-20).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .... import ids
from ....checks import Facts, Finding
from ....hardware import accelerators
from ....job.container import RESTART_CODE, ContainerTerms
from ....job.layout import RootPaths
from ....job.plan import Plan
from ....job.policies import Resources
from ....job.raw import leaves, patched
from ....job.values import changed
from ....packaging.runtime_archive import loader
from ... import containers
from ...containers import escaped, key_of
from ..images import recipe as image_recipe
from ..options import Location, Vertex
from . import body as job_body

NO_PROJECT, NO_IMAGE = "<project>", "<image>"
SPEC_UNKNOWN, ENTRYPOINT_UNKNOWN = "<sha256 of the launch spec>", "<sha256 of the entrypoint>"
HIDDEN = "***"
# Exit code 134 stands for SIGABRT, and 139 for SIGSEGV: Vertex AI restarts a container after these, and treats any other
# failure as final. A preempted machine has some 15 s left, part of which the task has used.
CONTAINER = ContainerTerms(
    restart_code=134, restarting_codes=(134, 139), identity=("CLUSTER_SPEC", "TF_CONFIG"), notice_s=8.0
)
_STRATEGIES = {"spot": "SPOT", "flex": "FLEX_START"}
_MILLISECONDS = 1000
# $0 is the script. It is sourced within a function, so that it neither sees nor shifts the command's arguments.
_WITH_SCRIPT = (
    'begin() { if [ -r "$0" ]; then . "$0"; else echo "podlift: no $0 on this machine: NCCL runs without it" >&2; fi; }; '
    'begin; exec "$@"'
)


def at(plan: Plan, location: Location | None = None) -> Plan:
    """Return the plan as the job in one location has it, by default in the first one: with that region and hardware only."""
    options, resources = Vertex.of(plan.target), plan.job.resources
    target, resources = options.at(location or options.locations_for(resources)[0], resources)
    return replace(plan, target=target, job=changed(plan.job, resources=resources))


def first_region(plan: Plan) -> str:
    """Return the region of the first location."""
    return Vertex.of(plan.target).region_names[0]


def index(plan: Plan, location: Location | None) -> int:
    """Return the number of a location in the order of the plan's locations, from 0."""
    return Vertex.of(plan.target).locations_for(plan.job.resources).index(location) if location else 0


def url(plan: Plan, location: Location | None = None) -> str:
    """Return where the job is created, by default in the plan's first location."""
    options = Vertex.of(at(plan, location).target)
    region = options.regions[0]
    service = f"http://{plan.emulator}/TOKEN" if plan.emulator else f"https://{region}-aiplatform.googleapis.com"
    return f"{service}/v1/projects/{options.project or NO_PROJECT}/locations/{region}/customJobs"


def missing(options: Vertex, resources: Resources, root: str) -> list[str]:
    """Return an error for each missing setting, for which the plan shows a placeholder."""
    lacking = [family for family, image in options.images_for(resources).items() if not image]
    kinds = f" for {', '.join(family.upper() for family in lacking)}" if isinstance(options.image, dict) else ""
    unset = [
        ("project", options.project, "vertex_project", ""),
        (f"container image{kinds}", not lacking, "vertex_image", "; or ".join(map(image_recipe.advice, lacking))),
        ("bucket", not root.startswith("gs://<"), "vertex_bucket", ""),
    ]
    return [
        f"No {what} is configured for vertex. Next: {f'{first}; or ' if first else ''}--{name.replace('_', '-')}, "
        f"PODLIFT_{name.upper()}, or a table [vertex] in podlift.toml."
        for what, value, name, first in unset
        if not value
    ]


def findings(options: Vertex) -> list[Finding]:
    raw = options.raw
    patched = f"The request is patched by raw=, without checks: {', '.join(leaves(raw))}."
    return [Finding("note", patched)] if raw else []


def render(
    plan: Plan,
    *,
    number: int = 1,
    location: Location | None = None,
    bucket_region: str = "",
    entrypoint: str = ENTRYPOINT_UNKNOWN,
    spec_digest: str = SPEC_UNKNOWN,
    copied: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the body of the request: a CustomJob as JSON, for a location of the plan, by default the first one.

    `bucket_region` is where the root's bucket is, "" if only the plan may know. Values of `copied` variables that are missing
    here are "***".
    """
    spec = RootPaths(plan.root).run(plan.run_id).launch_spec(number, index(plan, location))
    plan = at(plan, location)
    root = RootPaths(plan.root)
    loader_arguments = [root.root.split("/")[2], key_of(root.entrypoint(entrypoint)), entrypoint]
    arguments = [*loader_arguments, key_of(spec), spec_digest]
    container: dict[str, object] = {
        "imageUri": Vertex.of(plan.target).image or NO_IMAGE,
        "args": arguments,
        "env": [{"name": name, "value": value} for name, value in _variables(plan, copied or {}).items()],
    }
    options = Vertex.of(plan.target)
    body = job_body.body(options, plan.job.resources, with_raw=False)
    machines = zip(body["jobSpec"]["workerPoolSpecs"], _commands(plan), strict=True)
    job = {
        **body["jobSpec"],
        "workerPoolSpecs": [
            {**pool, "containerSpec": {**container, "command": command}} if pool else {} for pool, command in machines
        ],
        **_scheduling(plan),
        **_output(plan, bucket_region or region_of_bucket(plan.facts)),
    }
    body |= {"displayName": plan.run_id, "labels": _labels(plan, number), "jobSpec": job}
    request: dict[str, object] = patched(body, options.raw)
    return request


def launch_spec(plan: Plan, number: int, runtime: str, location: Location | None = None) -> dict[str, object]:
    """Return the launch spec, which the containers of a job read. `runtime` is the sha256 of the runtime archive."""
    return containers.launch_spec(at(plan, location), number, runtime, terms(plan.tasks), _replicas(plan, location))


def replica_names(tasks: Sequence[str]) -> dict[str, str]:
    """Return the task of each replica. The first task is alone in pool 0, and the others are in the pools of their roles."""
    pools = {"ps": 2, "evaluator": 3}
    counts = {1: 0, 2: 0, 3: 0}
    names = {"workerpool0-0": tasks[0]}
    for task in tasks[1:]:
        pool = pools.get(task.rpartition("-")[0], 1)
        names[f"workerpool{pool}-{counts[pool]}"] = task
        counts[pool] += 1
    return names


def terms(tasks: Sequence[str]) -> ContainerTerms:
    """Return the rules of Vertex AI for the agents of these tasks."""
    # Before the chief was called so, it was the master.
    return replace(CONTAINER, tasks={"master-0": "chief-0", **replica_names(tasks)})


def region_of_bucket(facts: Facts) -> str:
    """Return the region of the root's bucket, "" if it is unknown or the bucket is in several."""
    about = facts.online.get("bucket", {}).get("about", {})
    return str(about.get("location", "")).lower() if about.get("locationType") == "region" else ""


def _output(plan: Plan, bucket_region: str) -> dict[str, object]:
    """Return Vertex AI's output directory, which must be in the job's region; tasks use the run's own directory."""
    region = Vertex.of(plan.target).regions[0]
    return {"baseOutputDirectory": {"outputUriPrefix": plan.url}} if bucket_region in ("", region) else {}


def _replicas(plan: Plan, location: Location | None) -> tuple[int, int] | None:
    """Return the replicas of a location and of the first one, None if they are as many."""
    options, resources = Vertex.of(plan.target), plan.job.resources
    locations, counts = options.locations_for(resources), options.replicas(resources)
    here = counts[locations.index(location)] if location in locations else counts[0]
    return None if here == counts[0] else (here, counts[0])


def _commands(plan: Plan) -> list[list[str]]:
    """Return the command of the containers of each pool, an empty one for a pool without tasks."""
    commands: list[list[str]] = []
    for pool in Vertex.of(plan.target).pools(plan.job.resources):
        commands += [[] for _ in range(pool.index - len(commands))]
        commands.append(_command(pool.accelerator))
    return commands


def _command(row: accelerators.Accelerator) -> list[str]:
    """Return the command of a container. If the machine has a setup script, a shell sources it first."""
    start = ["python3", "-c", loader()]
    return start if row.script is None else ["bash", "-c", _WITH_SCRIPT, row.script, *start]


def _scheduling(plan: Plan) -> dict[str, object]:
    timeout_s, provisioning = plan.job.limits.timeout_s, Vertex.of(plan.target).provisioning
    scheduling: dict[str, object] = {}
    if timeout_s is not None:
        scheduling["timeout"] = _duration(timeout_s)
    if provisioning in _STRATEGIES:
        scheduling["strategy"] = _STRATEGIES[provisioning]
    # Not restartJobOnWorkerRestart: the agents restart the tasks of a gang in the containers that live.
    return {"scheduling": scheduling} if scheduling else {}


def _duration(seconds: float) -> str:
    """Format a duration as protobuf does, in whole milliseconds."""
    text = f"{math.ceil(seconds * _MILLISECONDS) / _MILLISECONDS:.3f}".rstrip("0").rstrip(".")
    return f"{text}s"


def project_of(plan: Plan) -> str:
    """Return the name of the packaged project in labels and in the names of triggers."""
    return ids.slug(plan.code.project.rpartition("/")[2])


def _labels(plan: Plan, number: int) -> dict[str, str]:
    ours = {
        "podlift-run": plan.run_id,
        "podlift-job": str(number),
        "podlift-project": project_of(plan),
    }
    return {**Vertex.of(plan.target).labels, **ours}


def _variables(plan: Plan, copied: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of all tasks. Vertex AI adds the variables that identify the task."""
    variables = {**containers.variables(plan, copied), RESTART_CODE: str(CONTAINER.restart_code)}
    return {name: escaped(value) for name, value in variables.items()}
