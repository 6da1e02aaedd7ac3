"""Which Python runs the tasks: the one that submitted, or one of an environment made of exactly the requirements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...clock import Clock
from ...process import venv as environments
from ...records.recorder import Recorder
from ...runtime import task_main
from ...spec.plan import Plan
from ...storage.cache import cache_folder
from .ending import Ending


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """What starts a task.

    Args:
        python: the interpreter.
        task_main: the first file that it runs.
        variables: what its tasks' environment needs beside the rest.
        isolated: True when nothing of the submitting environment may be seen.
    """

    python: str
    task_main: str
    variables: dict[str, str] = field(default_factory=dict)
    isolated: bool = False


def current(plan: Plan) -> Interpreter:
    """Return the interpreter that the run was planned with."""
    return Interpreter(python=plan.facts["executable"], task_main=str(Path(task_main.__file__)))


@contextmanager
def chosen(plan: Plan, recorder: Recorder, ending: Ending, clock: Clock) -> Iterator[Interpreter]:
    """Yield the interpreter of a run; a fresh environment is built where the plan says so, and kept as long as this lasts.

    Raises:
        EnvironmentBuildError: it could not be built.
        EnvironmentStoppedError: the run was ended meanwhile.
    """
    if not plan.job["code"].get("isolated", False):
        yield current(plan)
        return
    recorder.record("preparing")
    wanted = environments.Wanted(
        python=plan.facts["executable"],
        requirements=tuple(plan.requirements["lines"]),
        options=tuple(plan.requirements["options"]),
        constraints=tuple(plan.requirements["constraints"]),
    )
    with environments.using(
        wanted,
        cache=cache_folder(os.environ),
        log=Path(plan.paths.environment_log),
        environ=os.environ,
        clock=clock,
        stop=lambda: ending.asked() is not None,
    ) as python:
        recorder.record("prepared", python=str(python), installed=environments.installed(python))
        facade = environments.facade(Path(plan.paths.facade))
        home = python.parent
        yield Interpreter(
            python=str(python),
            task_main=str(Path(facade) / "sdk" / "runtime" / Path(task_main.__file__).name),
            variables={
                "PATH": f"{home}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "VIRTUAL_ENV": str(home.parent),
            },
            isolated=True,
        )
