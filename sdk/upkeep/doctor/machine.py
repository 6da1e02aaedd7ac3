"""Checks of the machine: disk, memory, limits, processes, ports, names, namespaces."""

from __future__ import annotations

import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ...checks.check import Check, Level, bad, fine
from ...process import cores, namespaces
from ...process.ports import PortReservation
from ...text import size

_GB = 1e9
# TensorFlow, Keras and a small model need 0.6 GB in each task.
_MEMORY_PER_CPU = 1.0 * _GB
_LIMIT_S = 30.0
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
_OPEN_FILES, _PROCESSES = 1024, 1024
# What TensorFlow, its data loaders and podlift do: fork, wait, share a semaphore, start a session.
_PROGRAM = """
import multiprocessing, os
pid = os.fork()
if pid == 0:
    os.setsid()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
multiprocessing.get_context("spawn").Semaphore(1).acquire()
"""


def disks(root: str) -> list[Check]:
    try:
        of_root = [("disk", _existing(Path(root)), 5 * _GB, "podlift remove, or set PODLIFT_ROOT to another root")]
        refused = []
    except OSError as error:
        message = f"the free space of {root} is not known: {error.strerror}"
        of_root, refused = [], [bad("disk", "error", message, "set PODLIFT_ROOT to a folder that you may use")]
    places = [
        *of_root,
        ("tmp", Path(tempfile.gettempdir()), _GB, "set TMPDIR to a larger disk"),
        ("shm", Path("/dev/shm"), 0.1 * _GB, "docker run --shm-size=1g"),  # noqa: S108
    ]
    linux = sys.platform.startswith("linux")
    return refused + [
        disk(name, str(folder), _free(folder), warn_bytes=warn_bytes, fix=fix)
        for name, folder, warn_bytes, fix in places
        if linux or name != "shm"
    ]


def _existing(path: Path) -> Path:
    """Return the deepest folder of a path that exists; OSError if it is not known which."""
    while path != path.parent:
        try:
            path.stat()
            break
        except (FileNotFoundError, NotADirectoryError):
            path = path.parent
    return path


def disk(name: str, place: str, free_bytes: float | None, *, warn_bytes: float, fix: str) -> Check:
    """Judge the free space of a folder (None if there is no such folder): below `warn_bytes`, or below a fiftieth of it."""
    if free_bytes is None:
        return bad(name, "note", f"there is no {place}", "mount it if a data loader needs shared memory")
    message = f"{size(int(free_bytes))} free in {place}"
    if free_bytes >= warn_bytes:
        return fine(name, message)
    level: Level = "error" if free_bytes < warn_bytes / 50 else "warning"
    return bad(name, level, f"{message}, less than {size(int(warn_bytes))}", fix)


def _free(folder: Path) -> float | None:
    try:
        return float(shutil.disk_usage(folder).free)
    except OSError:
        return None


def memory() -> list[Check]:
    import psutil

    free_bytes = float(psutil.virtual_memory().available)
    # A container's limit is in a different file in each version of cgroups; its page cache can be reclaimed.
    for limit, used, cached in _CGROUP_MEMORY:
        with suppress(OSError, ValueError, KeyError):
            rows = dict(line.split(maxsplit=1) for line in _cgroup(f"{Path(limit).parent}/memory.stat").splitlines())
            free_bytes = min(free_bytes, float(_cgroup(limit)) - float(_cgroup(used)) + int(rows[cached]))
    return [memory_per_cpu(free_bytes, cores.available().count)]


def memory_per_cpu(free_bytes: float, cpus: int) -> Check:
    message = f"{size(int(free_bytes))} free for {cpus} CPUs"
    if free_bytes >= cpus * _MEMORY_PER_CPU:
        return fine("memory", message)
    fits = max(1, int(free_bytes / _MEMORY_PER_CPU))
    return bad("memory", "warning", f"{message}: a task needs about 1 GB", f"use at most --workers {fits}")


def _cgroup(name: str) -> str:
    return (_CGROUP / name).read_text().strip()


def limits() -> list[Check]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    for name in ("pids.max", "pids/pids.max"):
        with suppress(OSError, ValueError):
            allowed = int(_cgroup(name))
            processes = allowed if processes == resource.RLIM_INFINITY else min(processes, allowed)
    return [
        limit("files", files, _OPEN_FILES, "open files", f"ulimit -n {4 * _OPEN_FILES}"),
        limit("processes", processes, _PROCESSES, "processes and threads", f"ulimit -u {4 * _PROCESSES}"),
    ]


def limit(name: str, allowed: int, enough: int, what: str, fix: str) -> Check:
    if allowed == resource.RLIM_INFINITY:
        return fine(name, f"unlimited {what}")
    message = f"{allowed} {what}"
    return fine(name, message) if allowed >= enough else bad(name, "warning", f"only {message}", fix)


def processes() -> list[Check]:
    try:
        command = [sys.executable, "-I", "-c", _PROGRAM]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, start_new_session=True, check=False
        )
        words = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()
        failure = "" if done.returncode == 0 else words[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = str(error)
    if not failure:
        return [fine("fork", "processes start, fork and share semaphores")]
    return [bad("fork", "error", f"a process failed: {failure}", "raise ulimit -u, and mount /dev/shm")]


def ports() -> list[Check]:
    """Reserve ports as a run does, and connect to this machine over one."""
    try:
        with ExitStack() as stack:
            reserved = PortReservation(["one", "two"])
            stack.callback(reserved.close)
            server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            server.settimeout(_LIMIT_S)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", reserved.ports["one"]))
            server.listen()
            client = stack.enter_context(socket.create_connection(server.getsockname(), timeout=_LIMIT_S))
            other = stack.enter_context(server.accept()[0])
            client.sendall(b"x")
            other.recv(1)
    except OSError as error:
        fix = "bring up the loopback interface (ip link set lo up), or allow it in the firewall or sandbox"
        return [bad("ports", "error", f"no connection to 127.0.0.1: {error.strerror or error}", fix)]
    return [fine("ports", "can be reserved, and 127.0.0.1 accepts connections")]


def names() -> list[Check]:
    try:
        return [localhost(sorted({str(address[4][0]) for address in socket.getaddrinfo("localhost", None)}))]
    except OSError as error:
        return [localhost([], error.strerror or str(error))]


def localhost(addresses: Sequence[str], failure: str = "") -> Check:
    if "127.0.0.1" in addresses:
        return fine("localhost", f"is {', '.join(addresses)}")
    message = f"is {', '.join(addresses)}, not 127.0.0.1" if addresses else f"does not resolve: {failure}"
    return bad("localhost", "error", message, "add the line '127.0.0.1 localhost' to /etc/hosts")


def proxies(environ: Mapping[str, str]) -> list[Check]:
    """Look for a proxy that applies to this machine itself. Its address may contain a password and is not printed."""
    kinds = [name for name in environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")]
    named = sorted(name for name in kinds if environ[name])
    if not named:
        return [fine("proxy", "none is set")]
    exceptions = {"no": environ.get("no_proxy") or environ.get("NO_PROXY") or ""}
    bypassed = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
    hosts = [host for host in ("localhost", "127.0.0.1") if not bypassed(host, exceptions)]
    if not hosts:
        return [fine("proxy", f"{', '.join(named)}, but not for localhost")]
    message = f"{', '.join(named)} also applies to {' and '.join(hosts)}"
    no_proxy = ",".join(part for part in (exceptions["no"], *hosts) if part)
    return [bad("proxy", "warning", message, f"export no_proxy={shlex.quote(no_proxy)}")]


def isolation() -> list[Check]:
    why = namespaces.why_not()
    if why is None:
        return [fine("namespaces", "--local-network isolated is available")]
    fix = "run as root or allow user namespaces if you need it"
    return [bad("namespaces", "note", f"--local-network isolated is not available: {why.rstrip('.')}", fix)]
