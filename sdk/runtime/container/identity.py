"""Which task of the run a container is, by variables that the service or the backend sets. What is in them varies.

A variable holds the task's name, or JSON of which "task" is a role and an index (TF_CONFIG) or a pool of machines and an index
(CLUSTER_SPEC of Vertex AI).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from ...errors import InputError
from ...spec.cluster import role_of

_POOL = re.compile(r"workerpool(\d+)")


def task_of(environ: Mapping[str, str], tasks: Sequence[str], variables: Sequence[str]) -> str:
    """Return the name of the task that the first of these environment variables describes."""
    if len(tasks) == 1:
        return tasks[0]
    for variable in variables:
        found = environ.get(variable, "")
        task = _json(environ, variable).get("task")
        if isinstance(task, dict):
            found = _of_pool(task, tasks) or _of_role(task)
        if found in tasks:
            return found
    # The rest of these variables may be secret.
    shown = {name: _json(environ, name).get("task") for name in variables}
    raise InputError(
        f"This container cannot determine its task. Received: task={shown!r}. The run's tasks: {', '.join(tasks)}."
    )


def addresses(environ: Mapping[str, str], tasks: Sequence[str]) -> dict[str, str]:
    """Return "host:port" of each task whose address is known."""
    found = {}
    cluster = _json(environ, "CLUSTER_SPEC").get("cluster")
    for pool, places in cluster.items() if isinstance(cluster, dict) else ():
        match = _POOL.fullmatch(str(pool))
        for index, place in enumerate(places if isinstance(places, list) and match else ()):
            name = _in_pool(int(match[1]), index, tasks) if match else ""
            if name in tasks:
                found[name] = str(place)
    return found


def _in_pool(pool: int, index: int, tasks: Sequence[str]) -> str:
    if pool == 0:
        return tasks[0] if index == 0 else ""
    role = {1: "worker", 2: "ps", 3: "evaluator"}.get(pool, "")
    # Without a chief the first worker is in pool 0.
    members = [name for name in tasks[1:] if role_of(name) == role]
    return members[index] if 0 <= index < len(members) else ""


def _of_pool(task: Mapping[str, object], tasks: Sequence[str]) -> str:
    match = _POOL.fullmatch(str(task.get("type")))
    index = str(task.get("index"))
    return _in_pool(int(match[1]), int(index), tasks) if match and index.isdecimal() else ""


def _of_role(task: Mapping[str, object]) -> str:
    role = {"master": "chief"}.get(str(task.get("type")), task.get("type"))
    return f"{role}-{task.get('index', 0)}"


def _json(environ: Mapping[str, str], name: str) -> dict[str, object]:
    try:
        found = json.loads(environ.get(name, ""))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
