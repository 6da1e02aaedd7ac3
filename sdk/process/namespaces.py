"""Linux namespaces for the tasks of a run: host names as on Vertex AI, and an isolated network.

In a mount namespace, the supervisor and its tasks see their own /etc/hosts, which maps the cluster's host names to this
machine. In a network namespace, TensorFlow's servers cannot be reached from outside, and tasks cannot connect to the outside.
Both require root or user namespaces. The machine itself is not changed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_HOSTS = "/etc/hosts"


def why_not() -> str | None:
    """Return why tasks cannot have a network namespace here, or None. Tries it in a separate process."""
    if not sys.platform.startswith("linux"):
        return "network namespaces exist on Linux only."
    # A fresh process, because forking the caller, with its threads and TensorFlow, is not safe.
    tried = subprocess.run([sys.executable, "-I", __file__], capture_output=True, text=True, check=False)
    return (
        None if tried.returncode == 0 else f"the kernel does not allow it ({tried.stderr.strip().splitlines()[-1:]})."
    )


def enter(hosts_file: str, names: Sequence[str], *, isolated: bool) -> bool:
    """Move this process and its future children into new namespaces. It must have a single thread.

    `names` are host names to map to this machine in `hosts_file`, the private copy of /etc/hosts. Return whether they resolve
    now, which may not be allowed. Raises OSError if `isolated` is not allowed.
    """
    if isolated:
        _enter_network()
    elif os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return False
    else:
        try:
            _enter_mounts()
        except OSError:
            return False  # root in a container without permission to mount
    hosts = Path(_HOSTS).read_text() if Path(_HOSTS).exists() else "127.0.0.1 localhost\n"
    Path(hosts_file).write_text(f"{hosts.rstrip()}\n127.0.0.1 {' '.join(names)}\n")
    try:
        _mount(hosts_file, _HOSTS, _MS_BIND)
    except OSError:
        return False
    return True


def _enter_mounts() -> None:
    _unshare(_CLONE_NEWNS)
    # Later mounts of the machine remain visible here. Ours are private.
    _mount("none", "/", _MS_REC | _MS_SLAVE)


def _enter_network() -> None:
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _unshare(_CLONE_NEWNS | _CLONE_NEWNET)
    else:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", _MS_REC | _MS_SLAVE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _mount(source: str, target: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


if __name__ == "__main__":
    _enter_network()
