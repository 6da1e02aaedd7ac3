"""What is left of a run when its supervisor has gone, however it went: this process ends it and cleans up.

The janitor is the supervisor's parent. What the supervisor's descendants leave behind when they end belongs to the supervisor,
and when that one has ended too, the kernel gives it to the janitor: processes of a session of their own, double forks and
those with an empty environment among them. So it knows the run's processes by their descent alone, needs no list of them
that could be old, and can meet no process of anybody else.

It runs by path, with nothing but the standard library, because it stays as long as the run does:
`python -I -S janitor.py SUPERVISOR TEMPORARY EVENTS`
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

# What asks a process to end is meant for the supervisor, which ends the run in order.
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_POLL_S = 0.005
# A process that the kernel cannot end, as on a disk that does not answer, must not keep this one for ever.
_LIMIT_S = 30.0


def leave_behind(url: str, temporary: str, events: str) -> None:
    """Turn this process into the janitor, and return in a child of it, which is the supervisor (Linux only).

    The janitor of an earlier supervisor of the run is waited for: it may still be at work in the same folders.

    Args:
        url: the run's directory.
        temporary: the folder for temporary files, which need not exist yet.
        events: the folder of the run's records.
    """
    if not sys.platform.startswith("linux"):
        return
    # The janitor itself can import nothing but the standard library.
    from ... import processes

    # Both hold it, none writes anything: it is gone when they are.
    lock = _lock(url)
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    processes.adopt_orphans()
    child = os.fork()
    if not child:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEAF_TO)
        return
    # The blocked signals, the lock and being the one that orphans fall to stay when another program takes over.
    try:
        if lock is not None:
            os.set_inheritable(lock, True)
        os.chdir("/")
        words = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(child), temporary, events]  # noqa: PTH100
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


def _lock(url: str) -> int | None:
    try:
        folder = os.open(url, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError:
        return None  # a file system without locks on folders
    return folder


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
    me, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    # The command in the second field may hold anything: the fields are counted from behind it.
                    if file.read().rpartition(b")")[2].split()[1] == me:
                        found.append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


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
                if not os.path.islink(place):  # noqa: PTH114
                    os.chmod(place, 0o700)  # noqa: PTH101
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(events: str) -> None:
    """Remove the halves of records whose writers are gone; those of clients are theirs."""
    try:
        for name in os.listdir(events):  # noqa: PTH208
            # ".<attempt>.<source>....part"
            if name.endswith(".part") and not name.split(".")[2].startswith(("client", "launcher")):
                os.unlink(f"{events}/{name}")  # noqa: PTH108
    except OSError:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
