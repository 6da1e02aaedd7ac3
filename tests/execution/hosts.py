"""Players of one interface: a run of tasks with one agent on this machine, and runs of containers with one agent each."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from support import LONG_LIMIT_S, until

import sdk
from benchmarks.real_ray import RayCluster
from sdk.backends.vertex.job import request
from sdk.job.layout import RunPaths
from sdk.job.plan import Plan
from sdk.records.events import Event
from sdk.records.recorder import read_events
from sdk.testing.kubernetes import KubernetesCluster

from .cloud import Cloud, Container, stored_events

RESTARTS = request.CONTAINER.restart_code
# The kinds of run that have one agent for all tasks.
LOCAL = ("local 1", "local 3")
# How long the processes of the tasks may take to start in containers on a busy machine.
START_S = 20
NO_GPU = {"GPU": None, "accelerator_type:T4": None}

# The tasks of a cluster take each step together, as in training; tasks with parameter servers do not. FAULTS says where which
# task does what: "worker-0 step 1 kill" is a kill in attempt 1, "1.1" is there after the task was restarted alone. The steps
# go on until the test has seen enough, or end after STEPS.
PROGRAM = """
import atexit, fcntl, os, pathlib, signal, subprocess, sys, threading, time
import sdk
ctx = sdk.context()
shared, attempt = pathlib.Path(os.environ["SHARED"]), os.environ["PODLIFT_ATTEMPT"]
restarts = int(os.environ.get("PODLIFT_TASK_RESTARTS", 0))
mine, role = shared / attempt, ctx.task.partition("-")[0]
mine.mkdir(exist_ok=True)
serves = "ps-0" in ctx.tasks
together = [ctx.task] if serves else [task for task in ctx.tasks if not task.startswith("evaluator")]

def read(name):
    try:
        return (mine / name).read_text()
    except FileNotFoundError:
        return ""

def write(name, text):
    (mine / f"{name}.coming").write_text(str(text))
    (mine / f"{name}.coming").rename(mine / name)

def stuck_here():
    time.sleep(600)

def at(place):
    for fault in filter(None, os.environ.get("FAULTS", "").split(";")):
        task, where, when, what = fault.split()
        if task not in (ctx.task, "all") or (where, when) != (place, f"{attempt}.{restarts}".removesuffix(".0")):
            continue
        if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if what == "error":
            # It has recorded its failure, and not exited yet.
            atexit.register(time.sleep, 0.3)
            raise ValueError("no such column")
        if what == "leave": os._exit(75)
        if what == "exit": print("last words", flush=True); os._exit(7)
        if what == "complain": print("OSError: no such bucket", flush=True)
        if what == "child": subprocess.Popen(["setsid", "sleep", "600"], pass_fds=[held(f"{ctx.task}.child")])
        if what == "hang": stuck_here()
        if what == "crash": atexit.register(os.abort)
    write(f"{ctx.task}.{place}", f"{os.getpid()} {restarts}")

def held(name):
    # Until this process and its children end. The numbers of processes differ between pods.
    number = os.open(mine / name, os.O_CREAT | os.O_RDWR)
    fcntl.flock(number, fcntl.LOCK_EX)
    return number

def gone(task):
    if not (mine / f"{task}.alive").exists():
        return False
    with open(mine / f"{task}.alive") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True

def all_at(name, value):
    write(f"{ctx.task}.{name}", value)
    while not all(int(read(f"{task}.{name}") or 0) >= value for task in together):
        if os.environ.get("NOTICES") and any(map(gone, together)):
            raise ConnectionResetError("Connection reset by peer")
        time.sleep(0.002)

if os.environ.get("SAVES"):
    # As a loop with checkpoints does.
    ctx._auto_checkpoint.coordinator.handle_sigterm()
if os.environ.get("NOTICES"):
    held(f"{ctx.task}.alive.coming")
    (mine / f"{ctx.task}.alive.coming").rename(mine / f"{ctx.task}.alive")
print("attempt", attempt, ctx.task, restarts, os.environ.get("TF_CONFIG", ""), flush=True)
write(f"{ctx.task}.start", f"{os.getpid()} {restarts}")
at("start")
if role == "ps" or serves and role == "worker":
    at("step")
    threading.Event().wait()
step = 0
all_at("begins", 1)
while step < int(os.environ["STEPS"]) if "STEPS" in os.environ else not (shared / "enough").exists() or step < 5:
    step += 1
    if step == 3:
        at("step")
    ctx.report({"loss": 1.0}, step=step)
    all_at("number", step)
    if ctx.should_stop():
        print(f"saves after step {step}", flush=True)
        at("save")
        all_at("saved", 1)
        sys.exit(int(os.environ.get("LEAVES", 75)))
    time.sleep(0.01)
at("end")
all_at("ends", 1)
print("through", flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Given:
    """The input of a run from a row: the faults of its tasks, settings of its job, and the use of its GPUs in percent."""

    resources: Mapping[str, Any]
    faults: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    retry: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    gpu_use: int | None = None


class Player(ABC):
    """A run of `PROGRAM` with tasks that report their positions in files."""

    plan: Plan
    shared: Path
    why: Callable[[], str]
    # The ends for which its service asks the agents, without a reason; whether it stops the others once one has failed.
    asked: Sequence[str] = ("cancelled", "timeout")
    stops_others = False

    @abstractmethod
    def preempt(self, task: str) -> None:
        """Take the machine of a task away, with a notice."""

    @abstractmethod
    def replace(self, task: str) -> None:
        """Take the machine of a task away without a notice, and give it another one."""

    @abstractmethod
    def cancel(self) -> None: ...

    @abstractmethod
    def wait(self) -> None:
        """Wait for the end of the run."""

    def events(self, *kinds: str) -> list[Event]:
        """Return the run's records, in the order of attempts and time."""
        return stored_events(self.plan, *kinds)

    @abstractmethod
    def output(self, task: str, attempt: int) -> str:
        """Return the kept output of a task."""

    def reach(self, place: str, *, attempt: int = 1, tasks: Sequence[str] = (), restarts: int = 0) -> None:
        """Wait until tasks, by default all that are in step, are at a place."""
        wanted = [self.shared / str(attempt) / f"{task}.{place}" for task in tasks or self.plan.tasks]
        until(lambda: all(file.exists() and int(file.read_text().split()[1]) == restarts for file in wanted), self.why)

    def pid(self, task: str) -> int:
        return int((self.shared / "1" / f"{task}.start").read_text().split()[0])

    def idle(self, task: str) -> None:
        """Let every GPU stand idle."""
        (self.shared.parent / "nvml" / "use").write_text("0")

    def kill(self, task: str) -> None:
        os.kill(self.pid(task), signal.SIGKILL)

    def finish(self) -> None:
        """Let the program come to its end."""
        (self.shared / "enough").touch()


Play = Callable[[str, Given], Player]


def job(given: Given, shared: Path) -> sdk.Job:
    retry = {"infrastructure": 0, "preemptions": 0, "user_errors": 0, **given.retry}
    env = {"SHARED": str(shared), "FAULTS": given.faults, **given.env}
    return sdk.Job("train.py", resources=given.resources, retry=retry, limits=given.limits, env=env)


class Submitted(Player):
    """A run that has a handle."""

    def __init__(self, given: Given, shared: Path, **where: Any) -> None:
        self.shared = shared
        self.run = sdk.submit(job(given, shared), **where)
        self.plan, self.why = self.run.plan, self.run.why

    def cancel(self) -> None:
        self.run.cancel(grace_s=30)

    def wait(self) -> None:
        self.status = self.run.wait(LONG_LIMIT_S)

    def output(self, task: str, attempt: int) -> str:
        return "\n".join(line.text for line in self.run.logs(task=task, attempt=attempt))


class Local(Submitted):
    """A run on this machine: one agent has all tasks."""

    def __init__(self, given: Given, shared: Path) -> None:
        super().__init__(given, shared, **({} if given.gpu_use is None else {"backend": sdk.Local(gpus="real")}))

    def preempt(self, task: str) -> None:
        os.kill(self.pid(task), signal.SIGTERM)

    def replace(self, task: str) -> None:
        raise NotImplementedError("there is one machine")

    def events(self, *kinds: str) -> list[Event]:
        found = [event for event in read_events(self.plan.paths, kinds) if event.kind in kinds]
        return sorted(found, key=lambda event: (event.attempt, event.time))


def kept_by_agents(given: Given) -> Given:
    """Return a row with a time limit that has room for the starts of the tasks' processes."""
    limits = dict(given.limits)
    if "timeout_s" in limits:
        limits["timeout_s"] += START_S
    return replace(given, limits=limits)


class OnRay(Submitted):
    """A run on a real cluster of one node; its driver starts containers again. The agents keep the time limit."""

    asked = ("cancelled",)

    def __init__(self, given: Given, shared: Path, cluster: RayCluster) -> None:
        target = sdk.Ray(address=cluster.address)
        if given.gpu_use is not None:
            # Ray has no GPU to reserve.
            tasks = [f"{name}-0" for name in ("chief", "worker")]
            target = replace(target, raw={"placement": {"tasks": {task: NO_GPU for task in tasks}}})
        super().__init__(kept_by_agents(given), shared, backend=target, root=shared.parent / "runs")

    def _agent(self, task: str) -> tuple[psutil.Process, psutil.Process]:
        """Return the process group of a task's agent, by its leader, and the process of Ray that has started it."""
        parents = psutil.Process(self.pid(task)).parents()
        leader = next(each for each in parents if any("ENDS_WITH" in word for word in each.cmdline()))
        actor = leader.parent()
        assert actor is not None
        return leader, actor

    def preempt(self, task: str) -> None:
        os.killpg(self._agent(task)[0].pid, signal.SIGTERM)

    def replace(self, task: str) -> None:
        leader, actor = self._agent(task)
        # In this order: as if the machine was gone.
        actor.kill()
        os.killpg(leader.pid, signal.SIGKILL)

    @property
    def started(self) -> int:
        return len(self.plan.tasks) + len(self.events("container_restarting"))


class OnKubernetes(Submitted):
    """A run on a test cluster; its Job replaces pods. The agents keep the time limit."""

    asked = ("cancelled",)
    stops_others = True

    def __init__(self, given: Given, shared: Path, cluster: KubernetesCluster) -> None:
        self._cluster = cluster
        self._names: set[str] = set()
        super().__init__(kept_by_agents(given), shared, backend=cluster.backend(), root=cluster.root)

    def _pod(self, task: str) -> str:
        self._count()
        return self._cluster.pod_of(self.plan.tasks.index(task))

    def _count(self) -> None:
        names = (pod["metadata"]["name"] for pod in self._cluster.objects("Pod"))
        self._names |= {name for name in names if name.startswith(self.plan.run_id)}

    def preempt(self, task: str) -> None:
        self._cluster.evict(self._pod(task))

    def replace(self, task: str) -> None:
        self._cluster.lose_node(self._pod(task))

    def cancel(self) -> None:
        # A cancelled run leaves no pods.
        self._count()
        super().cancel()

    @property
    def started(self) -> int:
        self._count()
        return len(self._names)


class Containers(Player):
    """A run of containers, each with an agent; the actions of Vertex AI are played."""

    def __init__(self, given: Given, shared: Path, cloud: Cloud) -> None:
        self.shared, self._cloud = shared, cloud
        wanted = job(given, shared)
        where = {} if given.gpu_use is None else {"backend": sdk.Local(gpus="real")}
        self.plan = sdk.plan(wanted, root=cloud.root, name="run", **where)
        self.started = 0
        self._words, self._env = cloud.order(self.plan), wanted.env
        self.containers = {task: self._start(task) for task in self.plan.tasks}
        self.why = lambda: "\n".join(container.said for container in self.containers.values())

    def _start(self, task: str) -> Container:
        self.started += 1
        return self._cloud.start(self.plan, self._words, task, **self._env)

    def preempt(self, task: str) -> None:
        self.containers[task].process.terminate()
        assert self.containers[task].code() == RESTARTS, self.why()
        self.containers[task] = self._start(task)

    def replace(self, task: str) -> None:
        # The task ends with its agent.
        self.containers[task].process.kill()
        self.containers[task].code()
        self.containers[task] = self._start(task)

    def cancel(self) -> None:
        self._cloud.store(self.plan).put_new(RunPaths("").remote_cancel_request(0, 1), [b"{}"])

    def wait(self) -> None:
        self.codes = {task: container.code() for task, container in self.containers.items()}

    def output(self, task: str, attempt: int) -> str:
        store = self._cloud.store(self.plan)
        parts = sorted(part.key for part in store.list(f"{RunPaths('').tail(attempt, task)}/"))
        return b"".join(bytes(store.get(part)) for part in parts).decode()
