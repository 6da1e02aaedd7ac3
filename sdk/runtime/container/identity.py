"""Which task of the run a container is. Vertex AI sets variables for this, whose contents vary more than documented."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from ...errors import InputError
from ...spec.cluster import role_of

_POOL = re.compile(r"workerpool(\d+)")


def task_of(environ: Mapping[str, str], tasks: Sequence[str]) -> str:
    """Return the name of the task that these environment variables describe."""
    if len(tasks) == 1:
        return tasks[0]
    pool, index = _of_cluster_spec(environ)
    found = _in_pool(pool, index, tasks) or _of_tf_config(environ)
    if found not in tasks:
        # The rest of these variables may be secret.
        shown = {name: _json(environ, name).get("task") for name in ("CLUSTER_SPEC", "TF_CONFIG")}
        raise InputError(
            f"This container cannot determine its task. Received: task={shown!r}. The run's tasks: {', '.join(tasks)}."
        )
    return found


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


def _of_cluster_spec(environ: Mapping[str, str]) -> tuple[int, int]:
    task = _json(environ, "CLUSTER_SPEC").get("task")
    match = _POOL.fullmatch(str(task.get("type"))) if isinstance(task, dict) else None
    try:
        return (int(match[1]), int(task["index"])) if match and isinstance(task, dict) else (-1, -1)
    except (LookupError, TypeError, ValueError):
        return -1, -1


def _of_tf_config(environ: Mapping[str, str]) -> str:
    task = _json(environ, "TF_CONFIG").get("task")
    if not isinstance(task, dict):
        return ""
    role = {"master": "chief"}.get(str(task.get("type")), task.get("type"))
    return f"{role}-{task.get('index', 0)}"


def _json(environ: Mapping[str, str], name: str) -> dict[str, object]:
    try:
        found = json.loads(environ.get(name, ""))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
