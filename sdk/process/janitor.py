"""What is left of a run when its supervisor has gone, however it went: this process ends it and cleans up.

The janitor is the supervisor's parent. What the supervisor's descendants leave behind when they end belongs to the supervisor,
and when that one has ended too, the kernel gives it to the janitor: processes of a session of their own, double forks and
those with an empty environment among them. So it knows the run's processes by their descent alone, needs no list of them
that could be old, and can meet no process of anybody else.

It can be killed or stopped itself. The supervisor looks after it: one that is stopped is woken, and one that is gone gets a
successor, which cannot be given what the supervisor leaves. It notes the supervisor's descendants twice a second instead, and
looks for the marks that a run's processes carry: see `marked`. Where both were killed at once, the next client does the same.

It runs by path, with nothing but the standard library, because it stays as long as the run does:
`python -I -S janitor.py SUPERVISOR TEMPORARY EVENTS [successor]`
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

# What asks a process to end is meant for the supervisor, which ends the run in order.
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_POLL_S = 0.005
# A process that the kernel cannot end, as on a disk that does not answer, must not keep this one for ever.
_LIMIT_S = 30.0
# A janitor that is found stopped is woken; one that has the lock for longer than it can need is ended.
_WAKE_S, _PATIENCE_S = 1.0, _LIMIT_S + 15.0
_NOTE_S = 0.5
# A client waits no longer than this for a janitor that is at work.
_CLIENT_S = 2.0
_SUCCESSOR = "successor"


def leave_behind(url: str, temporary: str, events: str, *, before: Sequence[str] = ()) -> int | None:
    """Turn this process into the janitor, and return in a child of it, which is the supervisor (Linux only).

    The janitor of an earlier supervisor of the run is waited for: it may still be at work in the same folders.

    Args:
        url: the run's directory.
        temporary: the folder for temporary files, which need not exist yet.
        events: the folder of the run's records.
        before: folders for temporary files that earlier supervisors have left: what else they have left is ended.

    Returns:
        The handle of the run's lock; None where there is none.

    Raises:
        TimeoutError: the earlier janitor cannot be waited for.
    """
    if not sys.platform.startswith("linux"):
        return None
    # The janitor itself can import nothing but the standard library.
    from . import spawn

    # Both hold it, none writes anything: it is gone when they are.
    lock = _lock(url, events)
    if before:
        end_marked(url, before)
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    spawn.adopt_orphans()
    child = os.fork()
    if not child:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEAF_TO)
        return lock
    # The blocked signals, the lock and being the one that orphans fall to stay when another program takes over.
    try:
        if lock is not None:
            os.set_inheritable(lock, True)
        os.chdir("/")
        words = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(child), temporary, events]
        os.execv(sys.executable, words)  # noqa: S606
    except BaseException as error:
        sys.stderr.write(f"The janitor stays in a large process: {error}\n")
    main(child, temporary, events)
    os._exit(0)


def main(supervisor: int, temporary: str, events: str) -> None:
    """Wait for the end of the supervisor, then end what is left and remove what nobody needs any more.

    Args:
        supervisor: its number; it is a child of this process.
        temporary: the folder for temporary files.
        events: the folder of the run's records.
    """
    _wait_for(supervisor)
    until = time.monotonic() + _LIMIT_S
    while _end_children() and time.monotonic() < until:
        time.sleep(_POLL_S)
    _remove(temporary)
    _sweep(events)


def successor(supervisor: int, temporary: str, events: str) -> None:
    """Do the same as a child of the supervisor, which had another janitor before.

    Args:
        supervisor: its number.
        temporary: the folder for temporary files.
        events: the folder of the run's records.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    noted: dict[int, str] = {}
    table = _processes()
    began = table.get(supervisor)
    while began is not None and table.get(supervisor) == began:
        noted = {pid: table[pid][1] for pid in _below(table, [supervisor])}
        time.sleep(_NOTE_S)
        table = _processes()
    end_marked(os.path.dirname(events), [temporary], noted)
    _remove(temporary)
    _sweep(events)


def clean(url: str, temporary: Sequence[str], events: str) -> None:
    """End what a supervisor and its janitor have left that were killed both; a janitor that is there is woken and waited for.

    Args:
        url: the run's directory.
        temporary: the folders for temporary files.
        events: the folder of the run's records.
    """
    try:
        folder = os.open(url, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    until = time.monotonic() + _CLIENT_S
    try:
        # One that was killed a moment ago has the lock until the kernel is done with it.
        while not _locked(folder):
            for pid in _janitors(events):
                _wake(pid)
            if time.monotonic() > until:
                return
            time.sleep(_POLL_S)
        if any(map(os.path.lexists, temporary)):
            end_marked(url, temporary)
            for place in temporary:
                _remove(place)
            _sweep(events)
    except OSError:
        pass  # a file system without locks on folders: somebody may be at work
    finally:
        os.close(folder)


def start_successor(temporary: str, events: str, lock: int | None) -> int:
    """Start another janitor for this process, the supervisor, whose own one is gone; return its number.

    Args:
        temporary: the folder for temporary files.
        events: the folder of the run's records.
        lock: the handle that `leave_behind` returned.
    """
    import subprocess

    words = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), temporary, events, _SUCCESSOR]
    held = () if lock is None else (lock,)
    # It holds the lock, and nothing that the tasks hold.
    process = subprocess.Popen(words, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=held)
    _started.append(process)
    return process.pid


# What a Popen that is dropped would warn of.
_started: list[object] = []


def end_marked(url: str, temporary: Iterable[str], noted: dict[int, str] | None = None) -> None:
    """Kill every process that carries a mark of a run, with all below it, until there is none.

    Args:
        url: the run's directory.
        temporary: the folders for temporary files of its supervisors.
        noted: further processes of the run, by number: when each was started.
    """
    hosts = {found for place in temporary if (found := _file(f"{place}/hosts"))}
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        table = _processes()
        roots = [pid for pid, (_, began) in table.items() if (noted or {}).get(pid) == began or marked(pid, url, hosts)]
        left = _below(table, roots) | set(roots)
        # Also where it is a process of the run that looks.
        left -= _above(table, os.getpid())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                left = left - {pid}
        if not left:
            return
        time.sleep(_POLL_S)


def marked(pid: int, url: str, hosts: set[tuple[int, int]]) -> bool:
    """Say whether a process is one of a run's tasks or was started by one, however it was started.

    A task's variables name its run and attempt. A process that was started without them has a task's log as its output, or
    sees the run's own copy of /etc/hosts, which is mounted for its tasks alone. Where a process stands (its current folder) is
    no mark: that is a person's shell, too.

    Args:
        pid: its number.
        url: the run's directory.
        hosts: device and number of the copies of /etc/hosts.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
        if b"PODLIFT_RUN=" + os.fsencode(url) in words and any(word.startswith(b"PODLIFT_ATTEMPT=") for word in words):
            return True
        if hosts and _file(f"/proc/{pid}/root/etc/hosts") in hosts:
            return True
        return any(_is_log(pid, handle, url) for handle in ("1", "2"))
    except OSError:
        return False


def _is_log(pid: int, handle: str, url: str) -> bool:
    path = os.readlink(f"/proc/{pid}/fd/{handle}")
    if not (path.startswith(f"{url}/attempts/") and path.endswith(".log")):
        return False
    with open(f"/proc/{pid}/fdinfo/{handle}", encoding="ascii") as file:
        flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    # As podlift opens a task's log.
    return bool(flags & os.O_APPEND) and flags & os.O_ACCMODE != os.O_RDONLY


def _file(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
                _wake(pid, end=waited_s > _PATIENCE_S)
            if waited_s > 2 * _PATIENCE_S:
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
    """Yield the janitors of a run: by what they were started with."""
    for pid in _processes():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")]
        except OSError:
            continue
        if events in words and any(os.path.basename(word) == "janitor.py" for word in words) and pid != os.getpid():
            yield pid


def _wake(pid: int, *, end: bool = False) -> None:
    try:
        os.kill(pid, signal.SIGKILL if end else signal.SIGCONT)
    except (ProcessLookupError, PermissionError):
        pass


def _processes() -> dict[int, tuple[int, str]]:
    """Return parent and time of start of every process, by its number."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command in the second field may hold anything: the fields are counted from behind it.
                    fields = file.read().rpartition(b")")[2].split()
                # A zombie is over.
                if fields[0] not in b"ZX":
                    found[int(name)] = int(fields[1]), fields[19].decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _below(table: dict[int, tuple[int, str]], roots: Iterable[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(new)
        waiting += new
    return found


def _above(table: dict[int, tuple[int, str]], pid: int) -> set[int]:
    found = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid][0]
    return found


def _wait_for(supervisor: int) -> None:
    try:
        while os.waitpid(-1, 0)[0] != supervisor:
            pass
    except ChildProcessError:
        pass


def _end_children() -> bool:
    """Kill every child of this process, and reap those that are over; False when there is none left.

    The children of what was killed become this one's in turn.
    """
    for pid in _children():
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    me = os.getpid()
    return [pid for pid, (parent, _) in _processes().items() if parent == me]


def _remove(folder: str) -> None:
    if not os.path.lexists(folder):
        return
    import contextlib
    import shutil  # both are large, and seldom needed

    shutil.rmtree(folder, ignore_errors=True)
    # A program may have taken away its own right to change one of its folders.
    for top, names, _ in os.walk(folder):
        for place in [top, *(f"{top}/{name}" for name in names)]:
            with contextlib.suppress(OSError):
                if not os.path.islink(place):
                    os.chmod(place, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(events: str) -> None:
    """Remove the halves of records whose writers are gone; those of clients are theirs."""
    try:
        for name in os.listdir(events):
            # ".<attempt>.<source>....part"
            if name.endswith(".part") and not name.split(".")[2].startswith(("client", "launcher")):
                os.unlink(f"{events}/{name}")
    except OSError:
        pass


if __name__ == "__main__":
    (successor if _SUCCESSOR in sys.argv[4:] else main)(int(sys.argv[1]), sys.argv[2], sys.argv[3])
