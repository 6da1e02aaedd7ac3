"""The usage of a machine by the processes of a task, from /proc, cgroup files and NVML. Only the standard library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..clock import Clock
from ..job import cluster
from ..job.layout import RunPaths
from ..records import machine
from ..records.machine import GpuUse, MachineSample
from ..records.recorder import Recorder
from ..status import Failure
from ..text import compact_duration

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
# Fields of /proc/PID/stat after the name: user and system time, then the same of children that were waited for.
_TIMES = slice(11, 15)
# A task that starts more processes than that is known by the first ones.
_MOST_PROCESSES = 256
_MOST_GPUS = 16
_EARLY_S = 1.0
_NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters of a task since its start, and its current memory."""

    cpu_s: float
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    received_bytes: int
    sent_bytes: int


def read(pid: int, proc: Path = _PROC) -> Reading | None:
    """Return the usage of a process and its children; None if it is gone, or this system has no /proc."""
    tick_s, page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    ticks = memory = read_bytes = written = 0
    for process in _tree(pid, proc):
        with suppress(OSError, ValueError, LookupError):
            fields = (proc / str(process) / "stat").read_bytes().rpartition(b")")[2].split()
            ticks += sum(map(int, fields[_TIMES]))
            memory += int((proc / str(process) / "statm").read_text().split()[1]) * page
            # Not readable for a process of another user.
            counters = dict(line.split(": ") for line in (proc / str(process) / "io").read_text().splitlines())
            read_bytes, written = read_bytes + int(counters["read_bytes"]), written + int(counters["write_bytes"])
    if not ticks and not memory:
        return None
    received, sent = _network(proc / str(pid) / "net" / "dev")
    return Reading(
        cpu_s=ticks * tick_s,
        memory_bytes=memory,
        read_bytes=read_bytes,
        written_bytes=written,
        received_bytes=received,
        sent_bytes=sent,
    )


def _tree(pid: int, proc: Path) -> list[int]:
    pids = [pid]
    for process in pids:
        # Without this file, in a kernel built so, only the task's own process counts.
        with suppress(OSError, ValueError):
            pids += [
                int(child) for child in (proc / str(process) / "task" / str(process) / "children").read_text().split()
            ]
        if len(pids) >= _MOST_PROCESSES:
            break
    return pids[:_MOST_PROCESSES]


def _network(path: Path) -> tuple[int, int]:
    """Return the bytes that the network of a process has received and sent: all traffic of its machine, without loopback."""
    received = sent = 0
    with suppress(OSError, ValueError, LookupError):
        for line in path.read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            fields = numbers.split()
            if name.strip() != "lo":
                received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def memory_limit(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int | None:
    """Return the memory that the container or the machine has, in bytes."""
    limits = []
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int((cgroup / name).read_text()))
    with suppress(OSError, ValueError, LookupError):
        limits.append(int((proc / "meminfo").read_text().splitlines()[0].split()[1]) * 1024)
    return min(limits, default=None)


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _GpuMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs of this machine by NVML, NVIDIA's library; none where it is not installed."""

    def __init__(self, library: str = _NVML) -> None:
        self._library = library

    @cached_property
    def _nvml(self) -> ctypes.CDLL | None:
        # Loaded with the first reading.
        with suppress(OSError, AttributeError):
            nvml = ctypes.CDLL(self._library)
            return nvml if nvml.nvmlInit_v2() == 0 else None
        return None

    def read(self, visible: str | None) -> list[GpuUse]:
        """Return the GPUs that a task sees, by its CUDA_VISIBLE_DEVICES; None for all."""
        with suppress(OSError, AttributeError, ValueError):
            return [use for handle in self._handles(visible) if (use := self._reading(handle)) is not None]
        return []

    def _handles(self, visible: str | None) -> Sequence[ctypes.c_void_p]:
        if self._nvml is None:
            return []
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        names = map(str, range(min(count.value, _MOST_GPUS))) if visible is None else visible.split(",")
        return [handle for name in names if (handle := self._handle(name.strip())) is not None]

    def _handle(self, name: str) -> ctypes.c_void_p | None:
        handle, nvml = ctypes.c_void_p(), self._nvml
        if nvml is None or not name or name == "-1":
            return None
        if name.isdecimal():
            return (
                None if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle)) else handle
            )
        return None if nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) else handle

    def _reading(self, handle: ctypes.c_void_p) -> GpuUse | None:
        use, memory, nvml = _Utilization(), _GpuMemory(), self._nvml
        if nvml is None or nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)):
            return None
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return None
        return GpuUse(use=use.gpu / 100, memory_bytes=memory.used, memory_limit_bytes=memory.total)


class _Before:
    """The reading of a task at its last sample."""

    def __init__(self, pid: int, time: float, reading: Reading) -> None:
        self.pid, self.time, self.reading = pid, time, reading
        self.written = 0


class Sampler:
    """Called again and again with the processes of the tasks, writes a sample of each when it is due."""

    def __init__(self, paths: RunPaths, attempt: int, clock: Clock, gpus: Gpus | None = None) -> None:
        self._paths, self._attempt, self._clock = paths, attempt, clock
        self._gpus = gpus or Gpus()
        self._before: dict[str, _Before] = {}
        self._due = clock.monotonic()

    def update(self, running: Callable[[], Iterable[tuple[str, int, str | None]]]) -> None:
        """Write the samples that are due.

        Args:
            running: returns name, process and CUDA_VISIBLE_DEVICES of each task: None for all GPUs, "" for none.
        """
        now = self._clock.monotonic()
        if now < self._due:
            return
        begins = not self._before
        for task, pid, visible in running():
            reading = read(pid)
            if reading is not None:
                self._sample(task, pid, now, reading, self._gpus.read(visible))
                begins = begins or not self._before[task].written
        self._due = now + (machine.FIRST_S if begins else machine.SAMPLE_S)

    def _sample(self, task: str, pid: int, now: float, reading: Reading, gpus: Sequence[GpuUse]) -> None:
        before = self._before.get(task)
        if before is None or before.pid != pid:
            baseline = _Before(pid, now, reading)
            baseline.written = before.written if before else 0
            self._before[task] = baseline
            return
        # A little early is on time, or every second sample would be skipped.
        if now - before.time < machine.interval_s(before.written) - _EARLY_S:
            return
        sample = _between(before, now, reading, self._clock.now(), gpus)
        machine.write(self._paths.machine(self._attempt, task), sample)
        before.time, before.reading, before.written = now, reading, before.written + 1


def _between(before: _Before, now: float, reading: Reading, time: float, gpus: Sequence[GpuUse]) -> MachineSample:
    elapsed, old = now - before.time, before.reading

    def rate(first: float, last: float) -> float:
        # A child that has ended takes its bytes with it.
        return round(max(last - first, 0.0) / elapsed, 3)

    return MachineSample(
        time=round(time, 3),
        cpu_cores=rate(old.cpu_s, reading.cpu_s),
        memory_bytes=reading.memory_bytes,
        memory_limit_bytes=memory_limit(),
        disk_read_bytes_s=rate(old.read_bytes, reading.read_bytes),
        disk_write_bytes_s=rate(old.written_bytes, reading.written_bytes),
        network_received_bytes_s=rate(old.received_bytes, reading.received_bytes),
        network_sent_bytes_s=rate(old.sent_bytes, reading.sent_bytes),
        gpus=tuple(gpus),
    )


# NVML only reports the share of the last second: each verdict has several readings.
_READINGS, _LONGEST_S = 12, 5.0
# A desktop draws its windows with less.
_UNUSED = 0.01
UNREADABLE = "limit_idle_accelerator: NVML cannot tell here whether the GPUs are used, so idle ones do not end the run."


class IdleWatch:
    """Adds up the time for which no GPU of some tasks was used, against a limit; None to watch nothing."""

    def __init__(self, limit_s: float | None, gpus: Gpus, recorder: Recorder, clock: Clock) -> None:
        self._limit_s, self._gpus, self._recorder, self._clock = limit_s, gpus, recorder, clock
        self._idle_s, self._read = 0.0, clock.monotonic()
        self._unreadable = False

    def is_idle(self, visible: Callable[[], Iterable[str | None]]) -> bool:
        """Return whether the GPUs were idle for the limit; `visible` returns CUDA_VISIBLE_DEVICES of each running task."""
        if self._limit_s is None:
            return False
        now, every_s = self._clock.monotonic(), min(self._limit_s / _READINGS, _LONGEST_S)
        if now - self._read >= every_s:
            # Time during which this process was suspended is no evidence about the GPUs.
            passed, self._read = min(now - self._read, 2 * every_s), now
            self._add(passed, list(visible()))
        return self._idle_s >= self._limit_s

    @property
    def failure(self) -> Failure:
        limit = compact_duration(self._limit_s or 0.0)
        message = f"The accelerator stood idle: no GPU of the run was used for {limit} (limit_idle_accelerator)."
        return Failure(task="", message=message)

    def _add(self, passed_s: float, tasks: list[str | None]) -> None:
        uses = [gpu.use for visible in tasks for gpu in self._gpus.read(visible)]
        unused = bool(uses) and max(uses) <= _UNUSED
        self._idle_s = self._idle_s + passed_s if unused else 0.0
        if tasks and not uses and not self._unreadable:
            self._unreadable = True
            self._recorder.record("finding", text=UNREADABLE)


def watched(tasks: Iterable[str]) -> list[str]:
    """Return the tasks with GPUs that the training uses: parameter servers have none, and an evaluator mostly waits."""
    return [task for task in tasks if cluster.role_of(task) not in ("ps", "evaluator")]
