"""Starts supervisors, and their tasks, as forks of a process that has imported podlift, and the tasks' modules too.

For many short runs, as of a sweep: of the CPU seconds of a run without TensorFlow, 60% are starts of interpreters, and an
import of TensorFlow takes 3 CPU seconds.

`WarmRuns` starts processes instead of `spawn.spawn`. As a program, this file is the process that is forked:
`python -m sdk.backends.local.warm MODULES < ORDERS > ANSWERS`, a JSON object a line: {"command", "env", "cwd", "log"} in, a
process id out, or 0 if this process has other threads, which a fork would lose.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...hardware.accelerators import STAND_IN_ENV
from ...job.plan import Plan
from ...process import cores, spawn, task_environment
from ...process.template import top_modules
from .options import Local

REAL = spawn.spawn
SUPERVISOR = "sdk.backends.local.supervisor"
_RUNTIME = Path(spawn.__file__).parents[1] / "runtime"
_HOME = str(_RUNTIME.parents[1])
# What a supervisor starts with the Python of its run, and what imports TensorFlow.
_FORKED = {str(_RUNTIME / name) for name in ("template.py", "task_main.py")}
_ROOM = " " * 4096  # in the command line, for the names of the forks
# An interpreter or an import reads these variables once, so a task with other values needs a new interpreter.
_READ_ONCE = (
    "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONMALLOC",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LC_ALL", "LC_CTYPE", "LANG", "TZ", "TF_USE_LEGACY_KERAS", "KERAS_BACKEND", "KERAS_HOME",
)  # fmt: skip
_LINGER_S = 0.5  # the kernel may list a thread for a moment after it was joined


# --- In the process that submits the runs


class _Elsewhere:
    """A process that is a child of another one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._name = spawn.identity(pid)

    def poll(self) -> int | None:
        return None if self._name is not None and spawn.identity(self.pid) == self._name else 0


class WarmRuns:
    """Starts supervisors, and their tasks, as forks of a process that has imported podlift and these modules.

    Its limits, its umask and the CPUs that it may use are those of the process that forks.

    Args:
        *modules: the modules that it imports, too.
        env: the variables that their imports read; None for those of this process, and of stand-ins for accelerators.
        project: top-level modules of the programs: nothing is forked if one of them has the name of an imported module.
    """

    def __init__(self, *modules: str, env: Mapping[str, str] | None = None, project: Iterable[str] = ()) -> None:
        self._modules, self._env = modules, {**os.environ, **STAND_IN_ENV} if env is None else env
        self._project = sorted(project)
        self._process: subprocess.Popen[str] | None = None
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _warm_process(self) -> subprocess.Popen[str]:
        """Return the process that is forked, which the first run starts."""
        if self._process is None:
            command = [sys.executable, "-m", __name__, " ".join(self._modules), " ".join(self._project), _ROOM]
            env = {name: value for name, value in self._env.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env={**env, "PYTHONUNBUFFERED": "1"},
                cwd=_HOME,
            )  # fmt: skip
        return self._process

    def spawn(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str, **more: Any) -> Any:
        if list(command[1:3]) != ["-m", SUPERVISOR] or os.getpid() != self._pid:
            return REAL(command, env=env, cwd=cwd, log=log, **more)
        order = {"command": list(command), "env": dict(env), "cwd": cwd, "log": log}
        with self._lock, suppress(OSError, ValueError):
            process = self._warm_process()
            if process.stdin and process.stdout:
                try:
                    process.stdin.write(json.dumps(order) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except BaseException:
                    process.kill()  # or the next run reads the answer to this order
                    raise
                if pid := int(answer):
                    return _Elsewhere(pid)
        # It has ended, or a fork would lose its threads.
        return REAL(command, env=env, cwd=cwd, log=log, **more)

    def __enter__(self) -> None:
        """Let the runs that are submitted in the block begin as forks."""
        self._before, spawn.spawn = spawn.spawn, self.spawn

    def __exit__(self, *error: object) -> None:
        spawn.spawn = self._before

    def close(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):  # it was killed
                    pipe.close()  # type: ignore[union-attr]
            self._process.wait()


@contextmanager
def warm(plan: Plan) -> Iterator[None]:
    """Let many runs of a plan's program begin as forks, if its tasks can be forked."""
    if plan.fresh or not plan.preload or not sys.platform.startswith("linux"):
        yield
        return
    task = plan.members[0]
    division = cores.divide(plan.tasks, cores.available(), Local.of(plan.target).cores)
    variables = task_environment.environment(plan, 1, task, dict.fromkeys(plan.tasks, "localhost:0"), "")
    env = {**task_environment.callers_values(plan, os.environ), **variables, **division.variables(task.name)}
    env = {name: value for name, value in env.items() if name != "TMPDIR" and not name.startswith("PODLIFT_")}
    runs = WarmRuns(
        *plan.preload, env=env, project=top_modules((file.path for file in plan.code.files), plan.code.roots)
    )
    try:
        with runs:
            yield
    finally:
        runs.close()


# --- In the process that is forked

_imported_with: dict[str, str] = {}


def _fork(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    log: str,
    errors: str = "",
    pass_fds: Sequence[int] = (),
) -> Any:
    """Start a task, or the process that forks tasks, as `spawn.spawn` does, without a new interpreter."""
    other = any(env.get(name) != _imported_with.get(name) for name in _READ_ONCE)
    if command[0] != sys.executable or command[1] not in _FORKED or other or errors:
        return REAL(command, env=env, cwd=cwd, log=log, errors=errors, pass_fds=pass_fds)
    ready, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        os.read(ready, 1)  # its session exists
        os.close(ready)
        return spawn.Adopted(pid)
    try:
        _become(command, env, cwd, log, {write_end, *pass_fds})
        os.close(write_end)
        _forget_podlift()
        sys.path[:] = [str(_RUNTIME), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *_BARE_PATH]
        _exit(_run, command[1])
    finally:
        os._exit(1)


def _become(command: Sequence[str], env: Mapping[str, str], cwd: str, log: str, open_fds: set[int]) -> None:
    """Set what a new process would have: session, folder, descriptors, signals, variables, command line."""
    os.setsid()
    os.chdir(cwd)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in open_fds:
            with suppress(OSError):  # the one that listed them
                os.close(descriptor)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.orig_argv[:], sys.argv[:] = command, command[1:]


def _forget_podlift() -> None:
    """Remove podlift's modules: a task loads them itself, by the name that its project leaves free."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("podlift", "sdk", "_podlift")]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "podlift_name")]


def _run(file: str) -> None:
    module = ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


def _exit(main: Any, *arguments: str) -> None:
    """Call a program and end this process as the interpreter would."""
    code: Any = 0
    try:
        main(*arguments)
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = 120  # the interpreter's
    os._exit(code)


def _serve(modules: list[str], project: set[str]) -> None:
    _imported_with.update(os.environ)
    supervisor, *_ = map(importlib.import_module, [SUPERVISOR, "sdk.runtime.bootstrap", *modules])
    imported = {name.partition(".")[0] for name in sys.modules} - {"sdk", "podlift", "_podlift", "__main__"}
    alone = _is_alone() and not imported & project
    for line in sys.stdin:
        order = json.loads(line)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        pid = os.fork() if alone else -1
        if pid == 0:
            _become(order["command"], order["env"], order["cwd"], order["log"], set())
            spawn.spawn = _fork
            _exit(supervisor.main, order["command"][-1])
        sys.stdout.write(f"{max(pid, 0)}\n")
        sys.stdout.flush()


def _is_alone() -> bool:
    """Return whether a fork of this process loses no thread: OpenBLAS ends its own before a fork."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    until = time.monotonic() + _LINGER_S
    while _threads() > 1 and time.monotonic() < until:
        time.sleep(_LINGER_S / 100)
    return _threads() == 1


def _threads() -> int:
    names = [path.read_bytes().strip() for path in Path("/proc/self/task").glob("*/comm")]
    # The library that owns this one continues without it: jemalloc.
    return len([name for name in names if name != b"jemalloc_bg_thd"])


if __name__ == "__main__":
    # The first entry is the folder of this process. Programs must not import from podlift's folder, except where it is
    # site-packages.
    _BARE_PATH = [entry for entry in sys.path[1:] if entry != _HOME or _HOME in site.getsitepackages()]
    _serve(sys.argv[1].split(), set(sys.argv[2].split()))
