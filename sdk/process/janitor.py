"""The janitor: ends the remaining processes of a run and cleans up once its supervisor is gone, for whatever reason.

The janitor is the supervisor's parent. Orphaned descendants of the supervisor become the supervisor's children, and once it is
gone too, the kernel gives them to the janitor: including processes in other sessions, double forks and processes with an empty
environment. The janitor therefore knows the run's processes by descent. It needs no list that could be out of date, and cannot
hit a foreign process.

The janitor can be killed or stopped itself. The supervisor watches it: a stopped one is woken, and a dead one gets a successor,
which does not inherit the supervisor's orphans. Instead it notes the supervisor's descendants twice a second and searches for
the marks of a run's processes (see `is_marked`). If both were killed at once, the next client does the same.

It runs by path and imports only the standard library, because it stays as long as the run does:
`python -I -S janitor.py SUPERVISOR TEMPORARY EVENTS [successor]`
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import ModuleType

# Requests to terminate are for the supervisor, which ends the run in order.
_BLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_POLL_S = 0.005
# A process that the kernel cannot kill, for example during I/O to a dead disk, must not block the janitor for ever.
_LIMIT_S = 30.0
# A stopped janitor is woken. One that holds the lock for longer than it can need is killed.
_WAKE_S, _LOCK_LIMIT_S = 1.0, _LIMIT_S + 15.0
_NOTE_S = 0.5
# Clients wait at most this long for a working janitor.
_CLIENT_S = 2.0
# How long Python's resource trackers may take to remove the shared memory of killed processes.
_TRACKERS_S = 1.0
_SUCCESSOR = "successor"


def fork_supervisor(url: str, temporary: str, events: str, *, earlier: Sequence[str] = ()) -> int | None:
    """Turn this process into the janitor and return in a forked child, the supervisor, with the run's lock (Linux only).

    Waits for the janitor of an earlier supervisor of the run, which may still use the same folders. `earlier` are folders for
    temporary files of earlier supervisors; their remaining processes are ended.
    """
    if not sys.platform.startswith("linux"):
        return None
    # Not at the top: the janitor itself imports only the standard library.
    from . import spawn

    # Held by both processes, and released by the kernel when both are gone.
    lock = _lock(url, events)
    if earlier:
        end_marked(url, earlier)
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    spawn.adopt_orphans()
    child = os.fork()
    if not child:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        return lock
    # Blocked signals, the lock and the role of subreaper survive exec.
    try:
        if lock is not None:
            os.set_inheritable(lock, True)
        os.chdir("/")
        words = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(child), temporary, events]
        os.execv(sys.executable, words)  # noqa: S606
    except BaseException as error:
        sys.stderr.write(f"The janitor could not start its own program and keeps this process's memory: {error}\n")
    main(child, temporary, events)
    os._exit(0)


def main(supervisor: int, temporary: str, events: str) -> None:
    """Wait for the end of the supervisor, then end remaining processes and remove temporary files."""
    _own_folders()  # now: it may have been uninstalled by then
    _wait_for(supervisor)
    began = time.monotonic()
    while _end_children(spared=_trackers(began)) and time.monotonic() < began + _LIMIT_S:
        time.sleep(_POLL_S)
    _remove(temporary, events)


def successor(supervisor: int, temporary: str, events: str) -> None:
    """Do the same as a child of the supervisor, after its first janitor died."""
    _own_folders()
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    noted: dict[int, str] = {}
    table = _processes()
    began = table.get(supervisor)
    while began is not None and table.get(supervisor) == began:
        noted = {pid: table[pid][1] for pid in _below(table, [supervisor])}
        time.sleep(_NOTE_S)
        table = _processes()
    end_marked(os.path.dirname(events), [temporary], noted)
    _remove(temporary, events)


def clean(url: str, temporary: Sequence[str], events: str) -> list[str]:
    """Clean up for a supervisor and a janitor that were both killed, and return the failures.

    A living janitor is woken and waited for.
    """
    failed: list[str] = []
    try:
        folder = os.open(url, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return failed
    until = time.monotonic() + _CLIENT_S
    try:
        # The records of processes and folders in another user's run directory cannot be trusted.
        if not _own_folders().is_mine(folder):
            return failed
        # One that was killed a moment ago holds the lock until the kernel has released it.
        while not _locked(folder):
            for pid in _janitors(events):
                _wake(pid)
            if time.monotonic() > until:
                return failed
            time.sleep(_POLL_S)
        if any(map(os.path.lexists, temporary)):
            end_marked(url, temporary)
            failed = [why for path in temporary if (why := _own_folders().discard_temporary(url, path))]
            _sweep(events)
    except OSError:
        pass  # a file system without locks on folders: another process may be at work
    finally:
        os.close(folder)
    return failed


def start_successor(temporary: str, events: str, lock: int | None) -> int:
    """Start another janitor for this process, the supervisor, and return its process id."""
    import subprocess

    words = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), temporary, events, _SUCCESSOR]
    lock_fds = () if lock is None else (lock,)
    # It inherits the lock and no other file.
    process = subprocess.Popen(words, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=lock_fds)
    _started.append(process)
    return process.pid


# Dropping a Popen while its process runs raises a warning.
_started: list[object] = []


def end_marked(url: str, temporary: Iterable[str], noted: dict[int, str] | None = None) -> None:
    """Kill all processes with a mark of the run, and their descendants, until there are none.

    `noted` holds further processes of the run: the start time by process id.
    """
    hosts = {identity for folder in temporary if (identity := _device_and_inode(f"{folder}/hosts", follow=False))}
    # Only a copy is a mark: everything on the machine sees its own.
    hosts.discard(_device_and_inode("/etc/hosts"))
    until = time.monotonic() + _LIMIT_S
    spared = _trackers(time.monotonic())
    while time.monotonic() < until:
        table = _processes()
        roots = [
            pid for pid, (_, began) in table.items() if (noted or {}).get(pid) == began or is_marked(pid, url, hosts)
        ]
        targets = _below(table, roots) | set(roots)
        # This may be a process of the run itself.
        targets -= _above(table, os.getpid())
        for pid in list(targets):
            if spared(pid):
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                targets.remove(pid)
        if not targets:
            return
        time.sleep(_POLL_S)


def is_marked(pid: int, url: str, hosts: set[tuple[int, int]]) -> bool:
    """Return whether a process is one of a run's tasks or was started by one.

    A task's environment names its run and attempt. A process that was started without that environment has a task's log as its
    output, or sees the run's own copy of /etc/hosts (`hosts`: device and inode), which is mounted for its tasks only. The
    current folder is not a mark: a person's shell may be there too.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
        if b"PODLIFT_RUN=" + os.fsencode(url) in words and any(word.startswith(b"PODLIFT_ATTEMPT=") for word in words):
            return True
        if hosts and _device_and_inode(f"/proc/{pid}/root/etc/hosts") in hosts:
            return True
        return any(_is_log(pid, handle, url) for handle in ("1", "2"))
    except OSError:
        return False


def is_of_task(pid: int, task: str, log: str) -> bool:
    """Return whether this task, with its output in `log`, started a process of a run."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if b"PODLIFT_TASK=" + os.fsencode(task) in file.read().split(b"\0"):
                return True
        return log in (os.readlink(f"/proc/{pid}/fd/{handle}") for handle in ("1", "2"))
    except OSError:
        return False


def _is_log(pid: int, handle: str, url: str) -> bool:
    path = os.readlink(f"/proc/{pid}/fd/{handle}")
    if not (path.startswith(f"{url}/attempts/") and path.endswith(".log")):
        return False
    with open(f"/proc/{pid}/fdinfo/{handle}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    # The flags with which podlift opens a task's log.
    return bool(flags & os.O_APPEND) and flags & os.O_ACCMODE != os.O_RDONLY


def _device_and_inode(path: str, *, follow: bool = True) -> tuple[int, int] | None:
    try:
        about = os.stat(path, follow_symlinks=follow)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _lock(url: str, events: str) -> int | None:
    try:
        folder = os.open(url, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    began = time.monotonic()
    try:
        while not _locked(folder):
            waited_s = time.monotonic() - began
            for pid in _janitors(events) if waited_s > _WAKE_S else ():
                _wake(pid, end=waited_s > _LOCK_LIMIT_S)
            if waited_s > 2 * _LOCK_LIMIT_S:
                raise TimeoutError(
                    f"The lock of {url} has been held by another process for {waited_s:.0f} s. `fuser {url}` names it."
                )
            time.sleep(_WAKE_S if waited_s > _WAKE_S else _POLL_S)
    except TimeoutError:
        raise
    except OSError:
        return None  # a file system without locks on folders
    return folder


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _janitors(events: str) -> Iterator[int]:
    for pid in _processes():
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")]
        except OSError:
            continue
        if events in words and any(os.path.basename(word) == "janitor.py" for word in words) and pid != os.getpid():
            yield pid


def _wake(pid: int, *, end: bool = False) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL if end else signal.SIGCONT)


def _processes() -> dict[int, tuple[int, str]]:
    """Return parent and start time of every process, by process id."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command in the second field may contain anything: count the fields after it.
                    fields = file.read().rpartition(b")")[2].split()
                # Zombies have exited.
                if fields[0] not in b"ZX":
                    processes[int(name)] = int(fields[1]), fields[19].decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # gone, or another user's on a machine that hides those (hidepid=1)
    return processes


def _below(table: dict[int, tuple[int, str]], roots: Iterable[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    below: set[int] = set()
    waiting = list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in below]
        below.update(new)
        waiting += new
    return below


def _above(table: dict[int, tuple[int, str]], pid: int) -> set[int]:
    above = set()
    while pid in table and pid not in above:
        above.add(pid)
        pid = table[pid][0]
    return above


def _wait_for(supervisor: int) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0] != supervisor:
            pass


def _trackers(began: float) -> Callable[[int], bool]:
    """Return which processes may continue for a moment: they remove shared memory once the others of their task are gone."""

    def spared(pid: int) -> bool:
        if time.monotonic() >= began + _TRACKERS_S:
            return False
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return b"resource_tracker import main" in file.read()
        except OSError:
            return False

    return spared


def _end_children(spared: Callable[[int], bool]) -> bool:
    """Kill the children of this process and reap those that exited. Return False once there are none, orphans included."""
    me = os.getpid()
    for pid in [pid for pid, (parent, _) in _processes().items() if parent == me]:
        if not spared(pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _remove(temporary: str, events: str) -> None:
    if failed := _own_folders().discard_temporary(os.path.dirname(events), temporary):
        sys.stderr.write(f"{failed}\n")
    _sweep(events)


def _own_folders() -> ModuleType:
    """Return `storage/own_folders.py`, by its path: as a program, this file is in no package."""
    if __package__:
        from ..storage import own_folders

        return own_folders
    import importlib

    sys.path.insert(0, f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/storage")
    try:
        return importlib.import_module("own_folders")
    finally:
        sys.path.pop(0)


def _sweep(events: str) -> None:
    """Remove half-written records of tasks and supervisors, which are gone. Clients may still be writing theirs."""
    try:
        folder = os.open(events, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(folder):
            # ".<attempt>.<source>....part"
            if name.endswith(".part") and not name.split(".")[2].startswith(("client", "launcher")):
                os.unlink(name, dir_fd=folder)
    except OSError:
        pass
    finally:
        os.close(folder)


if __name__ == "__main__":
    (successor if _SUCCESSOR in sys.argv[4:] else main)(int(sys.argv[1]), sys.argv[2], sys.argv[3])
