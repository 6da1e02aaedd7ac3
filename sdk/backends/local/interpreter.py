"""Chooses the Python that runs the tasks: the submitting one, or one with exactly the job's requirements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...clock import Clock
from ...job.plan import Plan
from ...process import task_environment, venv
from ...records.recorder import Recorder
from ...runtime import task_main
from ...storage.cache import cache_folder
from .stop_conditions import StopConditions


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that starts a task."""

    python: str
    task_main: str  # the script that it runs first
    variables: dict[str, str] = field(default_factory=dict)  # additional environment variables of its tasks
    isolated: bool = False  # the tasks must not see the submitting environment

    def command(self, plan: Plan, attempt: int, task: str) -> list[str]:
        return [self.python, self.task_main, plan.paths.payload(attempt), task]

    def inherited(self, plan: Plan) -> dict[str, str]:
        """Return the variables of this process that its tasks inherit, and the additional ones."""
        variables = {**task_environment.callers_values(plan, os.environ), **self.variables}
        if self.isolated:
            variables.pop("PYTHONPATH", None)
        return variables


def current(plan: Plan) -> Interpreter:
    return Interpreter(python=plan.facts.executable, task_main=str(Path(task_main.__file__)))


@contextmanager
def chosen(plan: Plan, recorder: Recorder, conditions: StopConditions, clock: Clock) -> Iterator[Interpreter]:
    """Yield the interpreter of a run. An isolated environment is built if needed, and kept while the block runs."""
    if not plan.job.code.isolated:
        yield current(plan)
        return
    recorder.record("preparing")
    spec = venv.EnvironmentSpec(
        python=plan.facts.executable,
        requirements=tuple(plan.code.requirements.lines),
        options=tuple(plan.code.requirements.options),
        constraints=tuple(plan.code.requirements.constraints),
    )
    with venv.using(
        spec,
        cache=cache_folder(os.environ),
        log=Path(plan.paths.environment_log),
        environ=os.environ,
        clock=clock,
        stop=lambda: conditions.stop_requested() is not None,
    ) as python:
        recorder.record("prepared", python=str(python), installed=venv.installed(python))
        facade = venv.facade(Path(plan.paths.facade))
        bin_folder = python.parent
        yield Interpreter(
            python=str(python),
            task_main=str(Path(facade) / "sdk" / "runtime" / Path(task_main.__file__).name),
            variables={
                "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "VIRTUAL_ENV": str(bin_folder.parent),
            },
            isolated=True,
        )
