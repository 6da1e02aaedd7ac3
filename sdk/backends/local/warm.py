"""Starts supervisors, and their tasks, as forks of a process that has imported podlift, and the tasks' modules too.

For many short runs, as of a sweep: of the CPU seconds of a run without TensorFlow, 60% are starts of interpreters, and an
import of TensorFlow takes 3 CPU seconds.

`WarmRuns` starts processes instead of `spawn.spawn`. As a program, this file is the process that is forked:
`python -m sdk.backends.local.warm MODULES PROJECT DESCRIPTOR < ORDERS`. An order is a line of JSON: {"command", "env", "cwd",
"log"}. The answer, a line on the descriptor, is the fork's process id, or 0 if it could not begin or would lose threads.
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
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ...hardware.accelerators import STAND_IN_ENV
from ...job.plan import Plan
from ...process import cores, spawn, task_environment
from ...process.template import top_modules
from ...runtime.template import threads
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
    "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "LD_PRELOAD", "LC_ALL", "LC_CTYPE", "LANG", "TZ", "TF_USE_LEGACY_KERAS",
    "KERAS_BACKEND", "KERAS_HOME",
)  # fmt: skip


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
        env: the variables that their imports read; None for those of this process, of stand-ins and of unbuffered output.
        project: top-level modules of the programs: nothing is forked if one of them has the name of an imported module.
    """

    def __init__(self, *modules: str, env: Mapping[str, str] | None = None, project: Iterable[str] = ()) -> None:
        unbuffered = {"PYTHONUNBUFFERED": "1"}  # as tasks are, whatever this process is
        self._modules, self._env = modules, {**os.environ, **STAND_IN_ENV, **unbuffered} if env is None else env
        self._project = sorted(project)
        self._process: subprocess.Popen[str] | None = None
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _warm_process(self) -> subprocess.Popen[str]:
        """Return the process that is forked, which the first run starts."""
        if self._process is None:
            read_end, write_end = os.pipe()
            names = [" ".join(self._modules), " ".join(self._project)]
            env = {name: value for name, value in self._env.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
            # Neither what an import prints nor Ctrl-C in the terminal may come between an order and its answer.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *names, str(write_end), _ROOM], env=env, cwd=_HOME, pass_fds=[write_end],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            )  # fmt: skip
            os.close(write_end)
            self._answers = os.fdopen(read_end)
        return self._process

    def spawn(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str, **more: Any) -> Any:
        if list(command[1:3]) == ["-m", SUPERVISOR] and os.getpid() == self._pid:
            with self._lock:
                if pid := self._forked({"command": list(command), "env": dict(env), "cwd": cwd, "log": log}):
                    return _Elsewhere(pid)
        return REAL(command, env=env, cwd=cwd, log=log, **more)

    def _forked(self, order: Mapping[str, Any]) -> int:
        """Return the fork that begins this run, or 0: the warm process has ended, or the fork lost threads or failed."""
        process = self._warm_process()
        if process.poll() is not None or process.stdin is None:
            return 0
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            return int(self._answers.readline())
        except (OSError, ValueError):
            self._end()
            return 0
        except BaseException:
            self._end()  # or the next run reads the answer to this order
            raise

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> None:
        """Let the runs that are submitted in the block begin as forks."""
        self._before, spawn.spawn = spawn.spawn, self.spawn

    def __exit__(self, *error: object) -> None:
        spawn.spawn = self._before

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._end()
            with suppress(OSError):  # an order that was cut off
                self._process.stdin.close()
            self._answers.close()


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
    if command[0] != sys.executable or command[1] not in _FORKED or other or errors or env.get("PYTHONPATH"):
        return REAL(command, env=env, cwd=cwd, log=log, errors=errors, pass_fds=pass_fds)
    pid = _begin(command, env, cwd, log, set(pass_fds), _run, command[1])
    return spawn.Adopted(pid) if pid else REAL(command, env=env, cwd=cwd, log=log, pass_fds=pass_fds)


def _begin(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    log: str,
    kept: set[int],
    main: Callable[..., Any],
    words: str,
) -> int:
    """Fork a process that calls `main`; return its number once it has its session and log, or 0 if it could not get them."""
    ready, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, env, cwd, log, {write_end, *kept})
            os.write(write_end, b"1")
            os.close(write_end)
            _exit(main, words)
        finally:
            os._exit(1)
    os.close(write_end)
    begun = os.read(ready, 1)
    os.close(ready)
    return pid if begun else 0


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
    _forget_podlift()
    own_path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(_RUNTIME), *own_path, *_BARE_PATH]
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
    if vars(sys.modules["__main__"]) is not globals():  # a task
        with suppress(BaseException):
            sys.modules["sdk.runtime.bootstrap"].drop_program()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            code = 120  # the interpreter's
    os._exit(code)


def _serve(modules: list[str], project: set[str], answers: int) -> None:
    os.set_inheritable(answers, False)
    _imported_with.update(os.environ)
    supervisor, *_ = map(importlib.import_module, [SUPERVISOR, "sdk.runtime.bootstrap", *modules])
    imported = {name.partition(".")[0] for name in sys.modules} - {"sdk", "podlift", "_podlift", "__main__"}
    alone = _is_alone() and not imported & project
    spawn.spawn = _fork  # of the forks: this process spawns nothing
    for line in sys.stdin:
        order = json.loads(line)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        words = order["command"], order["env"], order["cwd"], order["log"]
        pid = _begin(*words, set(), supervisor.main, order["command"][-1]) if alone else 0
        os.write(answers, f"{pid}\n".encode())


def _is_alone() -> bool:
    """Return whether a fork of this process loses no thread: OpenBLAS ends its own before a fork."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return threads() == 1


if __name__ == "__main__":
    # The first entry is the folder of this process. Programs must not import from podlift's folder, except where all packages
    # are in it.
    installed = _HOME in (*site.getsitepackages(), site.getusersitepackages())
    _BARE_PATH = [entry for entry in sys.path[1:] if entry != _HOME or installed]
    _serve(sys.argv[1].split(), set(sys.argv[2].split()), int(sys.argv[3]))
