"""Starts the tasks of a host by forking a process that imported TensorFlow once, if that is safe and saves time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..job import cluster
from ..job.payload import TASK_RESTARTS
from ..process import cores, free_memory
from ..process import spawn as processes
from ..process.template import CannotForkError, Imports, TaskStart, Template, room_for

# Variables that differ between tasks and are not read before the program runs. All others are the template's from its start.
_PER_TASK = frozenset(
    {"PODLIFT_TASK", "PODLIFT_PARENT", "TMPDIR", *cluster.VARIABLES, cores.VARIABLE, cores.INTRA, cores.INTER}
)
# The same for variables that differ between attempts: gRPC reads its own when the program connects.
_PER_ATTEMPT = frozenset({"PODLIFT_ATTEMPT", TASK_RESTARTS, "no_grpc_proxy", "TF_GRPC_REUSE_PORT"})
# How often a host may start a standby process: each import costs the training two CPU seconds.
_MOST_PREPARED = 5


@dataclass(frozen=True, kw_only=True)
class Forks:
    """When a host forks its tasks.

    Args:
        imports: the modules to import before.
        folder: for the logs of the imports.
        why_not: why no task is ever forked, or "".
        why_not_first: why no process imports for the attempt itself, so that only a standby process is forked; or "".
        stays: whether a process stands by for the next attempt.
        prepares: whether the standby process is started while the tasks train.
    """

    imports: Imports
    folder: str
    why_not: str = ""
    why_not_first: str = ""
    stays: bool = True
    prepares: bool = True


class Standby:
    """The template that waits for the next attempt, if there is one."""

    def __init__(self, forks: Forks) -> None:
        self.forks = forks
        self._template: Template | None = None
        self._prepared = self._imports = 0

    def imported(self, starts: Sequence[TaskStart], *, yields: bool = False) -> Template:
        """Return a process that begins to import for these tasks; one that `yields` does so at the lowest priority."""
        self._imports += 1
        log, room = f"{self.forks.folder}/{self._imports}-imports.log", room_for(start.command for start in starts)
        env, cwd = shared_environment(starts), starts[0].cwd
        return Template(self.forks.imports, env, cwd=cwd, log=log, room=room, yields=yields)

    @property
    def has_room(self) -> bool:
        """Whether a template may stay."""
        return self.forks.stays and self._template is None and free_memory.allows_standby()

    def keep(self, template: Template) -> None:
        template.stand_by()
        self._template = template

    def prepare(self, starts: Sequence[TaskStart], *, yields: bool = True) -> None:
        """Start a standby process that imports while the tasks train or wait, if the host always needs one and has none."""
        if not self.forks.prepares or self._prepared == _MOST_PREPARED:
            return
        if self._template is not None and not self._template.is_alive:
            self.close()
        if not self.has_room or self.why_not(starts):
            return
        self._prepared += 1
        # Without one, the next attempt starts as the first one did.
        with suppress(CannotForkError, OSError):
            self.keep(self.imported(starts, yields=yields))

    def why_not(self, starts: Sequence[TaskStart]) -> str:
        """Return why these tasks cannot be forked, or ""."""
        if self.forks.why_not:
            return self.forks.why_not
        if not sys.platform.startswith("linux"):
            return "fork is safe on Linux only"
        entries = starts[0].env.get("PYTHONPATH", "").split(os.pathsep)
        if any(not Path(entry).is_absolute() for entry in entries if entry):
            return "PYTHONPATH has a relative entry, which refers to a different folder in each task"
        return ""

    def take(self, starts: Sequence[TaskStart]) -> Template | None:
        """Return the template, if it lives and these tasks can be forked from it."""
        if self._template is None:
            return None
        env, template_env = shared_environment(starts), self._template.env
        differing = {name for name in {*env, *template_env} - _PER_TASK if env.get(name) != template_env.get(name)}
        if differing <= _PER_ATTEMPT and self._template.is_alive:
            template, self._template = self._template, None
            return template
        self.close()
        return None

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None


def shared_environment(starts: Sequence[TaskStart]) -> dict[str, str]:
    """Return the environment that all tasks share. Raises CannotForkError if they differ in other than per-task variables."""
    common = [{name: value for name, value in start.env.items() if name not in _PER_TASK} for start in starts]
    differing = {
        name for one in common for name, value in {**common[0], **one}.items() if one.get(name) != common[0].get(name)
    }
    if differing:
        raise CannotForkError(f"the tasks differ in {', '.join(sorted(differing))}")
    return common[0]


class Launch:
    """Starts the tasks of an attempt: forked if possible, else as new processes."""

    def __init__(self, starts: Sequence[TaskStart], standby: Standby) -> None:
        self._starts, self._standby = starts, standby
        self.why_fresh = standby.why_not(starts) or standby.forks.why_not_first
        self._may_import = not self.why_fresh
        self._template: Template | None = None
        with self._explaining():
            self._template = standby.take(starts)
            if self._template is None and self._may_import:
                self._template, self._may_import = standby.imported(starts), False

    def close(self) -> None:
        """End the process that waited for this attempt, if `finish` was not reached: else it would live as long as the run."""
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
                # The standby process died; start another one.
                self._template, self._may_import = self._standby.imported(self._starts), False
        return {} if stop() else dict(zip(names, [start.spawn() for start in self._starts], strict=True))
