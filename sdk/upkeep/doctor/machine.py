"""What tasks need of the machine: disk, memory, processes, ports, names, namespaces, a clock."""

from __future__ import annotations

import math
import os
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

from ...process import namespaces
from ...process.ports import PortReservation
from .check import Check, Level, bad, fine

_GB = 1e9
# TensorFlow, Keras and a small model take 0.6 GB in each task.
_MEMORY_PER_CPU = 1.0 * _GB
_LIMIT_S = 30.0
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
_OPEN_FILES, _PROCESSES = 1024, 1024
# Seconds since 1970: in the past of whoever reads this, and so far away that nobody meets it.
_EARLIEST, _LATEST = 1_735_689_600, 4_102_444_800
# What TensorFlow, its data loaders and podlift do: fork, wait, share a semaphore, leave a session.
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
    """Look at the free space where runs, temporary files and shared memory go."""
    place = Path(root)
    while not place.exists() and place != place.parent:
        place = place.parent
    temporary = Path(tempfile.gettempdir())
    checks = [
        disk(
            "disk", str(place), _free(place), warn_bytes=5 * _GB, fix="podlift prune, or another root by PODLIFT_ROOT"
        ),
        disk("tmp", str(temporary), _free(temporary), warn_bytes=_GB, fix="set TMPDIR to a larger disk"),
    ]
    if sys.platform.startswith("linux"):
        shared = Path("/dev/shm")  # noqa: S108
        checks.append(disk("shm", str(shared), _free(shared), warn_bytes=0.1 * _GB, fix="docker run --shm-size=1g"))
    return checks


def disk(name: str, place: str, free_bytes: float | None, *, warn_bytes: float, fix: str) -> Check:
    """Judge the free space of one place.

    Args:
        name: of the line.
        place: a folder.
        free_bytes: what an ordinary user may still write there; None where there is no such folder.
        warn_bytes: less is worth a warning, and a fiftieth of it is too little for anything.
        fix: how there is more.
    """
    if free_bytes is None:
        return bad(name, "note", f"there is no {place}", "mount it, if a data loader of yours needs shared memory")
    said = f"{free_bytes / _GB:.1f} GB are free at {place}"
    if free_bytes >= warn_bytes:
        return fine(name, said)
    level: Level = "error" if free_bytes < warn_bytes / 50 else "warning"
    return bad(name, level, f"{said}, less than {warn_bytes / _GB:g}", fix)


def _free(place: Path) -> float | None:
    try:
        return float(shutil.disk_usage(place).free)
    except OSError:
        return None


def memory() -> list[Check]:
    """Look at the memory for each CPU."""
    try:
        free_bytes = _numbers(Path("/proc/meminfo"))["MemAvailable:"] * 1024.0
    except (OSError, KeyError):
        return []
    # A container's own limit is another file in each generation of cgroups; what it has cached can be had back.
    for limit, used, cached in _CGROUP_MEMORY:
        with suppress(OSError, ValueError, KeyError):
            cache = _numbers(_CGROUP / Path(limit).parent / "memory.stat")[cached]
            free_bytes = min(free_bytes, float(_cgroup(limit)) - float(_cgroup(used)) + cache)
    return [memory_per_cpu(free_bytes, _cpus())]


def _numbers(file: Path) -> dict[str, int]:
    rows = (line.split() for line in file.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


def memory_per_cpu(free_bytes: float, cpus: int) -> Check:
    """Judge the memory that is free."""
    said = f"{free_bytes / _GB:.1f} GB are free for {cpus} CPUs"
    if free_bytes >= cpus * _MEMORY_PER_CPU:
        return fine("memory", said)
    fits = max(1, int(free_bytes / _MEMORY_PER_CPU))
    return bad("memory", "warning", f"{said}: a task takes about 1 GB", f"use at most --workers {fits}")


def _cpus() -> int:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = _cgroup("cpu.max").split()
        cpus = min(cpus, math.ceil(int(quota) / int(period)))
    return cpus


def _cgroup(name: str) -> str:
    return (_CGROUP / name).read_text().strip()


def limits() -> list[Check]:
    """Look at how many files and processes there may be."""
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
    """Judge a limit of the kernel: -1 stands for none."""
    if allowed == resource.RLIM_INFINITY:
        return fine(name, f"any number of {what}")
    said = f"{allowed} {what}"
    return fine(name, said) if allowed >= enough else bad(name, "warning", f"{said} are few", fix)


def processes() -> list[Check]:
    """Start a process that forks, as every run does."""
    try:
        command = [sys.executable, "-I", "-c", _PROGRAM]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, start_new_session=True, check=False
        )
        words = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()
        trouble = "" if done.returncode == 0 else words[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if not trouble:
        return [fine("fork", "processes start, fork and share semaphores")]
    return [bad("fork", "error", f"a process could not do its work: {trouble}", "raise ulimit -u, and mount /dev/shm")]


def ports() -> list[Check]:
    """Reserve ports as a run does, and talk to this machine over one."""
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
    return [fine("ports", "can be reserved, and 127.0.0.1 answers")]


def names() -> list[Check]:
    """Look at what `localhost` means here, where a cluster's tasks may find each other by that name."""
    try:
        return [localhost(sorted({str(found[4][0]) for found in socket.getaddrinfo("localhost", None)}))]
    except OSError as error:
        return [localhost([], error.strerror or str(error))]


def localhost(addresses: Sequence[str], trouble: str = "") -> Check:
    """Judge the addresses of `localhost`."""
    if "127.0.0.1" in addresses:
        return fine("localhost", f"is {', '.join(addresses)}")
    said = f"is {', '.join(addresses)}, not 127.0.0.1" if addresses else f"is no known name: {trouble}"
    return bad("localhost", "error", said, "add the line '127.0.0.1 localhost' to /etc/hosts")


def proxies(environ: Mapping[str, str]) -> list[Check]:
    """Look for a proxy that would be asked for this very machine; its address may hold a password, and is not said."""
    kinds = [name for name in environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")]
    named = sorted(name for name in kinds if environ[name])
    if not named:
        return [fine("proxy", "none is set")]
    spared = {"no": environ.get("no_proxy") or environ.get("NO_PROXY") or ""}
    asked = [host for host in ("localhost", "127.0.0.1") if not _bypassed(host, spared)]
    if not asked:
        return [fine("proxy", f"{', '.join(named)}, and not for localhost")]
    said = f"{', '.join(named)} would be asked for {' and '.join(asked)} too"
    wanted = ",".join(part for part in (spared["no"], *asked) if part)
    return [bad("proxy", "warning", said, f"export no_proxy={shlex.quote(wanted)}")]


def _bypassed(host: str, spared: Mapping[str, str]) -> bool:
    return bool(urllib.request.proxy_bypass_environment(host, dict(spared)))  # type: ignore[attr-defined]


def isolation() -> list[Check]:
    """Look whether --local-network isolated can be had."""
    why = namespaces.why_not()
    if why is None:
        return [fine("namespaces", "--local-network isolated can be had")]
    fix = "run as root or allow user namespaces, if you need it"
    return [bad("namespaces", "note", f"--local-network isolated cannot be had: {why.rstrip('.')}", fix)]


def clock(now: float) -> Check:
    """Judge the time, by which records are put in order."""
    if _EARLIEST <= now <= _LATEST:
        return fine("clock", "plausible")
    return bad("clock", "error", f"it is not {now:.0f} s after 1970", "set the clock of this machine")
