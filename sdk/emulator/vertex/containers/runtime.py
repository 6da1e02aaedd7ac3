"""The container runtime of one job: runs its replicas, each in a PID namespace, and ends them when the emulator ends.

The kernel ends all processes of a PID namespace with its first process, so no daemon and no session can stay. All replicas
share one separate root: the machine's folders, `/gcs`, and an `/etc/hosts` with the names of the cluster. If the kernel permits
less, the replicas get less, and the emulator reports it.

It needs nothing but the standard library and has one thread, so that a replica costs two forks.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time

# Only for annotations: every job waits for the imports of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_BLOCKED = (signal.SIGTERM, signal.SIGCHLD)
_LINUX = sys.platform.startswith("linux")
_libc = ctypes.CDLL(None, use_errno=True)

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
_MS_BIND, _MS_REC, _MS_UNBINDABLE, _MS_SLAVE = 0x1000, 0x4000, 0x20000, 0x80000
_MNT_DETACH = 2
# The exit codes of a shell, and therefore of a container.
_SIGNALLED, _NOT_FOUND, _NOT_STARTED = 128, 127, 126
_POLL_S = 0.005


class ContainerRuntime:
    """The running replicas, and the connection to the emulator. `config` has the fields of `client.ContainerConfig`, and in
    "refused" the result of the probe by the first runtime of the emulator, or null.
    """

    def __init__(self, connection: socket.socket, config: Mapping[str, Any]) -> None:
        self._connection = connection
        self._init_pipes: dict[str, int] = {}
        self._pids: dict[int, str] = {}
        self._deadlines: dict[str, float] = {}
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        if _LINUX:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        refused = config["refused"] or _probe(config)
        if not refused["root"]:
            try:
                _enter_root(config)
            except OSError as error:
                refused = {"root": str(error), "pids": str(error)}
        self._own_pids = not refused["pids"]
        self._send(ready=refused)

    def run(self) -> None:
        while True:
            due = min(self._deadlines.values(), default=None)
            wait_s = None if due is None else max(0.0, due - time.monotonic())
            watched: list[Any] = [self._connection, self._wake]
            ready = select.select(watched, [], [], wait_s)[0]
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            if self._connection in ready and not self._handle_request():
                break
            now = time.monotonic()
            for name in [name for name, deadline in self._deadlines.items() if deadline <= now]:
                self._signal(name, signal.SIGKILL)
                del self._deadlines[name]
        for name in list(self._init_pipes):
            self._signal(name, signal.SIGKILL)
        end_children()

    def _handle_request(self) -> bool:
        request, handles = receive(self._connection)
        if request is None:
            return False
        if request["action"] == "start":
            self._start(request, handles)
        else:
            for name in request["names"]:
                self._stop(name, float(request["grace_s"]))
        return True

    def _stop(self, name: str, grace_s: float) -> None:
        if name not in self._init_pipes:
            return
        if grace_s <= 0:
            self._signal(name, signal.SIGKILL)
            return
        deadline = time.monotonic() + grace_s
        if name not in self._deadlines:
            self._signal(name, signal.SIGTERM)
        self._deadlines[name] = min(deadline, self._deadlines.get(name, deadline))

    def _signal(self, name: str, number: int) -> None:
        for pid in [pid for pid, owner in self._pids.items() if owner == name]:
            os.kill(pid, number)

    def _start(self, request: Mapping[str, Any], handles: Sequence[int]) -> None:
        read_end, write_end = os.pipe()
        init_pipe, keep = os.pipe()
        spawner = os.fork()
        if spawner == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
            for handle in (read_end, keep, self._wake, *self._init_pipes.values()):
                os.close(handle)
            self._connection.close()
            _spawn_init(request, handles, write_end, init_pipe, own_pids=self._own_pids)
        for handle in (write_end, init_pipe, *handles):
            os.close(handle)
        with os.fdopen(read_end) as pipe:
            answer = pipe.read()
        os.waitpid(spawner, 0)
        if not answer.isdigit():
            os.close(keep)
            self._send(exited=request["name"], code=_NOT_STARTED, pid=0, why=answer)
            return
        self._pids[int(answer)] = request["name"]
        self._init_pipes[request["name"]] = keep
        # The replica is a child of this process by now, and can watch it.
        os.write(keep, b"g")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            name = self._pids.pop(pid, None)
            if name is None:
                continue
            if not self._own_pids:
                end_children(spared=self._pids)
            os.close(self._init_pipes.pop(name))
            self._deadlines.pop(name, None)
            self._send(exited=name, code=exit_code_of(status), pid=pid, why="")

    def _send(self, **message: object) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the emulator is gone; the next read from the connection shows it


def _spawn_init(
    request: Mapping[str, Any], handles: Sequence[int], write_end: int, init_pipe: int, *, own_pids: bool
) -> NoReturn:
    """Fork the init process of a replica into its own namespaces, report its pid, and exit: the runtime becomes its parent."""
    try:
        if own_pids:
            _unshare_pids()
            socket.sethostname(request["host"])
        pid = os.fork()
        if pid == 0:
            os.close(write_end)
            _run_init(request, handles, init_pipe, own_pids=own_pids)
        os.write(write_end, str(pid).encode())
    except BaseException as error:  # a fork must never continue as its parent
        os.write(write_end, f"{type(error).__name__}: {error}".encode())
    os._exit(0)


def _run_init(request: Mapping[str, Any], handles: Sequence[int], init_pipe: int, *, own_pids: bool) -> NoReturn:
    """Be the init process of a replica: start the program, forward SIGTERM, reap orphans, exit with the program's code."""
    code = _NOT_STARTED
    try:
        if os.read(init_pipe, 1) == b"g":
            if _LINUX:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            if own_pids:
                _mount_own()
            # The runtime may have died before this signal was requested.
            gone = bool(select.select([init_pipe], [], [], 0)[0])
            code = _SIGNALLED + signal.SIGKILL if gone else _supervise(request, handles)
    except BaseException as error:  # as above; the error becomes a line of the replica
        os.write(handles[1], f"podlift emulator: {type(error).__name__}: {error}\n".encode())
    if not own_pids:
        end_children()
    os._exit(code)


def _supervise(request: Mapping[str, Any], handles: Sequence[int]) -> int:
    program = os.fork()
    if program == 0:
        _exec_program(request, handles)
    for handle in handles:
        # The reader waits until all writers have closed them.
        os.close(handle)
    while True:
        if signal.sigwait(_BLOCKED) == signal.SIGTERM:
            # Like other container runtimes: only to the program, which may forward it.
            os.kill(program, signal.SIGTERM)
            continue
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                return exit_code_of(status)


def _exec_program(request: Mapping[str, Any], handles: Sequence[int]) -> NoReturn:
    code = _NOT_STARTED
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(handles[0], 1)
        os.dup2(handles[1], 2)
        # Python ignores some of them, and exec keeps that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        os.umask(0o022)
        os.chdir(request["cwd"])
        os.execvpe(request["command"][0], request["command"], request["env"])  # noqa: S606
    except FileNotFoundError as error:
        code = _NOT_FOUND
        os.write(2, f"podlift emulator: {request['command'][0]!r} cannot be executed: {error.strerror}.\n".encode())
    except BaseException as error:  # a fork must never continue as its parent
        os.write(2, f"podlift emulator: {request['command'][0]!r} cannot be executed: {error}.\n".encode())
    os._exit(code)


def exit_code_of(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _SIGNALLED - code


def end_children(spared: Mapping[int, object] | None = None) -> None:
    """Kill and reap the children of this process, and their orphans in turn, except the spared ones."""
    while True:
        left = [pid for pid in _children() if pid not in (spared or {})]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        if not left:
            return
        time.sleep(_POLL_S)


def _children() -> list[int]:
    me, pids = str(os.getpid()).encode(), []
    for name in os.listdir("/proc") if _LINUX else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The second field, the command, may contain anything: count the fields after it.
                    if file.read().rpartition(b")")[2].split()[1] == me:
                        pids.append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return pids


def receive(connection: socket.socket) -> tuple[Any, list[int]]:
    head, handles, _, _ = socket.recv_fds(connection, 4, 8)
    for handle in handles:
        # They would be open in the program too.
        os.set_inheritable(handle, False)
    while head and len(head) < 4:
        head += connection.recv(4 - len(head)) or b""
    data, size = bytearray(), int.from_bytes(head, "big")
    while head and len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None, handles
        data += piece
    return (json.loads(data) if head else None), handles


# The root file system and the PID namespaces. The machine itself is not changed; an ordinary user needs user namespaces.


def _probe(config: Mapping[str, Any]) -> dict[str, str]:
    """Try both in a child process; return why a separate "root" and separate "pids" are impossible, "" if they are possible."""

    def pids() -> None:
        _enter_root(config)
        _unshare_pids()
        answer = _error_in_child(_mount_own)
        if answer:
            raise OSError(answer)

    root = _error_in_child(lambda: _enter_root(config))
    return {"root": root, "pids": root or _error_in_child(pids)}


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


def _unshare_pids() -> None:
    """Put the next child of this process into a PID namespace, and give this process its own mounts and host name."""
    _unshare(_NEWPID | _NEWNS | _NEWUTS)


def _mount_own() -> None:
    """Mount the private folders of a container; the kernel frees them with the container, however it ends."""
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if os.path.isdir("/dev/shm"):  # noqa: S108
        _mount("podlift", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV)  # noqa: S108


def _enter_root(config: Mapping[str, Any]) -> None:
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
    # Recursively: the kernel does not reveal the files under a mount of another user's namespace.
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
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    words = (source.encode(), target.encode(), kind.encode() if kind else None)
    _check(_libc.mount(*words, ctypes.c_ulong(flags), None), f"mount {target}")


def main(handle: int) -> None:
    """Run the replicas of one job. The first message on the connection is the configuration."""
    connection = socket.socket(fileno=handle)
    config, _ = receive(connection)
    if config is not None:
        ContainerRuntime(connection, config).run()
