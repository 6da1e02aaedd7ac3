"""This machine as an agent's host: it starts all tasks of a run, and keeps their logs and files in the run's folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ...clock import Clock
from ...execution import ending
from ...execution.agreement import Membership
from ...execution.host import AttemptSetup
from ...execution.output import FolderOutput
from ...execution.standby import Forks, Launch, Standby
from ...execution.task import TaskProcess
from ...job import cluster
from ...job.plan import Plan
from ...logs import logger
from ...process import cores, task_environment
from ...process.cores import Division
from ...process.ports import PortReservation
from ...process.template import Imports, TaskStart, top_modules
from ...records import outputs
from ...records.recorder import Recorder, sweep
from ...records.verdicts import AttemptEnd
from ...storage import own_folders, posix, reserve
from ...storage.reserve import Reserve
from .interpreter import Interpreter
from .options import Local
from .stop_conditions import StopConditions

_log = logger("backends.local")


@dataclass(frozen=True, kw_only=True)
class _Open(AttemptSetup):
    """The resources of an attempt until its end."""

    output: FolderOutput
    reservation: PortReservation
    reserve: Reserve


class LocalHost:
    """The host of all tasks of a run.

    Args:
        temporary: the folder of the tasks' TMPDIRs.
        named: whether each task has its own host name.
    """

    scope = ending.WHOLE
    stop_requested = False

    def __init__(
        self,
        plan: Plan,
        temporary: str,
        interpreter: Interpreter,
        standby: Standby,
        conditions: StopConditions,
        clock: Clock,
        *,
        named: bool,
    ) -> None:
        self._plan, self._temporary, self._interpreter = plan, temporary, interpreter
        self._standby, self._conditions = standby, conditions
        self.paths, self.clock = plan.paths, clock
        self.tasks: Sequence[str] = plan.tasks
        self.folders: Sequence[str] = (plan.paths.url, temporary)
        self._host: Callable[[cluster.Task], str] = (
            (lambda task: cluster.host_name(task, plan.run_id)) if named else (lambda task: "localhost")
        )
        self._starts: list[TaskStart] = []

    # --- An attempt: the calls of its agent

    def begin(self, membership: Membership) -> _Open:
        number, paths = membership.attempt, self.paths
        room = Reserve(paths.reserve(number, "supervisor"))
        return _Open(
            recorder=Recorder(paths, "supervisor", number, self.clock, room),
            output=self.output(number, f"{number}-output"),
            reservation=PortReservation(self.tasks),
            reserve=room,
        )

    def output(self, attempt: int, folder: str) -> FolderOutput:
        """Return the logs of an attempt; secrets are kept out of them by pipes in a folder of this name."""
        plan = self._plan
        values = task_environment.callers_values(plan, os.environ) if plan.job.secrets else {}
        secrets = {name: values[name] for name in plan.job.secrets}
        return FolderOutput(plan.paths, attempt, plan.tasks, secrets, f"{self._temporary}/{folder}", self.clock)

    def start(self, membership: Membership, setup: _Open) -> Mapping[str, TaskProcess]:
        plan, paths, number = self._plan, self.paths, membership.attempt
        addresses = {task.name: f"{self._host(task)}:{setup.reservation.ports[task.name]}" for task in plan.members}
        # Threads of the user's own are not squeezed into a part of the CPUs.
        setting = "all" if cores.INTRA in plan.job.env else Local.of(plan.target).cores
        division = cores.divide(plan.tasks, cores.available(), setting)
        starts = [self._start(number, task, addresses, division, setup.output) for task in plan.members]
        # Importing begins here, and everything below happens at the same time.
        with closing(Launch(starts, self._standby)) as launch:
            payload = replace(plan.payload(number), cores=str(division), cancels=self._conditions.handled)
            posix.put_passing(paths.payload(number), payload.to_json().encode())
            for outside in (paths.model, paths.checkpoints, paths.tensorboard):
                Path(outside).mkdir(parents=True, exist_ok=True)
            for task in plan.tasks:
                scratch = Path(task_environment.scratch(self._temporary, number, task))
                for folder in (Path(paths.work(number, task)).parent, scratch, Path(paths.log(number, task)).parent):
                    folder.mkdir(parents=True, exist_ok=True)
            setup.output.open()
            processes = launch.finish(lambda: self._conditions.stop_requested() is not None)
        self._starts = starts
        pids = {name: process.pid for name, process in processes.items()}
        setup.recorder.record("attempt_started", addresses=addresses, pids=pids, why_fresh=launch.why_fresh)
        return {start.task: TaskProcess(start, processes[start.task]) for start in starts if processes}

    def _start(
        self,
        attempt: int,
        task: cluster.Task,
        addresses: Mapping[str, str],
        division: Division | None,
        output: FolderOutput,
    ) -> TaskStart:
        plan = self._plan
        variables = task_environment.environment(plan, attempt, task, addresses, self._temporary)
        return TaskStart(
            task=task.name,
            command=self._interpreter.command(plan, attempt, task.name),
            env={
                **(division.variables(task.name) if division else {}),
                **self._interpreter.inherited(plan),
                **variables,
                "PODLIFT_PARENT": str(os.getpid()),
            },
            cwd=str(Path(self.paths.work(attempt, task.name)).parent),
            log=output.target(task.name),
            cpus=division.shares[task.name].cpus if division else (),
        )

    def start_again(self, start: TaskStart) -> TaskProcess:
        return TaskProcess(start, start.spawn())

    def clear(self, attempt: int, task: str) -> None:
        shutil.rmtree(self.paths.work(attempt, task), ignore_errors=True)
        scratch = task_environment.scratch(self._temporary, attempt, task)
        inside = os.path.relpath(scratch, self._temporary)
        if failed := own_folders.discard_temporary(self.paths.url, self._temporary, inside):
            _log.warning(failed)
        Path(scratch).mkdir(parents=True, exist_ok=True)

    def keep_standby(self) -> None:
        self._standby.prepare(self._starts)

    def exit_code(self, own_end: AttemptEnd, code: int) -> int:
        """Return 0: no code of this machine's means anything."""
        return 0

    def tidy(self, attempt: int, setup: _Open, *, more: bool) -> None:
        sweep(self.paths, self.tasks)
        reserve.sweep(self.paths.reserves, frozenset(self.tasks), attempt)
        setup.reservation.close()
        outputs.collect(self.paths, attempt, self.tasks[0], self._bundle_files, setup.recorder)
        setup.reserve.close()

    def _bundle_files(self) -> dict[str, tuple[int, str]]:
        return {file.path: (file.size, file.sha256) for file in self._plan.code.files}

    def phase_start(self, attempt: int, output: FolderOutput) -> TaskStart:
        """Return how the process of the last phase is started; its output goes into the log of the first task."""
        plan, task = self._plan, self._plan.members[0]
        scratch = Path(task_environment.scratch(self._temporary, attempt, task.name))
        scratch.mkdir(parents=True, exist_ok=True)
        # The cluster has ended: nothing listens at these addresses.
        addresses = {member.name: "localhost:0" for member in plan.members}
        return replace(self._start(attempt, task, addresses, None, output), cwd=str(scratch))


def forks(plan: Plan, interpreter: Interpreter, folder: str) -> Forks:
    """Return when the tasks of a plan are forked; `folder` is for the logs of the imports."""
    start, local = plan.target.start, Local.of(plan.target)
    is_single = len(plan.tasks) == 1 and local.start != "fork"
    return Forks(
        imports=Imports(
            python=interpreter.python,
            script=str(Path(interpreter.task_main).with_name("template.py")),
            modules=plan.preload,
            project=top_modules((file.path for file in plan.code.files), plan.code.roots),
            outside=plan.code.outside,
        ),
        folder=folder,
        why_not="" if plan.preload else plan.fresh or "its plan does not mention it",
        why_not_first="a single task has no imports to share" if is_single else "",
        stays=start not in ("spawn", "anew"),
        prepares=start == "standby",
    )
