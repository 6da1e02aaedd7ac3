"""Runs a plan on this machine: a detached supervisor and one process for each task."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...checks import Facts, Finding, local
from ...clock import Clock, SystemClock
from ...errors import PodliftError
from ...process import leftovers, namespaces, spawn
from ...records.events import Event, generation, source_of
from ...records.recorder import Recorder, read_events
from ...spec.plan import Plan
from ...storage import emulator, posix
from ..base import LogLine, Observation, Request
from . import logs, render, uploader
from . import remote as far

# A supervisor that was never recorded within this time was never started: its client died in between.
_START_LIMIT_S = 30.0
# A Popen that is dropped while its process lives warns; supervisors are meant to outlive their parent.
_supervisors: list[subprocess.Popen[bytes]] = []


class Local:
    """The backend called "local"."""

    def probe(self, job: dict[str, Any], options: Mapping[str, Any]) -> Facts:
        """Ask this machine; imports nothing of TensorFlow."""
        return Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=_version("tensorflow") or _version("tensorflow-cpu") or _version("tensorflow-tpu"),
            keras=_version("keras"),
            tf_keras=_version("tf_keras"),
            cpus=os.cpu_count() or 1,
            isolation=namespaces.why_not() if options["network"] == "isolated" else None,
            dropped=render.dropped(os.environ, job["env"]),
        )

    def look(self, job: dict[str, Any], options: Mapping[str, Any], root: str) -> dict[str, Any]:
        """Return nothing: all that a run needs is here, and was looked at."""
        return {}

    def known(self, root: str) -> dict[str, Any]:
        """Return nothing: a local run does not ask where a bucket lies."""
        return {}

    def warm_up(self) -> None:
        """Do nothing: what a supervisor needs it loads itself."""

    def review(self, plan: Plan, *, starting: bool) -> list[Finding]:
        """Return what is wrong with the variables of this shell that change how tasks run."""
        return local.tpu_replicas(plan.job, os.environ)

    def render(self, plan: Plan) -> Request:
        """Return each task's command and environment; ports are chosen when the tasks start."""
        return Request(plan=plan, body=render.body(plan))

    def check(self, request: Request) -> None:
        """Look at what the plan's own checks do not: the emulator to which the tasks would be led.

        Raises:
            InputError: the environment names something else.
        """
        emulator.address()

    def start(self, request: Request) -> None:
        """Start the supervisor, once for each run."""
        plan = request.plan
        events = read_events(plan.paths, ("launched", "resumed"))
        launcher = source_of("launcher", generation(events))
        if any(event.source == launcher for event in events):
            return
        # The folder that holds this package goes first, so that the supervisor is the version that made the plan.
        home = str(Path(__file__).absolute().parents[3])
        # Relative entries mean this process's folder; its tasks start in another one.
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
        """Say whether the supervisor lives."""
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
            leftovers.end(plan.paths)
        return Observation(supervised=alive, detail=f"supervisor {name}")

    def logs(self, plan: Plan, *, task: str | None, attempt: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield what the tasks' log files hold."""
        return logs.read(
            plan, task=task, attempt=attempt, follow=follow, supervised=lambda: self.observe(plan).supervised
        )

    def cancel(self, plan: Plan, *, grace_s: float) -> None:
        """Leave the wish in the run's directory, where the supervisor looks several times a second."""
        wishes = len(posix.list_names(plan.paths.control))
        try:
            posix.put_new(plan.paths.cancel_request(wishes + 1), f'{{"grace_s": {float(grace_s)}}}\n'.encode())
        except FileExistsError:
            pass  # another client has wished at the same moment
        except OSError as error:
            raise PodliftError(f"The run cannot be cancelled: {error}.") from error

    def remote(self, plan: Plan, clock: Clock) -> far.Far | None:
        """Return the way to a run in a bucket whose supervisor is another machine's."""
        return far.of(plan, clock)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _supervisor(events: list[Event]) -> str | None:
    resumes = generation(events)
    own = {source_of(name, resumes) for name in ("supervisor", "launcher")}
    found = [e.data["supervisor"] for e in events if e.kind in ("started", "launched") and e.source in own]
    return found[-1] if found else None
