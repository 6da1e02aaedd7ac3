"""Child processes: identity, liveness, start and end.

A container's agent imports this module without psutil, which is only needed on other systems than Linux.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import cast

_PR_SET_CHILD_SUBREAPER = 36
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
# How long Python's resource trackers may take to clean up.
_TRACKERS_S, _POLL_S = 1.0, 0.005
_TICKS = slice(11, 13)  # user and system time in /proc/PID/stat, counted after the command
# Children that `end_orphans` must not kill: they watch over this process.
SPARED: set[int] = set()


def identity(pid: int) -> str | None:
    """Return a globally unique name (machine, boot, pid, start time), or None if the process is gone or a zombie."""
    fields = _stat(pid)
    if not fields:
        return None if _BOOT_ID.exists() else _identity_by_psutil(pid)
    return None if fields[0] in "ZX" else f"{_boot()}:{pid}:{fields[19]}"


def alive(name: str) -> bool:
    """True while the process of that identity runs on this machine."""
    now = identity(int(name.split(":")[1]))
    # Without the machine: its host name may change meanwhile.
    return now is not None and now.partition(".")[2] == name.partition(".")[2]


def same_machine(name: str) -> bool:
    """True if the identity was made on this machine, in this boot or an earlier one."""
    return name.split(":")[0].rpartition(".")[0] == _machine()


class Adopted:
    """A process that was forked by another one, and became a child of this process when that one ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        return cast("int", self._waited(0))

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
            except ChildProcessError:
                # `end_orphans` has killed and reaped it: on a busy machine that may come before its exit is seen.
                self.returncode = -signal.SIGKILL
        return self.returncode


class _Spawned(subprocess.Popen[bytes]):
    """A process that may outlive this one, as a supervisor does: at the end of this one there is nothing to warn about."""

    def __del__(self) -> None:
        if not sys.is_finalizing():
            super().__del__()


# The caller's own PYTHONPATH, in a process that is started detached.
_CALLERS = "PODLIFT_CALLER_PYTHONPATH"
# Dropping a Popen while its process runs raises a warning.
_detached: list[subprocess.Popen[bytes]] = []
# A child of this process, either spawned or adopted.
Process = subprocess.Popen[bytes] | Adopted


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    log: str,
    errors: str = "",
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in its own session and process group.

    Its raw output is appended to the file `log`, stderr to `errors` if there is one.
    """
    with open(log, "ab") as output, open(errors, "ab") if errors else nullcontext(subprocess.STDOUT) as error_output:
        return _Spawned(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=error_output,
            start_new_session=True,
            pass_fds=pass_fds,
        )


def detached(module: str, *words: str, cwd: str, log: str) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process that outlives this one, with the variables of this process."""
    # This package comes first on the path, so that the process has the version that starts it.
    home = str(Path(__file__).absolute().parents[2])
    # Relative paths refer to this process's folder. The process and its children start in other ones.
    search_path = os.environ.get(_CALLERS, os.environ.get("PYTHONPATH", ""))
    callers = [os.path.abspath(path) for path in search_path.split(os.pathsep) if path]
    path = {"PYTHONPATH": os.pathsep.join([home, *callers]), _CALLERS: os.pathsep.join(callers)}
    env = {**os.environ, **path}
    if os.environ.get("UV_CACHE_DIR"):
        env["UV_CACHE_DIR"] = os.path.abspath(os.environ["UV_CACHE_DIR"])
    # Reaped here at the latest.
    _detached[:] = [process for process in _detached if process.poll() is None]
    process = spawn([sys.executable, "-m", module, *words], env=env, cwd=cwd, log=log)
    _detached.append(process)
    return process


def has_exited(process: Process) -> bool:
    """Return whether a child has exited, without reaping it, so that its process id is not reused."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return process.poll() is not None


def is_exiting(process: Process) -> bool:
    """Return whether a child has exited or is exiting: the kernel has already released its memory (Linux only)."""
    if has_exited(process) or not _BOOT_ID.exists():
        return has_exited(process)
    try:
        os.readlink(f"/proc/{process.pid}/exe")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended, by SIGSTOP or a debugger (Linux only)."""
    return _stat(pid)[:1] in (["T"], ["t"])


def adopt_orphans() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(among: Callable[[int], bool] = lambda pid: True) -> list[int]:
    """Kill and reap the children that `among` accepts, except the ones in `SPARED`, and their orphans.

    Returns the processes of other users, which survive.
    """
    me = str(os.getpid())
    stay: set[int] = set()
    while _BOOT_ID.exists():
        left = [pid for pid in _pids() if _parent(pid) == me and pid not in stay | SPARED and among(pid)]
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:
                # Started by sudo, for example. It can still be reaped once it has exited.
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    stay.add(pid)
            except (ProcessLookupError, ChildProcessError):
                pass
    return sorted(stay)


def reap_orphans(besides: Collection[int]) -> None:
    """Wait for the exited children, except `SPARED` and `besides`, which other callers wait for (Linux only)."""
    while _BOOT_ID.exists():
        try:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        # A child that another caller waits for comes first until then: the next call continues.
        if exited is None or exited.si_pid in SPARED or exited.si_pid in besides:
            return
        with suppress(ChildProcessError):
            os.waitpid(exited.si_pid, 0)


def described(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return str(pid)
    try:
        return f"{pid} ({name}, of user {pwd.getpwuid(owner).pw_name})"
    except KeyError:  # a user without a name, as containers have
        return f"{pid} ({name}, of user {owner})"


def _parent(pid: int) -> str:
    """Return the parent of a process, "" if it is gone, or another user's on a machine that hides those (hidepid=1)."""
    with suppress(PermissionError):
        return "".join(_stat(pid)[1:2])
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command, which may contain any bytes; [] if the process is gone."""
    try:
        # The kernel cuts a name after 15 bytes, also within a letter.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def signal_group(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def end_group(process: Process) -> None:
    """Kill the process group of a child, Python's resource trackers last.

    A tracker removes the shared memory of its group as soon as the other processes are gone. Only the tracker knows who created
    a segment in /dev/shm.
    """
    until = time.monotonic() + _TRACKERS_S
    while time.monotonic() < until and _BOOT_ID.exists():
        members = [pid for pid in _pids() if _group_of(pid) == process.pid]
        trackers = [pid for pid in members if _is_tracker(pid)]
        if not trackers:
            break
        for pid in set(members).difference(trackers):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    signal_group(process, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker import main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # gone


def _boot() -> str:
    return f"{_machine()}.{_BOOT_ID.read_text().strip() if _BOOT_ID.exists() else 'no-boot-id'}"


@cache
def _machine() -> str:
    # Containers of one image share the machine id, but have different host names.
    machine_id = _MACHINE_ID.read_bytes() if _MACHINE_ID.exists() else b""
    return hashlib.sha256(machine_id + platform.node().encode()).hexdigest()[:12]


def _identity_by_psutil(pid: int) -> str | None:
    import psutil

    # Not on Linux, where this time moves with the system clock: docs/explanation/decisions/processes.md.
    try:
        process = psutil.Process(pid)
        gone = process.status() == psutil.STATUS_ZOMBIE
        return None if gone else f"{_boot()}:{pid}:{process.create_time()}"
    except psutil.Error:
        return None


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds, 0 if it is gone."""
    if _BOOT_ID.exists():
        return sum(map(int, _stat(pid)[_TICKS])) / os.sysconf("SC_CLK_TCK")
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
