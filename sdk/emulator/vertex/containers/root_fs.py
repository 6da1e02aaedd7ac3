"""The root file system and the PID namespaces of replicas: mount, user and PID namespaces.

The machine itself is not changed. An ordinary user needs user namespaces, which some systems deny.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
_MS_BIND, _MS_REC, _MS_UNBINDABLE, _MS_SLAVE = 0x1000, 0x4000, 0x20000, 0x80000
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def probe(config: Mapping[str, Any]) -> dict[str, str]:
    """Try both in a child process; return why a "root" and "pids" of their own are impossible, "" if they are possible."""
    root = _error_in_child(lambda: enter_root(config))
    return {"root": root, "pids": root or _error_in_child(lambda: _probe_pids(config))}


def _error_in_child(work: Callable[[], None]) -> str:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # it is reported, and a fork must never continue as its parent
            os.write(write_end, str(error).encode() or type(error).__name__.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def _probe_pids(config: Mapping[str, Any]) -> None:
    enter_root(config)
    unshare_pids()
    answer = _error_in_child(mount_proc)
    if answer:
        raise OSError(answer)


def unshare_pids() -> None:
    """Put the next child of this process into a PID namespace, and give this process its own mounts and host name."""
    _unshare(_NEWPID | _NEWNS | _NEWUTS)


def mount_proc() -> None:
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def enter_root(config: Mapping[str, Any]) -> None:
    """Give this process its own root: the machine's, with /gcs and another /etc/hosts, and with read-only interpreters."""
    if not sys.platform.startswith("linux"):
        raise OSError("namespaces exist on Linux only")
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_NEWNS)
    except PermissionError:
        _unshare(_NEWUSER | _NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    # Later mounts of the machine become visible here, but not the other way round.
    _mount("none", "/", None, _MS_REC | _MS_SLAVE)
    root = config["root"]
    _mount("podlift", root, "tmpfs", _MS_NOSUID | _MS_NODEV)
    # Otherwise it would appear again below its own parent folder.
    _mount("none", root, None, _MS_UNBINDABLE)
    os.chmod(root, 0o755)  # noqa: S103
    for entry in os.scandir("/"):
        if entry.name != "gcs":
            _bind_entry(entry, f"{root}/{entry.name}")
    os.mkdir(f"{root}/gcs")
    _mount(config["gcs"], f"{root}/gcs", None, _MS_BIND)
    # Later buckets are readable. Files written beside the buckets would be lost silently, so they are denied.
    _remount_read_only(f"{root}/gcs")
    for bucket in config["buckets"]:
        _mount(f"{config['gcs']}/{bucket}", f"{root}/gcs/{bucket}", None, _MS_BIND)
    _mount(config["hosts"], f"{root}/etc/hosts", None, _MS_BIND)
    _mount_read_only(config["read_only"], config["scratch"], root)
    os.chdir(root)
    _pivot()


def _bind_entry(entry: os.DirEntry[str], target: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
        return
    if entry.is_dir():
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    # Recursively: the kernel does not reveal what lies under a mount of another user's namespace.
    _mount(entry.path, target, None, _MS_BIND | _MS_REC)


def _mount_read_only(folders: Sequence[str], scratch: str, root: str) -> None:
    for target in folders:
        _mount(f"{root}{target}", f"{root}{target}", None, _MS_BIND | _MS_REC)
        _remount_read_only(f"{root}{target}")
        if scratch.startswith(f"{target}/"):
            _mount(scratch, f"{root}{scratch}", None, _MS_BIND | _MS_REC)


def _remount_read_only(target: str) -> None:
    # The flags of another user's mount may not be removed.
    flags = os.statvfs(target).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _pivot() -> None:
    # The old root covers the new one for a moment, and is detached with all its mounts.
    if _libc.pivot_root(b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    if _libc.umount2(b".", _MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount")
    os.chdir("/")


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    if _libc.mount(*words, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {target}: {os.strerror(number)}")
