"""Runs a plan on this machine: a detached supervisor and one process per task."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...checks import Facts, Finding, local, of_local
from ...clock import Clock, SystemClock
from ...errors import PodliftError
from ...process import namespaces, spawn
from ...process.janitor_watch import end_leftovers
from ...records.events import Event, resume_count, source_of
from ...records.recorder import Recorder, read_events
from ...spec import capabilities
from ...spec.job import Job
from ...spec.plan import Plan
from ...spec.policies import Local, Target
from ...storage import emulator, posix
from ..base import LogLine, Observation, Request
from . import logs, render, uploader
from .remote import RemoteRun, remote_run

# If no supervisor was recorded within this time, its client died before starting it.
_START_LIMIT_S = 30.0
# Dropping a Popen while its process runs raises a warning. Supervisors are meant to outlive their parent.
_supervisors: list[subprocess.Popen[bytes]] = []


class LocalBackend:
    """The backend called "local"."""

    capabilities = capabilities.LOCAL

    def probe(self, job: Job, target: Target, *, root: str, online: bool, starting: bool) -> Facts:
        """Inspect this machine, without importing TensorFlow."""
        return Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=_version("tensorflow") or _version("tensorflow-cpu") or _version("tensorflow-tpu"),
            keras=_version("keras"),
            tf_keras=_version("tf_keras"),
            cpus=os.cpu_count() or 1,
            isolation=namespaces.why_not() if isinstance(target, Local) and target.network == "isolated" else None,
            dropped=render.dropped(os.environ, job.env),
        )

    def review(
        self,
        job: Job,
        target: Target,
        facts: Facts,
        *,
        root: str,
        run_id: str,
        strategies: Sequence[str],
        starting: bool,
    ) -> list[Finding]:
        """Check the job, and the variables of this shell that change how tasks run."""
        return [*local.tpu_replicas(job, os.environ), *of_local(job, facts, target=Local.of(target))]

    def render(self, plan: Plan) -> Request:
        """Return each task's command and environment. Ports are chosen when the tasks start."""
        return Request(plan=plan, body=render.body(plan))

    def check(self, request: Request) -> None:
        """Reject an unusable PODLIFT_EMULATOR, which the plan's own checks do not read."""
        emulator.address()

    def start(self, request: Request) -> None:
        """Start the supervisor, once per run."""
        plan = request.plan
        events = read_events(plan.paths, ("launched", "resumed"))
        launcher = source_of("launcher", resume_count(events))
        if any(event.source == launcher for event in events):
            return
        # This package comes first on the path, so that the supervisor has the version that made the plan.
        home = str(Path(__file__).absolute().parents[3])
        # Relative entries refer to this process's folder. Tasks start in another one.
        callers = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([home, *callers])}
        if callers:
            env["PODLIFT_CALLER_PYTHONPATH"] = os.pathsep.join(callers)
        command = [sys.executable, "-m", "sdk.backends.local.supervisor", plan.paths.url]
        process = spawn.spawn(command, env=env, cwd=plan.paths.url, log=plan.paths.supervisor_log)
        _supervisors.append(process)
        Recorder(plan.paths, launcher, 0, SystemClock()).record(
            "launched", supervisor=spawn.identity(process.pid) or f"gone:{process.pid}"
        )
        if plan.local:
            uploader.start(plan)

    def observe(self, plan: Plan) -> Observation:
        """Return whether the supervisor is alive."""
        for process in list(_supervisors):
            if process.poll() is not None:
                _supervisors.remove(process)
        events = read_events(plan.paths, ("submitted", "launched", "started", "resumed"))
        name = _supervisor(events)
        if name is None:
            submitted = max((event.time for event in events), default=0.0)
            waiting = SystemClock().now() - submitted < _START_LIMIT_S
            return Observation(supervised=waiting, detail="not started yet" if waiting else "never started")
        if not spawn.same_machine(name):
            return Observation(supervised=not name.startswith("gone:"), detail="supervised on another machine")
        alive = spawn.alive(name)
        if not alive:
            end_leftovers(plan.paths)
        return Observation(supervised=alive, detail=f"supervisor {name}")

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the tasks' log files."""
        return logs.read(
            plan, task=task, attempt=attempt, follow=follow, supervised=lambda: self.observe(plan).supervised
        )

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Write a cancel request to the run's directory, which the supervisor polls several times a second."""
        requests = len(posix.list_names(plan.paths.control))
        try:
            posix.put_new(plan.paths.cancel_request(requests + 1), f'{{"grace_s": {float(grace_s)}}}\n'.encode())
        except FileExistsError:
            pass  # another client made a request at the same moment
        except OSError as error:
            raise PodliftError(f"The run cannot be cancelled: {error}.") from error

    def remote(self, plan: Plan, clock: Clock) -> RemoteRun | None:
        """Return the handle of a run in a bucket that another machine supervises."""
        return remote_run(plan, clock)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _supervisor(events: list[Event]) -> str | None:
    resumes = resume_count(events)
    sources = {source_of(name, resumes) for name in ("supervisor", "launcher")}
    found = [e.data["supervisor"] for e in events if e.kind in ("started", "launched") and e.source in sources]
    return found[-1] if found else None
