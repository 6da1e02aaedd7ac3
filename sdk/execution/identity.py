"""Which task of the run a container is, by variables that the service or the backend sets. Their contents vary.

A variable holds the name of the task or of its replica, or JSON with "task", a type and an index, and "cluster", the addresses
of each type, as TF_CONFIG does. The terms of the service map replicas to tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ..errors import InputError
from ..job import cluster
from ..job.container import ContainerTerms
from ..process.ports import PortReservation


class TaskAddress:
    """The address of a task, and a port that it holds, for services that do not publish the addresses of the tasks."""

    def __init__(self, task: str, terms: ContainerTerms, environ: Mapping[str, str]) -> None:
        self._task, self.address = task, ""
        self._reservation: PortReservation | None = None
        if terms.host:
            self._reservation = PortReservation([task])
            host = environ[terms.host]
            self.address = f"{f'[{host}]' if ':' in host else host}:{self._reservation.ports[task]}"

    def close(self) -> None:
        if self._reservation is not None:
            self._reservation.close()

    def variables(self, tasks: Sequence[str], addresses: Mapping[str, str], run_id: str) -> dict[str, str]:
        """Return the variables that pass the cluster to TensorFlow, and let it use the port that is held for it."""
        members = cluster.named(tasks)
        own = next(member for member in members if member.name == self._task)
        return {**cluster.environment(own, members, addresses, {"run": run_id}), "TF_GRPC_REUSE_PORT": "true"}


def task_of(environ: Mapping[str, str], tasks: Sequence[str], terms: ContainerTerms) -> str:
    """Return the name of the task that the first of the terms' variables describes."""
    if len(tasks) == 1:
        return tasks[0]
    for variable in terms.identity:
        task = _json(environ, variable).get("task")
        named = f"{task.get('type')}-{task.get('index', 0)}" if isinstance(task, dict) else environ.get(variable, "")
        task = terms.tasks.get(named, named)
        if task in tasks:
            return task
    # The rest of these variables may be secret.
    task_values = {name: _json(environ, name).get("task") for name in terms.identity}
    raise InputError(
        f"This container cannot determine its task. Received: task={task_values!r}. The run's tasks: {', '.join(tasks)}."
    )


def addresses(environ: Mapping[str, str], tasks: Sequence[str], terms: ContainerTerms) -> dict[str, str]:
    """Return "host:port" of the tasks, from the first of the terms' variables with any address."""
    for variable in terms.identity:
        known_to_service = _json(environ, variable).get("cluster")
        addresses = {
            terms.tasks.get(f"{kind}-{index}", f"{kind}-{index}"): str(place)
            for kind, places in (known_to_service.items() if isinstance(known_to_service, dict) else ())
            for index, place in enumerate(places if isinstance(places, list) else ())
        }
        if task_addresses := {name: place for name, place in addresses.items() if name in tasks}:
            return task_addresses
    return {}


def _json(environ: Mapping[str, str], name: str) -> dict[str, object]:
    try:
        value = json.loads(environ.get(name, ""))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
