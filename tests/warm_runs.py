"""Starts supervisors, and their tasks, as forks of a process that has imported podlift, or TensorFlow too.

Of the CPU seconds of a run without TensorFlow, 60% are starts of interpreters; an import of TensorFlow takes 3 CPU seconds.

`WarmRuns` stands in for `spawn.spawn` in a test. As a program, this file is the process that is forked:
`python warm_runs.py < ORDERS > ANSWERS`, a JSON object a line: {"url", "env", "cwd", "log"} in, a process id out.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from sdk.hardware.accelerators import STAND_IN_ENV
from sdk.process import spawn

REAL = spawn.spawn
_SUPERVISOR = "sdk.backends.local.supervisor"
_RUNTIME = Path(spawn.__file__).parents[1] / "runtime"
# What a supervisor starts with the Python of its run, and what imports TensorFlow.
_FORKED = {str(_RUNTIME / name) for name in ("template.py", "task_main.py")}
_ROOM = " " * 4096  # in the command line, for the names of the forks


# --- In the process of the tests --------------------------------------------------------------------------------------


class _Elsewhere:
    """A process that is a child of another one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._name = spawn.identity(pid)

    def poll(self) -> int | None:
        return None if self._name is not None and spawn.identity(self.pid) == self._name else 0


class WarmRuns:
    """Starts supervisors as forks of a process that has imported podlift and these modules; everything else as always."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _begun(self) -> subprocess.Popen[str]:
        """Return the process that is forked, which the first run starts."""
        if self._process is None:
            command = [sys.executable, __file__, " ".join(self._modules), _ROOM]
            # TensorFlow reads the variables of stand-ins when it is imported, which is before a task gets them.
            env = {**os.environ, **STAND_IN_ENV, "PYTHONPATH": str(_RUNTIME.parents[1]), "PYTHONUNBUFFERED": "1"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
            )
        return self._process

    def spawn(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str, **more: Any) -> Any:
        if list(command[1:3]) != ["-m", _SUPERVISOR] or os.getpid() != self._pid:
            return REAL(command, env=env, cwd=cwd, log=log, **more)
        order = {"command": list(command), "env": dict(env), "cwd": cwd, "log": log}
        with self._lock:
            process = self._begun()
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        assert answer, f"the process that is forked has ended with {process.wait()}"
        return _Elsewhere(int(answer))

    def __enter__(self) -> None:
        """Let the runs that are submitted in the block begin as forks."""
        spawn.spawn = self.spawn  # type: ignore[assignment]

    def __exit__(self, *error: object) -> None:
        spawn.spawn = REAL

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()


# --- In the process that is forked ------------------------------------------------------------------------------------


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
    if command[0] != sys.executable or command[1] not in _FORKED:
        return REAL(command, env=env, cwd=cwd, log=log, errors=errors, pass_fds=pass_fds)
    ready, begun = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begun)
        os.read(ready, 1)  # its session exists
        os.close(ready)
        return spawn.Adopted(pid)
    try:
        _become(command, env, cwd, log, {begun, *pass_fds})
        os.close(begun)
        _forget_podlift()
        sys.path[:] = [str(_RUNTIME), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *_BARE_PATH]
        _exit(_run, command[1])
    finally:
        os._exit(1)


def _become(command: Sequence[str], env: Mapping[str, str], cwd: str, log: str, kept: set[int]) -> None:
    """Set what a new process would have: session, folder, descriptors, signals, variables, command line."""
    os.setsid()
    os.chdir(cwd)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor not in kept:
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
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)


def _exit(main: Any, *arguments: str) -> None:
    """Call a program and end this process as the interpreter would."""
    code: Any = 0
    try:
        main(*arguments)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(modules: list[str]) -> None:
    supervisor, *_ = map(importlib.import_module, [_SUPERVISOR, "sdk.runtime.bootstrap", *modules])
    for line in sys.stdin:
        order = json.loads(line)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        pid = os.fork()
        if not pid:
            _become(order["command"], order["env"], order["cwd"], order["log"], set())
            spawn.spawn = _fork
            _exit(supervisor.main, order["command"][-1])
        print(pid, flush=True)


if __name__ == "__main__":
    # Of this file's folder, a program must not see anything.
    _BARE_PATH = [entry for entry in sys.path if Path(entry) not in (Path(__file__).parent, _RUNTIME.parents[1])]
    _serve(sys.argv[1].split())
