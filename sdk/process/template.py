"""Starts tasks by forking a process that has imported TensorFlow.

The template (`runtime/template.py`) starts to import at once, receives one JSON line per task over a pipe, and has a process
forked for each. The process that started it adopts them; they wait for permission to begin. If anything fails before that, no
task has begun, and the caller starts them as new processes instead. The template may stay, for the tasks of the next attempt.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import select
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import spawn as processes
from .cores import confined

_POLL_S = 0.05
_CHUNK = 65536
# One line of the template or of its forks.
_Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskStart:
    task: str
    command: list[str]
    env: dict[str, str]
    cwd: str
    log: str  # path of the file for its output
    errors: str = ""  # path of another one for its stderr; "" for the same
    cpus: tuple[int, ...] = ()  # that it may use; () for all

    def spawn(self) -> processes.Process:
        with confined(self.cpus):
            return processes.spawn(self.command, env=self.env, cwd=self.cwd, log=self.log, errors=self.errors)


class CannotForkError(Exception):
    """The tasks cannot be forked, for the reason in the message."""


@dataclass(frozen=True, kw_only=True)
class Imports:
    """The modules that a template imports, and how."""

    python: str
    script: str  # path of `runtime/template.py`
    modules: Sequence[str]
    project: Collection[str]  # top-level modules of the project, which must not shadow those
    outside: Sequence[str] = ()  # folders that nothing may be imported from


class Template:
    """A process that imports the tasks' modules and then forks the tasks.

    The thread that makes it must outlive it. `env` has the variables that all tasks share, `room` the longest of their
    commands. One that `yields` imports at the lowest priority.
    """

    def __init__(
        self, imports: Imports, env: Mapping[str, str], *, cwd: str, log: str, room: int, yields: bool = False
    ) -> None:
        self._project_modules = imports.project
        self._env = dict(env)
        self._attempts = 0
        self._unread = b""
        (orders, order_end), (go, go_end), (news_end, news) = os.pipe(), os.pipe(), os.pipe()
        self._orders = os.fdopen(order_end, "wb", buffering=0)
        self._go = os.fdopen(go_end, "wb", buffering=0)
        self._news = os.fdopen(news_end, "rb", buffering=0)
        config = {
            "orders": orders,
            "go": go,
            "news": news,
            "log": log,
            "modules": list(imports.modules),
            "outside": list(imports.outside),
            "work": cwd,
            "yields": yields,
            # Room for the tasks' command lines, which replace this one in process lists.
            "room": " " * room,
        }
        try:
            self._process = processes.spawn(
                [imports.python, imports.script, json.dumps(config)],
                env={**env, "PODLIFT_PARENT": str(os.getpid())},
                cwd=str(Path(log).parent),
                log=log,
                pass_fds=(orders, go, news),
            )
        finally:
            for end in (orders, go, news):
                os.close(end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        alive = self._process.poll() is None
        if not alive:
            # Reaped: another process may get its number.
            processes.SPARED.discard(self.pid)
        return alive

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that it was started with."""
        return dict(self._env)

    def stand_by(self) -> None:
        """Let it live when all else that the tasks of an attempt have left is ended."""
        processes.SPARED.add(self.pid)

    def close(self) -> None:
        """End a template that is not needed, once or several times."""
        processes.SPARED.discard(self.pid)
        if self.is_alive:
            processes.signal_group(self._process, signal.SIGKILL)
            self._process.wait()
        for end in (self._orders, self._go, self._news):
            end.close()

    def fork(
        self, starts: Sequence[TaskStart], stop: Callable[[], bool], *, stays: bool = False
    ) -> list[processes.Process]:
        """Fork the tasks and return their processes, in the order of `starts`. The template is ended, or `stays` for more.

        `stop` is polled several times a second. Once it is True, all waits end, and no further task is started.
        """
        self._attempts += 1
        try:
            tasks = self._fork(starts, stop)
            for task in tasks:
                _check_adopted(task)
            self._go.write(bytes([self._attempts % 256]) * len(tasks))
        except (CannotForkError, OSError, ValueError, LookupError) as error:
            self.close()
            # Its forks have not begun yet, and this process has no other children.
            processes.end_orphans()
            if isinstance(error, CannotForkError):
                raise
            raise CannotForkError(f"the process to be forked failed: {type(error).__name__}: {error}") from error
        if not stays:
            self.close()
        return tasks

    def _fork(self, starts: Sequence[TaskStart], stop: Callable[[], bool]) -> list[processes.Process]:
        messages = self._messages(stop)
        if self._attempts == 1:
            self._check_ready(next(messages, {}))
        self._send_orders(starts, stop)
        pids: dict[str, int] = {}
        threads = 0
        for message in messages:
            if "failed" in message:
                raise CannotForkError(message["failed"])
            if "pid" in message:
                pids[message["task"]] = message["pid"]
            # The last message.
            if threads := message.get("threads", 0):
                break
        if not threads or len(pids) < len(starts):
            raise CannotForkError("a process ended while the tasks were being forked")
        if threads > 1:
            raise CannotForkError(f"{threads} threads are running after the imports, and a fork would keep only one")
        return [processes.Adopted(pids[start.task]) for start in starts]

    def _check_ready(self, first: _Message) -> None:
        if "ready" not in first:
            raise CannotForkError(first.get("failed", "the process that imports for all tasks has ended"))
        shadowed = set(self._project_modules) & set(first["ready"])
        if shadowed:
            raise CannotForkError(
                f"modules of the project would shadow modules that TensorFlow imports: {', '.join(sorted(shadowed))}"
            )
        if first.get("devices"):
            raise CannotForkError(f"the imports have opened {', '.join(first['devices'])}")

    def _messages(self, stop: Callable[[], bool]) -> Iterator[_Message]:
        """Yield messages of the template and its children, until all of them closed the pipe."""
        while True:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                yield json.loads(line)
            while not select.select([self._news], [], [], _POLL_S)[0]:
                _check(stop)
            chunk = self._news.read(_CHUNK)
            if not chunk:
                return
            self._unread += chunk

    def _send_orders(self, starts: Sequence[TaskStart], stop: Callable[[], bool]) -> None:
        os.set_blocking(self._orders.fileno(), False)
        lines = [json.dumps({**asdict(start), "env": self._own(start)}).encode() + b"\n" for start in starts]
        for line in [*lines, b"\n"]:
            while line:
                while not select.select([], [self._orders], [], _POLL_S)[1]:
                    _check(stop)
                try:
                    line = line[self._orders.write(line) or 0 :]
                except BrokenPipeError:
                    raise CannotForkError("the process to be forked has ended") from None

    def _own(self, start: TaskStart) -> dict[str, str]:
        """Return the variables of a task that differ from the template's."""
        return {name: value for name, value in start.env.items() if self._env.get(name) != value}


def _check(stop: Callable[[], bool]) -> None:
    if stop():
        raise CannotForkError("the run was stopped, or the imports take too long")


def _check_adopted(task: processes.Process) -> None:
    try:
        os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        raise CannotForkError("a forked process was adopted by another parent") from None


def room_for(commands: Iterable[Sequence[str]]) -> int:
    """Return the room that the longest of these commands needs."""
    return max(len(os.fsencode("\0".join(words))) for words in commands)


def top_modules(paths: Iterable[str], roots: Sequence[str]) -> set[str]:
    """Return the names of the top-level modules of a bundle, of which these are the files and the folders on sys.path."""
    suffixes = tuple(importlib.machinery.all_suffixes())
    prefixes = [f"{root}/" if root else "" for root in roots]
    inner = [path[len(prefix) :] for path in paths for prefix in prefixes if path.startswith(prefix)]
    return {path.partition("/")[0].partition(".")[0] for path in inner if "/" in path or path.endswith(suffixes)}
