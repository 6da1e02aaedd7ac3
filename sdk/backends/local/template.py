"""Starts the tasks of an attempt by forking a process that imported TensorFlow once, if that is safe and saves time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ...process import cores
from ...process import spawn as processes
from ...process.template import CannotForkError, Imports, TaskStart, Template, top_modules
from ...spec.plan import Plan
from .interpreter import Interpreter

# Variables that differ between tasks and are not read before the program runs. All others are the template's from its start.
_PER_TASK = frozenset(
    {"PODLIFT_TASK", "PODLIFT_PARENT", "TMPDIR", "TF_CONFIG", "CLUSTER_SPEC", cores.VARIABLE, cores.INTRA, cores.INTER}
)


def why_not(plan: Plan, starts: Sequence[TaskStart]) -> str:
    """Return why the tasks of a plan cannot be forked, or ""."""
    if not plan.preload:
        return plan.fresh or "its plan does not mention it"
    if not sys.platform.startswith("linux"):
        return "fork is safe on Linux only"
    if any(not Path(entry).is_absolute() for entry in starts[0].env.get("PYTHONPATH", "").split(os.pathsep) if entry):
        return "PYTHONPATH has a relative entry, which refers to a different folder in each task"
    return ""


def shared_environment(starts: Sequence[TaskStart]) -> dict[str, str]:
    """Return the environment that all tasks share. Raises CannotForkError if they differ in other than per-task variables."""
    found = [{name: value for name, value in start.env.items() if name not in _PER_TASK} for start in starts]
    differing = {
        name for one in found for name, value in {**found[0], **one}.items() if one.get(name) != found[0].get(name)
    }
    if differing:
        raise CannotForkError(f"the tasks differ in {', '.join(sorted(differing))}")
    return found[0]


def _template(plan: Plan, starts: Sequence[TaskStart], interpreter: Interpreter, log: str) -> Template:
    reason = why_not(plan, starts)
    if reason:
        raise CannotForkError(reason)
    imports = Imports(
        python=interpreter.python,
        script=str(Path(interpreter.task_main).with_name("template.py")),
        modules=plan.preload,
        own_names=plan.own_names,
        project=top_modules((file.path for file in plan.code.files), plan.code.roots),
        outside=plan.code.outside,
    )
    room = max(len(os.fsencode("\0".join(start.command))) for start in starts)
    return Template(imports, shared_environment(starts), cwd=starts[0].cwd, log=log, room=room)


class GangLaunch:
    """Starts the tasks of an attempt: forked if possible, else as new processes."""

    def __init__(self, plan: Plan, starts: Sequence[TaskStart], interpreter: Interpreter, log: str) -> None:
        self._starts = starts
        self._template: Template | None = None
        self.why_fresh = ""
        try:
            self._template = _template(plan, starts, interpreter, log)
        except CannotForkError as reason:
            self.why_fresh = str(reason)

    def finish(self, stop: Callable[[], bool]) -> dict[str, processes.Process]:
        """Return the process of each task by name, or {} if `stop` returned True before they were started."""
        names = [start.task for start in self._starts]
        if self._template is not None:
            try:
                return dict(zip(names, self._template.fork(self._starts, stop), strict=True))
            except CannotForkError as reason:
                self.why_fresh = str(reason)
        return {} if stop() else dict(zip(names, [start.spawn() for start in self._starts], strict=True))
