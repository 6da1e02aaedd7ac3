"""What the processes of a task use of their machine, read from /proc, cgroup files and NVML. Only the standard library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..clock import Clock
from ..job.layout import RunPaths
from ..records import machine
from ..records.machine import GpuUse, MachineSample

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
# Fields of /proc/PID/stat after the name: user and system time, those of children that were waited for too.
_TIMES = slice(11, 15)
# A task that starts more processes than that is known by the first ones.
_MOST_PROCESSES = 256
_MOST_GPUS = 16
_EARLY_S = 1.0
_NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Counters of a task since its start, and what it holds now."""

    cpu_s: float
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    received_bytes: int
    sent_bytes: int


def read(pid: int, proc: Path = _PROC) -> Reading | None:
    """Return what a process and its children have used; None if it is gone, or this system has no /proc."""
    tick_s, page = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    ticks = memory = read_bytes = written = 0
    for each in _tree(pid, proc):
        with suppress(OSError, ValueError, LookupError):
            fields = (proc / str(each) / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_TIMES]))
            memory += int((proc / str(each) / "statm").read_text().split()[1]) * page
            # Not readable for a process of another user.
            found = dict(line.split(": ") for line in (proc / str(each) / "io").read_text().splitlines())
            read_bytes, written = read_bytes + int(found["read_bytes"]), written + int(found["write_bytes"])
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
    found = [pid]
    for each in found:
        # Without this file, in a kernel built so, only the task's own process counts.
        with suppress(OSError, ValueError):
            found += [int(child) for child in (proc / str(each) / "task" / str(each) / "children").read_text().split()]
        if len(found) >= _MOST_PROCESSES:
            break
    return found[:_MOST_PROCESSES]


def _network(path: Path) -> tuple[int, int]:
    """Return the bytes that the network of a process has received and sent: those of its machine, without loopback."""
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
    found = []
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int((cgroup / name).read_text()))
    with suppress(OSError, ValueError, LookupError):
        found.append(int((proc / "meminfo").read_text().splitlines()[0].split()[1]) * 1024)
    return min(found, default=None)


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
            return [each for handle in self._handles(visible) if (each := self._reading(handle)) is not None]
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
    """What was read of a task when its last sample was written."""

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
            begun = _Before(pid, now, reading)
            begun.written = before.written if before else 0
            self._before[task] = begun
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
