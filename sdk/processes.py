"""Processes of ours: who they are, whether they still live, how they are started and ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

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
