"""Runs an attempt of an evaluator on a separate host, in a process with children that may be killed; prints its end as JSON."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from sdk.clock import SystemClock
from sdk.execution import ending
from sdk.execution.agreement import Membership
from sdk.execution.attempt import Attempt
from sdk.execution.host import AttemptSetup
from sdk.execution.output import ContainerOutput
from sdk.execution.task import StopSignals, TaskProcess
from sdk.job.layout import RunPaths
from sdk.job.policies import Limits
from sdk.process import spawn
from sdk.process.template import TaskStart
from sdk.records.recorder import Recorder
from sdk.records.restarts import Decision

TASK = "evaluator-0"
PAYLOAD = SimpleNamespace(tasks=("chief-0", "ps-0", "worker-0", TASK), limits=Limits())


class Host:
    """Starts one shell command after the other."""

    scope, tasks, clock = ending.SHARED, (TASK,), SystemClock()

    def __init__(self, root: str, commands: list[str]) -> None:
        self.paths, self.folders, self._root = RunPaths(root), (root,), root
        self._commands, self._signals = commands, StopSignals()
        self.started = 0
        self.output = ContainerOutput(lambda data: None, root, (), (), lambda: False)

    @property
    def stop_requested(self) -> bool:
        return self._signals.stop_requested

    def start(self, membership, setup):
        about = TaskStart(task=TASK, command=[], env=dict(os.environ), cwd=self._root, log="")
        return {TASK: self.start_again(about)}

    def start_again(self, start):
        log, errors = self.output.opened()
        command = ["sh", "-c", self._commands[self.started]]
        process = TaskStart(task=TASK, command=command, env=start.env, cwd=self._root, log=log, errors=errors).spawn()
        self.started += 1
        self._signals.forward_to(process.pid)
        self.output.started()
        return TaskProcess(start, process, exited=lambda: self._signals.forward_to(None))

    def clear(self, attempt, task):
        pass

    def keep_standby(self):
        pass

    def exit_code(self, own_end, code):
        return code


class Alone:
    """Nobody else takes part; a task that has ended is restarted after `delay_s`, or ends the attempt."""

    def __init__(self, delay_s: float | None) -> None:
        self._delay_s = delay_s

    follow = staticmethod(lambda attempt, steps: lambda: None)
    stop_agreed = staticmethod(lambda attempt: False)
    known_end = requested = staticmethod(lambda *_: None)
    grace_s = hang = staticmethod(lambda *_: None)
    finished = staticmethod(lambda attempt: set())
    training_step = staticmethod(lambda: 3)
    is_own = staticmethod(lambda end: True)
    is_overdue = staticmethod(lambda: False)
    is_idle = staticmethod(lambda attempt, *, idle: False)
    conclude = staticmethod(lambda attempt, seen, **about: seen)

    def restart_alone(self, attempt, task, reason, step=None):
        return Decision(restart=self._delay_s is not None, delay_s=self._delay_s or 0.0)


def ran(root: str, commands: list[str], delay_s: float | None = None, restarts: int = 0) -> dict:
    host, begun_at = Host(root, commands), time.monotonic()
    recorder = Recorder(host.paths, "agent-3", 1, host.clock, continued=True)
    begun = AttemptSetup(recorder=recorder, output=host.output, restarts=restarts)
    end = Attempt(host, PAYLOAD, Alone(delay_s), Membership(attempt=1), begun).run()
    lasted_s = time.monotonic() - begun_at
    message = end.failure.message if end.failure else ""
    return {"reason": end.reason.value, "message": message, "started": host.started, "lasted_s": lasted_s}


def main(case: str, root: str) -> dict:
    Path(RunPaths(root).events).mkdir(parents=True)
    spawn.adopt_orphans()
    if case == "stopped while it waits":
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        return ran(root, ["exit 1", "sleep 600"], delay_s=60.0)
    if case == "an old failure":
        recorder = Recorder(RunPaths(root), TASK, 1, SystemClock())
        recorder.record("failed", type="ValueError", message="old", traceback="")
        return ran(root, ["kill -9 $$"], restarts=1)
    if case == "its output is held":
        return ran(root, ["setsid sh -c 'while true; do echo x; sleep 0.1; done' & exit 3"])
    # Each of the ten ends after its parent; the task waits until this process has no zombie.
    text = f"""
        for i in 1 2 3 4 5 6 7 8 9 10; do sh -c 'setsid sleep 0.3 & exit 0'; done
        sleep 0.5
        for i in $(seq 300); do
          grep -l "^State:.Z" /proc/[0-9]*/status 2>/dev/null | xargs -r grep -l "^PPid:.{os.getpid()}$" | grep -q . || exit 5
          sleep 0.1
        done
        exit 6
    """
    return ran(root, [text]) | {"expected": 5}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
