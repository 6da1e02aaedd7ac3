"""A root of their own for the replicas of a job, and processes of their own for each: mount, user and PID namespaces.

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


def permitted(config: Mapping[str, Any]) -> dict[str, str]:
    """Try it in a process of its own; return why replicas cannot have a "root" and "pids" of their own, "" if they can."""
    root = _tried(lambda: enter(config))
    return {"root": root, "pids": root or _tried(lambda: _try_pids(config))}


def _tried(work: Callable[[], None]) -> str:
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # it is told, and a fork must not go on as its parent
            os.write(say, str(error).encode() or type(error).__name__.encode())
        os._exit(0)
    os.close(say)
    with os.fdopen(said) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def _try_pids(config: Mapping[str, Any]) -> None:
    enter(config)
    leave_processes()
    answer = _tried(show_processes)
    if answer:
        raise OSError(answer)


def leave_processes() -> None:
    """Put what this process forks next into a PID namespace; mounts and the host's name are its own from here on.

    Raises:
        OSError: the kernel does not permit it.
    """
    _unshare(_NEWPID | _NEWNS | _NEWUTS)


def show_processes() -> None:
    """Make /proc show the PID namespace of this process.

    Raises:
        OSError: the kernel does not permit it.
    """
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def enter(config: Mapping[str, Any]) -> None:
    """Give this process a root of its own: the machine's, but for /gcs and /etc/hosts, and with interpreters to be read only.

    Raises:
        OSError: the kernel does not permit it.
    """
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
    # Later mounts of the machine still show up here; ours stay here.
    _mount("none", "/", None, _MS_REC | _MS_SLAVE)
    root = config["root"]
    _mount("podlift", root, "tmpfs", _MS_NOSUID | _MS_NODEV)
    # Or it would show up once more below the folder that it lies in.
    _mount("none", root, None, _MS_UNBINDABLE)
    os.chmod(root, 0o755)  # noqa: S103
    for entry in os.scandir("/"):
        if entry.name != "gcs":
            _show(entry, f"{root}/{entry.name}")
    os.mkdir(f"{root}/gcs")
    _mount(config["gcs"], f"{root}/gcs", None, _MS_BIND)
    # A bucket that is made later can be read; what a program wrote beside the buckets would be lost without a word.
    _remount_read_only(f"{root}/gcs")
    for bucket in config["buckets"]:
        _mount(f"{config['gcs']}/{bucket}", f"{root}/gcs/{bucket}", None, _MS_BIND)
    _mount(config["hosts"], f"{root}/etc/hosts", None, _MS_BIND)
    _keep(config["kept"], config["scratch"], root)
    os.chdir(root)
    _pivot()


def _show(entry: os.DirEntry[str], place: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), place)
        return
    if entry.is_dir():
        os.mkdir(place)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
    # With all that is mounted below: nobody may look under a mount of another user's namespace.
    _mount(entry.path, place, None, _MS_BIND | _MS_REC)


def _keep(places: Sequence[str], scratch: str, root: str) -> None:
    """Let a job read what belongs to the interpreters of the machine, and not change it."""
    for place in places:
        _mount(f"{root}{place}", f"{root}{place}", None, _MS_BIND | _MS_REC)
        _remount_read_only(f"{root}{place}")
        if scratch.startswith(f"{place}/"):
            _mount(scratch, f"{root}{scratch}", None, _MS_BIND | _MS_REC)


def _remount_read_only(place: str) -> None:
    # The flags of another user's mount may not be taken away.
    flags = os.statvfs(place).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount("none", place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _pivot() -> None:
    # The old root lies over the new one for a moment, and is let go of with all its mounts.
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
