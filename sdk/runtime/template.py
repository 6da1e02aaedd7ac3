"""Imports what a program will import, once, and then turns into the program's tasks: one fork for each.

Usage: `python template.py ORDERS`, ORDERS being JSON: "orders", "go" and "news" are file descriptors, "modules" what to import,
"own_names" those of podlift's names that the project has modules of,
"outside" and "work" are for `outside.install`, "log" is the file that this process writes to.

Only what a fork copies whole may exist here: no TensorFlow context, device, thread pool or collective. Importing makes none;
the threads of OpenBLAS, which it starts, are ended by OpenBLAS before a fork and come back when they are needed. Others would
be missing in the tasks, so their number is told. A task that was forked waits until this process has gone: its parent is the
supervisor then, which sees its end as it sees that of any other child.
"""

import ctypes
import gc
import importlib
import json
import os
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_LINGER_S = 0.5
_ARG_START, _ARG_END = 45, 46  # in /proc/PID/stat, counted from behind the command


def main() -> dict[str, Any]:
    """Return the order of the task that this process has become; only forked processes return."""
    given = json.loads(sys.argv[1])
    for channel in ("orders", "go", "news"):
        os.set_inheritable(given[channel], False)
    path = list(sys.path)
    try:
        names = _load(given)
    except BaseException as error:
        # The program's own import will fail in the same way, and say so where the program can see it.
        _tell(given["news"], {"failed": f"{type(error).__name__}: {error}"[:1000]})
        os._exit(1)
    said = Path(given["log"]).read_bytes()
    _tell(given["news"], {"ready": names})
    order = _fork(given)
    os.write(1, said)  # what the imports have said belongs into the log of every task
    sys.path[:] = path
    return order


def _load(given: dict[str, Any]) -> list[str]:
    """Import everything; return the top-level names that were looked for beyond those of every task."""
    # As `first_stage` does it.
    package, here = Path(__file__).absolute().parent.parent, Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    names: Any = ModuleType("podlift_names")
    SourceFileLoader(names.__name__, str(package / "names.py")).exec_module(names)
    real = names.real_name(given["own_names"])
    names.load(str(package), real)
    bootstrap = importlib.import_module(f"{real}.runtime.bootstrap")
    outside = importlib.import_module(f"{real}.runtime.outside")

    bootstrap.die_with_parent()
    common, missed = set(sys.modules), _Missed()
    finders = list(sys.meta_path)
    outside.install(given["outside"], Path(given["work"]))
    borders = [finder for finder in sys.meta_path if finder not in finders]
    sys.meta_path.append(missed)
    # Nearly all that an import makes stays: looking for garbage in it takes a fifth of the time. Frozen, it is not looked
    # through later either, so that its pages stay shared.
    gc.disable()
    for name in given["modules"]:
        importlib.import_module(name)
    if sys.gettrace() or sys.getprofile():
        raise RuntimeError("a debugger or a profiler watches, and would not know the tasks apart")
    gc.freeze()
    gc.enable()
    for finder in (*borders, missed):
        sys.meta_path.remove(finder)
    return sorted({name.partition(".")[0] for name in {*sys.modules, *missed.names} - common})


class _Missed:
    """A finder that finds nothing, behind all others: what it is asked for is not there."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        self.names.add(fullname)


def _fork(given: dict[str, Any]) -> dict[str, Any]:
    """Fork a process for each line of the orders, and leave; return the line's order in each of them."""
    with open(given["orders"], "rb") as orders:
        for line in orders:
            if os.fork() == 0:
                order: dict[str, Any] = json.loads(line)
                break
        else:
            _tell(given["news"], {"threads": _threads()})
            os._exit(0)
    try:
        _become(order)
        _tell(given["news"], {"task": order["task"], "pid": os.getpid()})
    except BaseException as error:
        _tell(given["news"], {"failed": f"{order['task']}: {type(error).__name__}: {error}"[:1000]})
        os._exit(1)
    os.close(given["news"])
    if os.read(given["go"], 1) != b"g":
        os._exit(1)  # the supervisor has gone, or starts this task in another way
    os.close(given["go"])
    return order


def _threads() -> int:
    """Return how many threads are left in this process; one that has just been joined may still be listed for a moment."""
    until = time.monotonic() + _LINGER_S
    while (count := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < until:
        time.sleep(_LINGER_S / 100)
    return count


def _become(order: dict[str, Any]) -> None:
    """Be what the order's command would be when it is started: session, folder, output, environment."""
    os.setsid()
    os.chdir(order["cwd"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # The other variables are this process's from its start, and the imports have added theirs.
    os.environ.update(order["env"])
    sys.orig_argv[:], sys.argv[:] = order["command"], order["command"][1:]
    _rename(order["command"])
    _part()


def _part() -> None:
    """Make different what processes that have imported on their own do not share; `random` does so by itself."""
    modules: dict[str, Any] = sys.modules
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
    """Show the command of the task in `ps` and `/proc`; the supervisor has left room for it."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    text = b" ".join(os.fsencode(word) for word in words)[: end - start - 2]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
    # To the kernel a last byte that is not zero means that all of this is one line of text, which ends at the first zero.
    ctypes.memset(end - 1, 1, 1)


def _tell(news: int, message: dict[str, Any]) -> None:
    # One write: those of several processes are not mixed as long as they are short.
    os.write(news, json.dumps(message).encode() + b"\n")


def _run(order: dict[str, Any]) -> None:
    """Run the first file of a task as the interpreter would, on an empty stack."""
    file = order["command"][1]
    module = ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102


if __name__ == "__main__":
    _run(main())
