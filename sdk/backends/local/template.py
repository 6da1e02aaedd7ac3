"""Starts the tasks of an attempt by forking a process that imported TensorFlow once, if that is safe and saves time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from ...job.plan import Plan
from ...job.policies import Local
from ...process import cores, free_memory
from ...process import spawn as processes
from ...process.template import CannotForkError, Imports, TaskStart, Template, room_for, top_modules
from .interpreter import Interpreter

# Variables that differ between tasks and are not read before the program runs. All others are the template's from its start.
_PER_TASK = frozenset(
    {"PODLIFT_TASK", "PODLIFT_PARENT", "TMPDIR", "TF_CONFIG", "CLUSTER_SPEC", cores.VARIABLE, cores.INTRA, cores.INTER}
)
# How often a run may start one that waits: each import costs the training two CPU seconds.
_MOST_PREPARED = 5
_PER_ATTEMPT = frozenset({"PODLIFT_ATTEMPT"})


def why_not(plan: Plan, starts: Sequence[TaskStart]) -> str:
    """Return why the tasks of a plan cannot be forked, or ""."""
    if not plan.preload:
        return plan.fresh or "its plan does not mention it"
    if not sys.platform.startswith("linux"):
        return "fork is safe on Linux only"
    if any(not Path(entry).is_absolute() for entry in starts[0].env.get("PYTHONPATH", "").split(os.pathsep) if entry):
        return "PYTHONPATH has a relative entry, which refers to a different folder in each task"
    return ""


def single(plan: Plan) -> str:
    """Return why the tasks of a plan are forked only from a template that stands by, or ""."""
    alone = len(plan.tasks) == 1 and Local.of(plan.target).start != "fork"
    return "a single task has no imports to share" if alone else ""


def shared_environment(starts: Sequence[TaskStart]) -> dict[str, str]:
    """Return the environment that all tasks share. Raises CannotForkError if they differ in other than per-task variables."""
    found = [{name: value for name, value in start.env.items() if name not in _PER_TASK} for start in starts]
    differing = {
        name for one in found for name, value in {**found[0], **one}.items() if one.get(name) != found[0].get(name)
    }
    if differing:
        raise CannotForkError(f"the tasks differ in {', '.join(sorted(differing))}")
    return found[0]


def _template(
    plan: Plan, starts: Sequence[TaskStart], interpreter: Interpreter, log: str, *, yields: bool = False
) -> Template:
    imports = Imports(
        python=interpreter.python,
        script=str(Path(interpreter.task_main).with_name("template.py")),
        modules=plan.preload,
        project=top_modules((file.path for file in plan.code.files), plan.code.roots),
        outside=plan.code.outside,
    )
    env, cwd = shared_environment(starts), starts[0].cwd
    return Template(imports, env, cwd=cwd, log=log, room=room_for(start.command for start in starts), yields=yields)


class Standby:
    """The template that waits for the next attempt, if there is one."""

    def __init__(self, plan: Plan, interpreter: Interpreter, temporary: str) -> None:
        self._plan, self._interpreter, self._temporary = plan, interpreter, temporary
        self._start = plan.target.start if plan.preload else "spawn"
        self._template: Template | None = None
        self._prepared = 0

    @property
    def has_room(self) -> bool:
        """Whether a template may stay."""
        return self._start not in ("spawn", "anew") and self._template is None and free_memory.allows_standby()

    def keep(self, template: Template) -> None:
        template.stand_by()
        self._template = template

    def prepare(self, starts: Sequence[TaskStart]) -> None:
        """Start one that imports while the tasks train, if one is wanted at all times and there is none."""
        if self._start != "standby" or self._prepared == _MOST_PREPARED:
            return
        if self._template is not None and not self._template.is_alive:
            self.close()
        if not self.has_room or why_not(self._plan, starts):
            return
        self._prepared += 1
        log = f"{self._temporary}/{self._prepared}-standby.log"
        # Without one, the next attempt starts as the first one did.
        with suppress(CannotForkError, OSError):
            self.keep(_template(self._plan, starts, self._interpreter, log, yields=True))

    def take(self, starts: Sequence[TaskStart]) -> Template | None:
        """Return the template, if it lives and these tasks can be forked from it."""
        if self._template is None:
            return None
        env, given = shared_environment(starts), self._template.env
        differing = {name for name in {*env, *given} if env.get(name) != given.get(name)}
        if differing <= _PER_ATTEMPT and self._template.is_alive:
            template, self._template = self._template, None
            return template
        self.close()
        return None

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None


class GangLaunch:
    """Starts the tasks of an attempt: forked if possible, else as new processes."""

    def __init__(
        self, plan: Plan, starts: Sequence[TaskStart], interpreter: Interpreter, log: str, standby: Standby
    ) -> None:
        self._starts, self._standby = starts, standby
        self._import = partial(_template, plan, starts, interpreter, log)
        self.why_fresh = why_not(plan, starts) or single(plan)
        self._may_import = not self.why_fresh
        self._template: Template | None = None
        with self._explaining():
            self._template = standby.take(starts)
            if self._template is None and self._may_import:
                self._template, self._may_import = self._import(), False

    def close(self) -> None:
        """End what waited for this attempt, if `finish` was not reached: nothing else ends it before the run does."""
        if self._template is not None:
            self._template.close()
            self._template = None

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except CannotForkError as reason:
            self.why_fresh = str(reason)

    def finish(self, stop: Callable[[], bool]) -> dict[str, processes.Process]:
        """Return the process of each task by name, or {} if `stop` returned True before they were started."""
        names = [start.task for start in self._starts]
        while self._template is not None:
            template, self._template = self._template, None
            with self._explaining():
                stays = self._standby.has_room
                tasks = template.fork(self._starts, stop, stays=stays)
                if stays:
                    self._standby.keep(template)
                self.why_fresh = ""
                return dict(zip(names, tasks, strict=True))
            if self._may_import and not stop():
                # What stood by has died: what it had imported is imported again.
                self._template, self._may_import = self._import(), False
        return {} if stop() else dict(zip(names, [start.spawn() for start in self._starts], strict=True))
