"""Who asks: which replica of which job has opened a connection to this server.

On Google's machines every replica has a metadata server of its own. Here all of them ask the same one, so it looks in /proc for
the process at the other end and reads what the emulator itself has put into its environment.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

_LOOPBACK = "0100007F"
_UID, _INODE = 7, 9


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A replica of a job; both are "" if it is something else that asks."""

    job: str = ""
    replica: str = ""


def find(port: int) -> Peer:
    """Return who has the connection that comes from this port of the loopback interface."""
    inode = _inode(port)
    return Peer() if inode is None else _peer(_environment(f"socket:[{inode}]"))


def is_foreign(port: int) -> bool:
    """True if another user of this machine has the connection that comes from this port.

    Whoever used sudo to start the emulator is no other user; where the system does not tell, nobody is.
    """
    row = _row(port)
    known = {str(os.geteuid()), os.environ.get("SUDO_UID", ""), "0"}
    return row is not None and row[_UID] not in known


def _inode(port: int) -> str | None:
    row = _row(port)
    return None if row is None else row[_INODE]


def _row(port: int) -> list[str] | None:
    """Return the words of the kernel's line about a socket."""
    place = f"{_LOOPBACK}:{port:04X}"
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return None
    return next((words for words in map(str.split, lines) if words[1] == place), None)


def _environment(socket: str) -> dict[str, str]:
    """Return the environment of the process that has that socket; an empty one if it cannot be seen."""
    for pid in os.listdir("/proc"):  # noqa: PTH208
        if pid.isdigit() and _has(pid, socket):
            try:
                raw = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                return {}
            pairs = (each.decode("utf-8", "replace").partition("=") for each in raw.split(b"\0"))
            return {name: value for name, _, value in pairs}
    return {}


def _has(pid: str, socket: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{fd}") == socket for fd in os.listdir(folder))  # noqa: PTH115, PTH208
    except OSError:
        # Of another user, or gone meanwhile.
        return False


def _peer(environment: dict[str, str]) -> Peer:
    try:
        task = json.loads(environment.get("CLUSTER_SPEC", ""))["task"]
        replica = f"{task['type']}-{task['index']}"
    except (ValueError, KeyError, TypeError):
        replica = ""
    return Peer(job=environment.get("CLOUD_ML_JOB_ID", ""), replica=replica)
