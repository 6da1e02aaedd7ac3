"""Runs a plan on this machine: a detached supervisor and one process per task."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...checks import Facts, Finding, communication, strategies
from ...clock import Clock, SystemClock
from ...job import capabilities, cluster
from ...job.job import Job
from ...job.plan import Plan
from ...job.targets import Target
from ...process import cores, namespaces, spawn, task_environment
from ...records.events import resume_count, source_of
from ...records.recorder import Recorder, is_owned, read_events
from ...storage import emulator
from ..base import Request
from ..folder import FolderRun
from ..services import Services
from . import checks, interpreter, uploader
from .bucket_run import BucketRun, OwnedRun
from .options import Local

if TYPE_CHECKING:  # it parses programs
    from ...packaging.audit.environment import Preload


class LocalServices(Services):
    def warm(self, plan: Plan) -> AbstractContextManager[None]:
        from .warm import warm

        return warm(plan)


class LocalBackend:
    capabilities = capabilities.LOCAL
    services = LocalServices()

    def probe(self, job: Job, target: Target, *, root: str, online: bool) -> Facts:
        """Inspect this machine, without importing TensorFlow."""
        return Facts(
            python=platform.python_version(),
            executable=sys.executable,
            tensorflow=_version("tensorflow") or _version("tensorflow-cpu") or _version("tensorflow-tpu"),
            keras=_version("keras"),
            tf_keras=_version("tf_keras"),
            cpus=cores.available().count,
            gpus=len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()]),
            memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
            isolation=namespaces.why_not() if Local.of(target).network == "isolated" else None,
            dropped=task_environment.dropped(os.environ, job.env),
        )

    def review(self, plan: Plan, program: Preload, *, starting: bool) -> list[Finding]:
        """Check the job, and the variables of this shell that change how tasks run."""
        job, target = plan.job, Local.of(plan.target)
        return [
            *checks.replicas(job, os.environ),
            *checks.of_local(job, plan.facts, target=target),
            *communication.run(job, program.communications, stands_in=not target.real_gpus),
            *strategies.roles(job, program.strategies),
            *strategies.of_fit(job, program.strategies, program.fits),
        ]

    def render(self, plan: Plan) -> Request:
        """Return each task's command and environment in attempt 1. Ports are chosen when the tasks start.

        If an environment is built from the requirements, its interpreter replaces the one shown.
        """
        addresses = {task.name: f"{cluster.host_name(task, plan.run_id)}:<port>" for task in plan.members}
        python, folder = interpreter.current(plan), plan.paths.temporary
        tasks = [
            {
                "name": task.name,
                "command": python.command(plan, 1, task.name),
                "env": task_environment.environment(plan, 1, task, addresses, folder),
                "copied": plan.job.callers,
            }
            for task in plan.members
        ]
        built = {"environment": asdict(plan.code.requirements)} if plan.job.code.isolated else {}
        return Request(plan=plan, body={**built, "tasks": tasks})

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
        process = spawn.detached(
            "sdk.backends.local.supervisor", plan.paths.url, cwd=plan.paths.url, log=plan.paths.supervisor_log
        )
        Recorder(plan.paths, launcher, 0, SystemClock()).record(
            "launched", supervisor=spawn.identity(process.pid) or f"gone:{process.pid}"
        )
        if plan.local:
            uploader.start(plan)

    def open(self, plan: Plan, clock: Clock) -> FolderRun:
        if not plan.local:
            return FolderRun(plan, clock)
        return OwnedRun(plan, clock) if is_owned(plan.paths) else BucketRun(plan, clock)


def _version(distribution: str) -> str | None:
    # Not at the top: a supervisor starts in a tenth less time without it.
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
