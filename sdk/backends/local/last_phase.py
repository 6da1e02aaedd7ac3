"""Starts the last phase of a run, which registers its model and decides about it, once all tasks are gone."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...process import spawn, task_environment
from ...process.log_index import LogIndexWriter
from ...process.log_tail import last_lines
from ...process.template import TaskStart
from ...records.events import TRAINED
from ...records.recorder import Recorder, read_events
from ...runtime import last_phase
from ...spec.plan import Plan
from ...status import Failure, Reason, State
from ...storage import posix
from .ending import Verdict, failed
from .gang import Place
from .hidden_logs import HiddenLogs

_POLL_S = 0.05
_TAIL_LINES = 20


class LastPhase:
    """The phase after one attempt. It can run again, in this supervisor or in one of a later resume."""

    def __init__(self, plan: Plan, attempt: int, place: Place) -> None:
        self._plan, self._attempt = plan, attempt
        self._temporary, self._interpreter = place.temporary, place.interpreter
        self._conditions, self._clock = place.conditions, place.clock

    def run(self) -> Verdict:
        """Run the phase, and return the verdict on the run."""
        paths, log = self._plan.paths, self._log
        if not any(event.attempt == self._attempt for event in read_events(paths, (TRAINED,))):
            Recorder(paths, "supervisor", self._attempt, self._clock, continued=True).record(TRAINED)
        index = LogIndexWriter(paths, self._attempt, self._plan.tasks, self._clock)
        hidden = HiddenLogs.of(self._plan, self._attempt, f"{self._temporary}/{self._attempt}-phase")
        hidden.open()
        process = self._start(hidden).spawn()
        try:
            while not spawn.has_exited(process):
                requested = self._conditions.stop_requested()
                if requested is not None:
                    return requested[0]
                self._clock.sleep(_POLL_S)
                index.update()
        finally:
            spawn.end_group(process)
            code = process.wait()
            spawn.end_orphans()
            hidden.close()
            index.close()
        if code == 0:
            return Verdict(state=State.SUCCEEDED, reason=Reason.DONE)
        why = last_phase.failure_of(paths, code)
        message = f"The training has succeeded, and its model could not be registered or evaluated: {why}"
        failure = Failure(task="", message=message, traceback=last_lines(log, _TAIL_LINES), log=log)
        return failed(Reason.INFRASTRUCTURE, failure)

    @property
    def _log(self) -> str:
        """The log of the first task, whose program is over."""
        return self._plan.paths.log(self._attempt, self._plan.tasks[0])

    def _start(self, hidden: HiddenLogs) -> TaskStart:
        plan, paths, task = self._plan, self._plan.paths, self._plan.members[0]
        payload = paths.last_phase(self._attempt)
        # That of an earlier supervisor may be of other code.
        with suppress(FileNotFoundError):
            os.unlink(payload)
        posix.put_passing(payload, plan.payload(self._attempt).to_json().encode())
        scratch = Path(task_environment.scratch(self._temporary, self._attempt, task.name))
        scratch.mkdir(parents=True, exist_ok=True)
        # There is no cluster any more: nothing listens at these addresses.
        addresses = {each.name: "localhost:0" for each in plan.members}
        variables = task_environment.environment(plan, self._attempt, task, addresses, self._temporary)
        return TaskStart(
            task=task.name,
            command=[self._interpreter.python, self._interpreter.task_main, payload, task.name, "last_phase"],
            env={**self._interpreter.inherited(plan), **variables, "PODLIFT_PARENT": str(os.getpid())},
            cwd=str(scratch),
            log=hidden.target(task.name),
        )
