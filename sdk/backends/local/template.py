"""Starts the tasks of an attempt by forking a process that has imported TensorFlow once, where that is safe and pays.

The template (`runtime/template.py`) starts importing at once, gets its orders over a pipe as JSON lines, forks a process for
each, and leaves. Its children fall to the supervisor, and wait for its word until they have: whatever goes wrong before that,
none of them has begun, and all tasks are started in the ordinary way.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...process import spawn as processes
from ...spec.plan import Plan
from .interpreter import Interpreter

_POLL_S = 0.05
_CHUNK = 65536
# What differs from task to task, and what nothing reads before the program runs. All else is the template's from its start.
_OWN = frozenset({"PODLIFT_TASK", "PODLIFT_PARENT", "TMPDIR", "TF_CONFIG", "CLUSTER_SPEC"})


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a task is started with.

    Args:
        task: its name.
        command: its words, the interpreter first.
        env: all of its environment.
        cwd: the folder that it starts in.
        log: the file that takes its output.
    """

    task: str
    command: list[str]
    env: dict[str, str]
    cwd: str
    log: str

    def spawn(self) -> processes.Process:
        """Start it in a Python of its own."""
        return processes.spawn(self.command, env=self.env, cwd=self.cwd, log=self.log)


class CannotForkError(Exception):
    """Why the tasks are started in the ordinary way."""


def why_not(plan: Plan, starts: Sequence[Start]) -> str:
    """Return why the tasks of a plan are not forked, "" if they are."""
    if not plan.preload:
        return plan.fresh or "its plan says nothing about it"
    if not sys.platform.startswith("linux"):
        return "fork is safe on Linux only"
    if any(not Path(entry).is_absolute() for entry in starts[0].env.get("PYTHONPATH", "").split(os.pathsep) if entry):
        return "PYTHONPATH has a relative entry, which means another folder in each task"
    return ""


def shared(starts: Sequence[Start]) -> dict[str, str]:
    """Return the environment that all tasks have in common.

    Raises:
        CannotForkError: they differ in a variable that may be read before the program runs.
    """
    found = [{name: value for name, value in start.env.items() if name not in _OWN} for start in starts]
    differing = {
        name for one in found for name, value in {**found[0], **one}.items() if one.get(name) != found[0].get(name)
    }
    if differing:
        raise CannotForkError(f"the tasks differ in {', '.join(sorted(differing))}")
    return found[0]


class Template:
    """A process that imports what the tasks will import, and then turns into them.

    Args:
        plan: the run.
        starts: the tasks.
        interpreter: what runs them.
        log: a new file, for what the imports say.

    Raises:
        CannotForkError: it is not for these tasks.
    """

    def __init__(self, plan: Plan, starts: Sequence[Start], interpreter: Interpreter, log: str) -> None:
        reason = why_not(plan, starts)
        if reason:
            raise CannotForkError(reason)
        self._starts = starts
        self._own = _modules(plan)
        env = {**shared(starts), "PODLIFT_PARENT": str(os.getpid())}
        (orders, mine), (go, permit), (news, theirs) = os.pipe(), os.pipe(), os.pipe()
        self._orders, self._go, self._news = (
            os.fdopen(mine, "wb", buffering=0),
            os.fdopen(permit, "wb", buffering=0),
            os.fdopen(news, "rb", buffering=0),
        )
        given = {
            **{"orders": orders, "go": go, "news": theirs, "log": log},
            **{"modules": plan.preload, "own_names": plan.own_names, "outside": plan.outside, "work": starts[0].cwd},
            # The commands of the tasks will be shown in this one's place.
            "room": " " * max(len(os.fsencode("\0".join(start.command))) for start in starts),
        }
        file = str(Path(interpreter.task_main).with_name("template.py"))
        command = [interpreter.python, file, json.dumps(given)]
        try:
            self._process = processes.spawn(
                command, env=env, cwd=str(Path(log).parent), log=log, pass_fds=(orders, go, theirs)
            )
        finally:
            for end in (orders, go, theirs):
                os.close(end)

    def fork(self, stop: Callable[[], bool]) -> list[processes.Process]:
        """Return the tasks' processes, in the order of `starts`; the template is gone then.

        Args:
            stop: asked several times a second; once it is true, nothing is started any more.

        Raises:
            CannotForkError: nothing was started.
        """
        with self._orders, self._go, self._news:
            try:
                tasks = self._fork(stop)
                self._process.wait()
                for task in tasks:
                    _check_ours(task)
            except CannotForkError:
                processes.signal_group(self._process, signal.SIGKILL)
                self._process.wait()
                # What it has forked has not begun; this process has no other children.
                processes.end_orphans()
                raise
            self._go.write(b"g" * len(tasks))
            return tasks

    def _fork(self, stop: Callable[[], bool]) -> list[processes.Process]:
        told = self._told(stop)
        first = next(told, {})
        if "ready" not in first:
            raise CannotForkError(first.get("failed", "the process that was to import for all of them has ended"))
        late = self._own & set(first["ready"])
        if late:
            raise CannotForkError(
                f"the project has modules of its own that TensorFlow would take: {', '.join(sorted(late))}"
            )
        self._order(stop)
        found: dict[str, Any] = {}
        pids: dict[str, int] = {}
        for message in told:
            found.update(message)
            if "pid" in message:
                pids[message["task"]] = message["pid"]
        if "failed" in found:
            raise CannotForkError(found["failed"])
        if "threads" not in found or len(pids) < len(self._starts):
            raise CannotForkError("a process has ended while the tasks were forked")
        if found["threads"] > 1:
            raise CannotForkError(f"the imports leave {found['threads']} threads; a fork would keep one")
        return [processes.Adopted(pids[start.task]) for start in self._starts]

    def _told(self, stop: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Yield what the template and its children say, until none of them has anything left to say."""
        unread = b""
        while True:
            while not select.select([self._news], [], [], _POLL_S)[0]:
                _check(stop)
            chunk = self._news.read(_CHUNK)
            if not chunk:
                return
            *lines, unread = (unread + chunk).split(b"\n")
            yield from map(json.loads, lines)

    def _order(self, stop: Callable[[], bool]) -> None:
        os.set_blocking(self._orders.fileno(), False)
        for start in self._starts:
            own = {name: value for name, value in start.env.items() if name in _OWN}
            line = json.dumps({**asdict(start), "env": own}).encode() + b"\n"
            while line:
                while not select.select([], [self._orders], [], _POLL_S)[1]:
                    _check(stop)
                try:
                    line = line[self._orders.write(line) or 0 :]
                except BrokenPipeError:
                    raise CannotForkError("the process that was to be forked has ended") from None
        self._orders.close()


class Launch:
    """Starts the tasks of an attempt: forked where that is safe and pays, else each in a Python of its own.

    Args:
        plan: the run.
        starts: the tasks.
        interpreter: what runs them.
        log: a new file, for what is said meanwhile.
    """

    def __init__(self, plan: Plan, starts: Sequence[Start], interpreter: Interpreter, log: str) -> None:
        self._starts = starts
        self._template: Template | None = None
        self.why_fresh = ""
        try:
            self._template = Template(plan, starts, interpreter, log)
        except CannotForkError as reason:
            self.why_fresh = str(reason)

    def finish(self, stop: Callable[[], bool]) -> dict[str, processes.Process]:
        """Return the process of each task, by name; none where `stop` is true before they are there."""
        names = [start.task for start in self._starts]
        if self._template is not None:
            try:
                return dict(zip(names, self._template.fork(stop), strict=True))
            except CannotForkError as reason:
                self.why_fresh = str(reason)
        return {} if stop() else dict(zip(names, [start.spawn() for start in self._starts], strict=True))


def _check(stop: Callable[[], bool]) -> None:
    if stop():
        raise CannotForkError("the run was ended before")


def _check_ours(task: processes.Process) -> None:
    try:
        os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        raise CannotForkError("a process that was forked has fallen to another parent") from None


def _modules(plan: Plan) -> set[str]:
    """Return the names of what the program can import from the top of its own folders."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    prefixes = [f"{root}/" if root else "" for root in plan.roots]
    inner = [file[0][len(prefix) :] for file in plan.files for prefix in prefixes if file[0].startswith(prefix)]
    return {path.partition("/")[0].partition(".")[0] for path in inner if "/" in path or path.endswith(suffixes)}
