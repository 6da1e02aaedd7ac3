"""The smallest complete backend: tasks are child processes of the submitting process, which supervises them in a thread.

Usage: `backends.register("fake", FakeBackend)`, then `sdk.submit("train.py", backend="fake")`. It passes `BackendContract`.
It lacks some features of local mode: restarts, an isolated network, reserved ports, and runs that outlive the
submitting process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ..backends.base import Request, own_facts
from ..backends.folder import FolderRun
from ..backends.services import Services
from ..checks import Facts, Finding
from ..clock import Clock, SystemClock
from ..job.capabilities import Capabilities
from ..job.cluster import Task
from ..job.job import Job
from ..job.plan import Plan
from ..job.targets import Target
from ..packaging.audit.environment import Preload
from ..process import spawn, task_environment
from ..process.ports import PortReservation
from ..records import outputs
from ..records.events import resume_count, source_of
from ..records.recorder import Recorder, read_events
from ..records.verdicts import CANCELLED, SUCCEEDED, AttemptEnd, RunEnd, ServiceAnswer, failed, final, verdict
from ..runtime import task_main
from ..status import Failure, Reason
from ..storage import posix

_POLL_S = 0.05


class FakeBackend:
    """Runs each task as a child process of this one."""

    # The defaults: tasks run and are supervised here.
    capabilities = Capabilities()
    services = Services()

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Return the facts about this process; probe nothing else."""
        return own_facts()

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Nothing speaks against a job here."""
        return []

    def render(self, plan: Plan) -> Request:
        """Return the environment of each task; ports are chosen when the tasks start."""
        addresses = dict.fromkeys(plan.tasks, "localhost:<port>")
        folder = plan.paths.temporary
        tasks = {task.name: task_environment.environment(plan, 1, task, addresses, folder) for task in plan.members}
        return Request(plan=plan, body={"tasks": tasks})

    def check(self, request: Request) -> None:
        """Every request can be started."""

    def start(self, request: Request) -> None:
        """Record the supervisor, which only one process can do for each start or resume, and begin."""
        plan = request.plan
        resumes = resume_count(read_events(plan.paths, ("resumed",)))
        recorder = Recorder(plan.paths, source_of("launcher", resumes), 0, SystemClock())
        try:
            recorder.record("launched", supervisor=spawn.identity(os.getpid()))
        except FileExistsError:
            return
        threading.Thread(target=_supervise, args=(plan, resumes), daemon=True).start()

    def open(self, plan: Plan, clock: Clock) -> FolderRun:
        """Return a handle that reads the run's folder."""
        return FolderRun(plan, clock)


def _supervise(plan: Plan, resumes: int) -> None:
    """Run one attempt and record the verdict, also on a failure of this code."""
    recorder = Recorder(plan.paths, source_of("supervisor", resumes), 0, SystemClock())
    try:
        end = _attempt(plan)
    except Exception as error:
        end = failed(Reason.INFRASTRUCTURE, Failure(task="", message=repr(error)))
    recorder.record("final", **final(end))


def _attempt(plan: Plan) -> AttemptEnd:
    paths, resumed = plan.paths, read_events(plan.paths, ("resumed",))
    attempt = 1 + max((int(event.data["attempts"]) for event in resumed), default=0)
    handled = max((int(event.data["cancel_requests"]) for event in resumed), default=0)
    recorder, ports = Recorder(paths, "supervisor", attempt, SystemClock()), PortReservation(plan.tasks)
    for folder in (paths.model, paths.checkpoints, paths.tensorboard, Path(paths.log(attempt, "")).parent):
        Path(folder).mkdir(parents=True, exist_ok=True)
    posix.put_passing(paths.payload(attempt), plan.payload(attempt).to_json().encode())
    addresses = {task: f"localhost:{port}" for task, port in ports.ports.items()}
    tasks = {member.name: _start(plan, attempt, member, addresses) for member in plan.members}
    recorder.record("attempt_started", addresses=addresses, pids={name: task.pid for name, task in tasks.items()})
    cancelled = False
    while not cancelled and not any(task.poll() for task in tasks.values()) and tasks[plan.tasks[0]].poll() is None:
        time.sleep(_POLL_S)
        cancelled = len(posix.list_names(paths.control)) > handled
    first = tasks[plan.tasks[0]].poll()
    for task in tasks.values():
        spawn.signal_group(task, signal.SIGKILL)
        task.wait()
    ports.close()
    packaged = {file.path: (file.size, file.sha256) for file in plan.code.files}
    outputs.collect(paths, attempt, plan.tasks[0], lambda: packaged, recorder)
    ended = failed(Reason.KILLED, Failure(task=plan.tasks[0], message=f"It ended with {first}."))
    service_end = SUCCEEDED if first == 0 else CANCELLED if cancelled else ended
    service = ServiceAnswer(job="ended", end=service_end, knows="decision" if cancelled else "exit")
    return verdict(RunEnd(events=read_events(paths), tasks=plan.tasks, service=service)) or ended


def _start(plan: Plan, attempt: int, task: Task, addresses: Mapping[str, str]) -> spawn.Process:
    work = Path(plan.paths.work(attempt, task.name)).parent
    variables = task_environment.environment(plan, attempt, task, addresses, plan.paths.temporary)
    for folder in (str(work), variables["TMPDIR"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
    inherited = task_environment.callers_values(plan, os.environ)
    command = [sys.executable, str(task_main.__file__), plan.paths.payload(attempt), task.name]
    env = {**inherited, **variables, "PODLIFT_PARENT": str(os.getpid())}
    return spawn.spawn(command, env=env, cwd=str(work), log=plan.paths.log(attempt, task.name))
