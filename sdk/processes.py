"""Processes of ours: who they are, whether they still live, how they are started and ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def identity(pid: int) -> str | None:
    """Return a name that no other process will ever have: boot, pid and start time; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if _BOOT_ID.exists() else _identity_by_ps(pid)
    # The command in the second field may hold spaces and parentheses: the fields are counted from behind it.
    after = stat.rpartition(")")[2].split()
    if after[0] in "ZX":
        return None
    return f"{_boot()}:{pid}:{after[19]}"


def alive(name: str) -> bool:
    """True while the process of that identity runs on this machine."""
    return identity(int(name.split(":")[1])) == name


def same_machine(name: str) -> bool:
    """True if the identity was made on this machine since it was started."""
    return name.split(":")[0] == _boot()


def spawn(command: Sequence[str], *, env: Mapping[str, str], cwd: str, log: str) -> subprocess.Popen[bytes]:
    """Start a process in a session and process group of its own; its output goes to the end of the file `log`, raw."""
    with open(log, "ab") as output:  # noqa: PTH123
        return subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Say whether a process of `spawn` is over, without reaping it: until it is, nobody else can get its number."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return process.poll() is not None


def adopt_orphans() -> None:
    """Make this process the parent of what its descendants leave behind (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans() -> None:
    """Kill and reap every child of this process that `spawn` did not make; their children become ours in turn."""
    me = str(os.getpid())
    while _BOOT_ID.exists():
        left = [pid for pid in _all_pids() if _parent(pid) == me]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _parent(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except (FileNotFoundError, ProcessLookupError):
        return None


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a process of `spawn` and all its children; nothing happens if none is left."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "no-boot-id"


def _identity_by_ps(pid: int) -> str | None:
    found = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    if not found or found[0].startswith("Z"):
        return None
    return f"{_boot()}:{pid}:{found[1].strip().replace(':', '.')}"
