"""The cluster, for a driver that runs on it. The only module that imports Ray, in the cluster's version.

One placement group reserves the resources of all tasks. An actor for each task starts the task's agent as a child process, with
the devices that Ray has assigned, and returns its exit code. Ray restarts neither: the rules of the containers decide what to
do when an agent ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...logs import logger
from .placement import ClusterResources, Placement

_log = logger("backends.ray")
_POLL_S = 0.5
# Resources that Ray takes as a separate argument.
_OWN = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True, kw_only=True)
class AgentEnd:
    """How the agent of a task has ended: its exit code, None if its actor or node is gone, and its last lines."""

    task: str
    code: int | None
    last_output: str = ""
    why: str = ""


class TaskActor:
    """Runs in an actor, which may have another version of podlift: it needs the standard library and Ray alone."""

    def __init__(self) -> None:
        self._process: Any = None
        self._stopped = False

    def run(self, words: Sequence[str], env: Mapping[str, str], dropped: Sequence[str], host: str, proof: str) -> Any:
        """Run an agent, and return its exit code and its last lines."""
        import collections
        import os
        import socket
        import subprocess
        import sys

        import ray

        if proof and not os.path.exists(proof):
            where = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
            why = (
                f"podlift: {where} does not see the root: {proof} is missing there, which the driver of this job wrote a "
                "moment ago. Next: a folder that every node of the cluster mounts at the same path (--root), or gs://BUCKET/PREFIX."
            )
            return 3, why
        own = {name: value for name, value in os.environ.items() if name not in dropped}
        own.update(env)
        own[host] = ray.util.get_node_ip_address()
        # Ray kills the children of a worker that it ends. The agent is a grandchild, and lets the training save.
        between = (
            "import os, signal, subprocess, sys\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.environ['PODLIFT_ENDS_WITH'] = str(os.getpid())\n"
            "code = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]).wait()\n"
            "sys.exit(code if code >= 0 else 128 - code)"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", between, *words],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self._stopped:
            self.send(9)
        last: Any = collections.deque(maxlen=30)
        for line in self._process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
            last.append(line)
        code = self._process.wait()
        return (code if code >= 0 else 128 - code), b"".join(last).decode("utf-8", "replace")

    def send(self, number: int) -> None:
        """Send a signal to the agent, and to the process between."""
        import os

        self._stopped = self._stopped or number == 9
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


# A handle of an actor has its methods by name.
_Handle = Any


class ConnectedCluster:
    """A connection to the cluster, for the process that is the driver of its job."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        # Classes are sent by value: a worker of Ray does not have this package.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        ray.init(address="auto", log_to_driver=False, logging_level="warning")
        self._group: Any = None
        self._indices: Mapping[str, int] = {}
        self._placement = Placement(strategy="SPREAD", pending_timeout_s=0, tasks={})
        self._actors: dict[str, _Handle] = {}
        self._runs: dict[Any, str] = {}
        self._probes: dict[str, object] = {}

    def resources(self) -> ClusterResources:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return ClusterResources(nodes=nodes, free=self._ray.available_resources())

    def reserve(self, placement: Placement) -> None:
        """Request the resources of all tasks, without waiting for them."""
        bundles = [dict(amounts) for amounts in placement.tasks.values()]
        self._indices = {task: index for index, task in enumerate(placement.tasks)}
        self._group = self._ray.util.placement_group(bundles, strategy=placement.strategy)
        self._placement = placement

    def is_reserved(self, within_s: float) -> bool:
        return bool(self._group.wait(timeout_seconds=within_s))

    def start(
        self, task: str, words: Sequence[str], env: Mapping[str, str], dropped: Sequence[str], host: str, proof: str
    ) -> None:
        """Start the agent of a task where its resources are, or as soon as they are there again."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert self._placement is not None  # noqa: S101
        amounts = self._placement.tasks[task]
        options = {_OWN[name]: amount for name, amount in amounts.items() if name in _OWN}
        others = {name: amount for name, amount in amounts.items() if name not in _OWN}
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._indices[task]
        )
        actor = (
            self._ray.remote(TaskActor)
            .options(
                **{"num_cpus": 0, "num_gpus": 0, **options},
                resources=others or None,
                scheduling_strategy=strategy,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
            )
            .remote()
        )
        if (before := self._actors.get(task)) is not None:
            self._ray.kill(before)
        self._actors[task], self._probes[task] = actor, actor.send.remote(0)
        self._runs[actor.run.remote(list(words), dict(env), list(dropped), host, proof)] = task

    def ended(self, within_s: float) -> list[AgentEnd]:
        """Return the agents that have ended, waiting for the first one for so long."""
        if not self._runs:
            time.sleep(within_s)
            return []
        ready, _ = self._ray.wait(list(self._runs), num_returns=1, timeout=within_s)
        ends = []
        for reference in ready:
            task = self._runs.pop(reference)
            try:
                code, last = self._ray.get(reference)
                ends.append(AgentEnd(task=task, code=code, last_output=last))
            except self._ray.exceptions.RayError as error:
                ends.append(AgentEnd(task=task, code=None, why=str(error).partition("\n")[0]))
        return ends

    def is_placed(self, task: str) -> bool:
        """Return whether the actor of a task runs on a node."""
        ready, _ = self._ray.wait([self._probes[task]], timeout=_POLL_S)
        return bool(ready)

    @property
    def running(self) -> list[str]:
        """The tasks with a running agent."""
        return list(self._runs.values())

    def send(self, task: str, number: int) -> None:
        """Send a signal to the agent of a task."""
        self._actors[task].send.remote(number)

    def close(self) -> None:
        """Free the resources, and end all actors of the job."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()
