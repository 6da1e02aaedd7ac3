"""Starts the tasks of an attempt by forking a process that imported TensorFlow once, if that is safe and saves time.

The template (`runtime/template.py`) starts to import at once, receives one JSON line per task over a pipe, forks a process for
each, and exits. The supervisor adopts its children, which wait for permission to begin. If anything fails before that, no task
has begun, and all of them are started as new processes instead.
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
# Variables that differ between tasks and are not read before the program runs. All others are the template's from its start.
_PER_TASK = frozenset({"PODLIFT_TASK", "PODLIFT_PARENT", "TMPDIR", "TF_CONFIG", "CLUSTER_SPEC"})


@dataclass(frozen=True, kw_only=True)
class TaskStart:
    task: str
    command: list[str]
    env: dict[str, str]
    cwd: str
    log: str  # path of its log file

    def spawn(self) -> processes.Process:
        return processes.spawn(self.command, env=self.env, cwd=self.cwd, log=self.log)


class CannotForkError(Exception):
    """The tasks cannot be forked, for the reason in the message."""


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


class Template:
    """A process that imports the tasks' modules and then forks the tasks."""

    def __init__(self, plan: Plan, starts: Sequence[TaskStart], interpreter: Interpreter, log: str) -> None:
        reason = why_not(plan, starts)
        if reason:
            raise CannotForkError(reason)
        self._starts = starts
        self._project_modules = _modules(plan)
        env = {**shared_environment(starts), "PODLIFT_PARENT": str(os.getpid())}
        (orders, order_end), (go, go_end), (news_end, news) = os.pipe(), os.pipe(), os.pipe()
        self._orders = os.fdopen(order_end, "wb", buffering=0)
        self._go = os.fdopen(go_end, "wb", buffering=0)
        self._news = os.fdopen(news_end, "rb", buffering=0)
        config = {
            "orders": orders,
            "go": go,
            "news": news,
            "log": log,
            "modules": plan.preload,
            "own_names": plan.own_names,
            "outside": plan.code.outside,
            "work": starts[0].cwd,
            # Room for the tasks' command lines, which replace this one in process lists.
            "room": " " * max(len(os.fsencode("\0".join(start.command))) for start in starts),
        }
        file = str(Path(interpreter.task_main).with_name("template.py"))
        command = [interpreter.python, file, json.dumps(config)]
        try:
            self._process = processes.spawn(
                command, env=env, cwd=str(Path(log).parent), log=log, pass_fds=(orders, go, news)
            )
        finally:
            for end in (orders, go, news):
                os.close(end)

    def fork(self, stop: Callable[[], bool]) -> list[processes.Process]:
        """Fork the tasks and return their processes, in the order of `starts`. The template exits.

        `stop` is polled several times a second. Once it is True, no further task is started.
        """
        with self._orders, self._go, self._news:
            try:
                tasks = self._fork(stop)
                self._process.wait()
                for task in tasks:
                    _check_adopted(task)
            except CannotForkError:
                processes.signal_group(self._process, signal.SIGKILL)
                self._process.wait()
                # Its forks have not begun yet, and this process has no other children.
                processes.end_orphans()
                raise
            self._go.write(b"g" * len(tasks))
            return tasks

    def _fork(self, stop: Callable[[], bool]) -> list[processes.Process]:
        messages = self._messages(stop)
        first = next(messages, {})
        if "ready" not in first:
            raise CannotForkError(first.get("failed", "the process that imports for all tasks has ended"))
        shadowed = self._project_modules & set(first["ready"])
        if shadowed:
            raise CannotForkError(
                f"modules of the project would shadow modules that TensorFlow imports: {', '.join(sorted(shadowed))}"
            )
        self._send_orders(stop)
        found: dict[str, Any] = {}
        pids: dict[str, int] = {}
        for message in messages:
            found.update(message)
            if "pid" in message:
                pids[message["task"]] = message["pid"]
        if "failed" in found:
            raise CannotForkError(found["failed"])
        if "threads" not in found or len(pids) < len(self._starts):
            raise CannotForkError("a process ended while the tasks were being forked")
        if found["threads"] > 1:
            raise CannotForkError(
                f"{found['threads']} threads are running after the imports, and a fork would keep only one"
            )
        return [processes.Adopted(pids[start.task]) for start in self._starts]

    def _messages(self, stop: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Yield messages of the template and its children, until all of them closed the pipe."""
        unread = b""
        while True:
            while not select.select([self._news], [], [], _POLL_S)[0]:
                _check(stop)
            chunk = self._news.read(_CHUNK)
            if not chunk:
                return
            *lines, unread = (unread + chunk).split(b"\n")
            yield from map(json.loads, lines)

    def _send_orders(self, stop: Callable[[], bool]) -> None:
        os.set_blocking(self._orders.fileno(), False)
        for start in self._starts:
            per_task = {name: value for name, value in start.env.items() if name in _PER_TASK}
            line = json.dumps({**asdict(start), "env": per_task}).encode() + b"\n"
            while line:
                while not select.select([], [self._orders], [], _POLL_S)[1]:
                    _check(stop)
                try:
                    line = line[self._orders.write(line) or 0 :]
                except BrokenPipeError:
                    raise CannotForkError("the process to be forked has ended") from None
        self._orders.close()


class GangLaunch:
    """Starts the tasks of an attempt: forked if possible, else as new processes."""

    def __init__(self, plan: Plan, starts: Sequence[TaskStart], interpreter: Interpreter, log: str) -> None:
        self._starts = starts
        self._template: Template | None = None
        self.why_fresh = ""
        try:
            self._template = Template(plan, starts, interpreter, log)
        except CannotForkError as reason:
            self.why_fresh = str(reason)

    def finish(self, stop: Callable[[], bool]) -> dict[str, processes.Process]:
        """Return the process of each task by name, or {} if `stop` returned True before they were started."""
        names = [start.task for start in self._starts]
        if self._template is not None:
            try:
                return dict(zip(names, self._template.fork(stop), strict=True))
            except CannotForkError as reason:
                self.why_fresh = str(reason)
        return {} if stop() else dict(zip(names, [start.spawn() for start in self._starts], strict=True))


def _check(stop: Callable[[], bool]) -> None:
    if stop():
        raise CannotForkError("the run was stopped before that")


def _check_adopted(task: processes.Process) -> None:
    try:
        os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        raise CannotForkError("a forked process was adopted by another parent") from None


def _modules(plan: Plan) -> set[str]:
    """Return the names of the top-level modules in the program's own folders."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    prefixes = [f"{root}/" if root else "" for root in plan.code.roots]
    paths = [file.path for file in plan.code.files]
    inner = [path[len(prefix) :] for path in paths for prefix in prefixes if path.startswith(prefix)]
    return {path.partition("/")[0].partition(".")[0] for path in inner if "/" in path or path.endswith(suffixes)}
