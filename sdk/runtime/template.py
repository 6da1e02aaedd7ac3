"""Imports a program's modules once, and then forks one process per task, for one attempt after the other.

Usage: `python template.py JSON`. In the JSON, "orders", "go" and "news" are file descriptors, "modules" the modules to import,
"outside" and "work" the arguments of `import_guard.install`,
"log" the file that this process writes to, and "yields" whether the import gives way to other processes.

Only objects that a fork copies completely may exist here: no TensorFlow context, device, thread pool or collective. Importing
creates none. OpenBLAS ends its own threads before a fork and restarts them when needed. Other threads would be missing in the
tasks, so their number is reported. A fork of this process forks the tasks and then exits: the supervisor is their parent then,
and sees their ends as with any other child.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

_LINGER_S = 0.5
_LOWEST = 19
_DIED = "a process ended while the tasks were being forked"
_DEVICES = ("/dev/nvidia", "/dev/accel", "/dev/vfio", "/dev/kfd", "/dev/dri")
# The library that owns it continues without it after a fork: jemalloc, which pandas brings in with pyarrow.
_HARMLESS = (b"jemalloc_bg_thd",)
_ARG_START, _ARG_END = 45, 46  # in /proc/PID/stat, counted after the command


class TemplateOptions(TypedDict):
    """The JSON of the command line."""

    orders: int
    go: int
    news: int
    modules: list[str]
    outside: list[str]
    work: str
    log: str
    yields: bool


class ForkedTask(TypedDict):
    """One line of "orders"; an empty line ends an attempt's."""

    task: str
    command: list[str]
    cwd: str
    log: str
    errors: str  # "" for the log
    env: dict[str, str]
    cpus: list[int]  # that it may use; [] for all


def main() -> ForkedTask:
    """Return the task that this process has become. Only forked processes return."""
    options: TemplateOptions = json.loads(sys.argv[1])
    for channel in (options["orders"], options["go"], options["news"]):
        os.set_inheritable(channel, False)
    path = list(sys.path)
    try:
        with _yielding() if options["yields"] else contextlib.nullcontext():
            names = _load(options)
    except BaseException as error:
        # The program's own import will fail in the same way, and report it in the task's log.
        _tell(options["news"], {"failed": f"{type(error).__name__}: {error}"[:1000]})
        os._exit(1)
    printed = Path(options["log"]).read_bytes()
    _tell(options["news"], {"ready": names, "devices": _devices()})
    task = _serve(options)
    os.write(1, printed)  # output of the imports belongs into the log of every task
    sys.path[:] = path
    return task


def _load(options: TemplateOptions) -> list[str]:
    """Import everything; return the top-level names that were searched for, except the names in every task."""
    runpy.run_path(str(Path(__file__).absolute().with_name("task_main.py")))["load"]()
    bootstrap = importlib.import_module("sdk.runtime.bootstrap")
    import_guard = importlib.import_module("sdk.runtime.import_guard")

    bootstrap.die_with_parent()
    common, missed = set(sys.modules), _MissingModules()
    finders = list(sys.meta_path)
    import_guard.install(options["outside"], Path(options["work"]))
    borders = [finder for finder in sys.meta_path if finder not in finders]
    sys.meta_path.append(missed)
    # Imports create little garbage, and collecting it takes a fifth of the time. Frozen objects are not scanned later
    # either, so that their pages stay shared.
    gc.disable()
    for name in options["modules"]:
        importlib.import_module(name)
    if sys.gettrace() or sys.getprofile():
        raise RuntimeError("a debugger or a profiler is active, and would confuse the tasks")
    gc.freeze()
    gc.enable()
    for finder in (*borders, missed):
        sys.meta_path.remove(finder)
    return sorted({name.partition(".")[0] for name in {*sys.modules, *missed.names} - common})


class _MissingModules:
    """The last finder: records the modules that no other finder has found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        self.names.add(fullname)


def _serve(options: TemplateOptions) -> ForkedTask:
    """Have the tasks of each attempt forked until "orders" is closed, and exit; return the task in each of them."""
    orders = open(options["orders"], "rb")  # noqa: SIM115
    attempt = 0
    while True:
        attempt += 1
        lines = []
        while (line := orders.readline()) != b"\n":
            if not line:
                os._exit(0)
            lines.append(line)
        forking = os.fork()
        if forking == 0:
            orders.close()
            return _fork(options, lines, bytes([attempt % 256]))
        _, status = os.waitpid(forking, 0)
        # Its children have another parent now.
        _tell(options["news"], {"failed": f"{_DIED} ({status})"} if status else {"threads": threads()})


def _fork(options: TemplateOptions, lines: list[bytes], go: bytes) -> ForkedTask:
    """Fork a process for each line, and exit once all have reported; return the line's content in each of them."""
    reported, reporting = os.pipe()
    for line in lines:
        if os.fork() == 0:
            task: ForkedTask = json.loads(line)
            break
    else:
        os.close(reporting)
        os.read(reported, 1)
        os._exit(0)
    try:
        _become(task)
        _tell(options["news"], {"task": task["task"], "pid": os.getpid()})
    except BaseException as error:
        _tell(options["news"], {"failed": f"{task['task']}: {type(error).__name__}: {error}"[:1000]})
        os._exit(1)
    for channel in (options["news"], reported, reporting):
        os.close(channel)
    # A task of an earlier attempt that was killed before it began has left its permission.
    while (permission := os.read(options["go"], 1)) != go:
        if not permission:
            os._exit(1)  # the supervisor has ended, or starts this task without a template
    os.close(options["go"])
    return task


@contextlib.contextmanager
def _yielding() -> Iterator[None]:
    """Run at the lowest priority, where the usual one can be had again: the tasks inherit it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    # A capability proves nothing: in a user namespace, as of a container without root, it does not hold for priorities.
    if (trying := os.fork()) == 0:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
            os.setpriority(os.PRIO_PROCESS, 0, usual)
            os._exit(0)
        os._exit(1)
    if os.waitpid(trying, 0)[1]:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


def _devices() -> list[str]:
    """Return the accelerators that the imports have opened: their state would not survive a fork."""
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            opened.add(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in opened if path.startswith(_DEVICES))


def threads() -> int:
    """Return the number of threads that a fork would miss; the kernel may list one for a moment after it was joined."""
    until = time.monotonic() + _LINGER_S
    while (count := sum(map(_is_missed, os.listdir("/proc/self/task")))) > 1 and time.monotonic() < until:
        time.sleep(_LINGER_S / 100)
    return count


def _is_missed(thread: str) -> bool:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_bytes().strip() not in _HARMLESS
    except OSError:
        return False


def _become(task: ForkedTask) -> None:
    """Set session, folder, output and environment as if the task's command had been started."""
    os.setsid()
    if task["cpus"]:
        # The allowed CPUs may have changed, and a sandbox may forbid the call: without it the task is only slower.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, task["cpus"])
    os.chdir(task["cwd"])
    for stream, path in ((1, task["log"]), (2, task["errors"] or task["log"])):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, stream)
        os.close(log)
    # This process was started with the other variables, and the imports have added theirs.
    os.environ.update(task["env"])
    sys.orig_argv[:], sys.argv[:] = task["command"], task["command"][1:]
    _rename(task["command"])
    _separate()


def _separate() -> None:
    """Reset state that separately started processes do not share; `random` resets itself."""
    modules: Any = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"].tempdir = None
    if "absl.testing.absltest" in modules:
        absltest = modules["absl.testing.absltest"]
        modules["absl.flags"].set_default(absltest.TEST_TMPDIR, absltest.get_default_test_tmpdir())
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _rename(words: list[str]) -> None:
    """Show the command of the task in `ps` and `/proc`; the supervisor has reserved the space for it."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    text = b" ".join(os.fsencode(word) for word in words)[: end - start - 2]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
    # If the last byte is not zero, the kernel reads all of this as one text that ends at the first zero.
    ctypes.memset(end - 1, 1, 1)


def _tell(news: int, message: dict[str, object]) -> None:
    # There is no listener once the supervisor has given up forking; its own tasks write to this log by then.
    with contextlib.suppress(BrokenPipeError):
        # One short write, which never interleaves with writes of other processes.
        os.write(news, json.dumps(message).encode() + b"\n")


def _run(task: ForkedTask) -> None:
    """Run the first file of a task as the interpreter would, on an empty stack."""
    file = task["command"][1]
    module = ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


if __name__ == "__main__":
    _run(main())
