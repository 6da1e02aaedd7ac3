"""The use of the machine by a task: counted from /proc and NVML, kept as records, shown to people and programs."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock

from sdk.job.layout import RunPaths
from sdk.process import machine
from sdk.records.machine import GpuUse, MachineSample, MachineUse, interval_s, machine_use, write

DISK = {"disk_read_bytes_s": 0.0, "disk_write_bytes_s": 5.0}
NETWORK = {"network_received_bytes_s": 1.0, "network_sent_bytes_s": 2.0}
MEMORY = {"memory_bytes": 2_000_000_000, "memory_limit_bytes": 8_000_000_000}
GPUS = (GpuUse(use=0.5, memory_bytes=3, memory_limit_bytes=4),)
SAMPLE = MachineSample(time=100.0, cpu_cores=1.5, gpus=GPUS, **MEMORY, **DISK, **NETWORK)
READING = machine.Reading(cpu_s=1.0, memory_bytes=1, read_bytes=0, written_bytes=0, received_bytes=0, sent_bytes=0)
NVML_GPUS = {0: (0, 10), 1: (75, 20)}


class FakeNvml:
    """NVIDIA's library for two GPUs."""

    def __init__(self, name: str) -> None:
        if name != "libnvidia-ml.so.1":
            raise OSError(name)

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(NVML_GPUS)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0 if index.value in NVML_GPUS else 2

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        handle._obj.value = 2
        return 0 if name == b"GPU-of-one" else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, use: Any) -> int:
        use._obj.gpu = NVML_GPUS[handle.value - 1][0]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used, memory._obj.total = NVML_GPUS[handle.value - 1][1], 100
        return 0


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path / "runs" / "digits-aaaaaa"))


def test_a_reading_has_the_time_and_the_bytes_that_a_process_has_used(tmp_path: Path) -> None:
    before = machine.read(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x" * 300_000)
        file.flush()
        os.fsync(file.fileno())
    after = machine.read(os.getpid())
    assert 0.05 <= after.cpu_s - before.cpu_s < 5
    assert after.memory_bytes > 5_000_000
    assert after.written_bytes >= before.written_bytes
    assert machine.read(2**22 + 1) is None
    assert machine.memory_limit() is not None


@pytest.mark.process
def test_the_children_of_a_process_count() -> None:
    child = "import time\nwhile time.process_time() < 0.5: pass\nprint(1, flush=True)\nimport sys; sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            reading = machine.read(process.pid)
        finally:
            process.kill()
    assert reading is not None and reading.cpu_s >= 0.5


def test_the_network_is_the_machines_without_loopback_and_the_limit_the_containers(tmp_path) -> None:
    folder = tmp_path / "7"
    (folder / "net").mkdir(parents=True)
    (folder / "stat").write_text("7 (a ) b) S " + " ".join(["0"] * 10 + ["100", "50", "0", "0"]))
    (folder / "statm").write_text("9 3 1")
    lines = ["lo: 5 0 0 0 0 0 0 0 5 0", "eth0: 11 0 0 0 0 0 0 0 22 0", "eth1:1 0 0 0 0 0 0 0 2 0"]
    (folder / "net" / "dev").write_text("\n".join(["head", "head", *lines]))
    reading = machine.read(7, tmp_path)
    assert (reading.received_bytes, reading.sent_bytes) == (12, 24)
    assert reading.cpu_s == 150 / os.sysconf("SC_CLK_TCK")
    assert reading.memory_bytes == 3 * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "meminfo").write_text("MemTotal:  4000 kB\n")
    assert machine.memory_limit(tmp_path, tmp_path) == 4_096_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory_limit(tmp_path, tmp_path) == 4_096_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert machine.memory_limit(tmp_path, tmp_path) == 1000


@pytest.mark.parametrize(
    ("visible", "uses"), [(None, [0.0, 0.75]), ("1", [0.75]), ("GPU-of-one", [0.75]), ("", []), ("-1", []), ("7", [])]
)
def test_a_task_has_the_gpus_that_it_sees(monkeypatch, visible: str | None, uses: list[float]) -> None:
    assert machine.Gpus("no-such-library.so").read(visible) == []
    monkeypatch.setattr(ctypes, "CDLL", FakeNvml)
    gpus = machine.Gpus().read(visible)
    assert [gpu.use for gpu in gpus] == uses
    assert [gpu.memory_bytes for gpu in gpus] == [NVML_GPUS[int(use > 0)][1] for use in uses]
    assert all(gpu.memory_limit_bytes == 100 for gpu in gpus)


def test_samples_come_after_two_seconds_then_every_ten_and_rarely_in_a_long_run(paths: RunPaths) -> None:
    clock = FakeClock()
    sampler = machine.Sampler(paths, 1, clock)
    assert machine_use(paths, "chief-0") is None
    for _ in range(400):
        sampler.update(lambda: [("chief-0", os.getpid(), "")])
        clock.sleep(1)
    use = machine_use(paths, "chief-0")
    times = [sample.time - 1000 for sample in use.samples]
    assert times[:3] == [2, 12, 22]
    assert len(times) == 40
    assert use.last == use.samples[-1] != use.samples[0]
    assert use.last.memory_bytes > 5_000_000
    assert use.last.gpus == ()
    week = count = 0
    while week < 7 * 86400:
        week += int(interval_s(count))
        count += 1
    assert count < 3100


def test_a_task_that_starts_again_counts_from_its_own_beginning(paths: RunPaths, monkeypatch) -> None:
    clock = FakeClock()
    readings = {1: replace(READING, cpu_s=500.0), 2: replace(READING, cpu_s=0.0)}
    monkeypatch.setattr(machine, "read", readings.get)
    sampler = machine.Sampler(paths, 1, clock)
    for pid in (1, 1, 2, 2):
        sampler.update(lambda pid=pid: [("chief-0", pid, "")])
        clock.sleep(10)
    use = machine_use(paths, "chief-0")
    assert [sample.cpu_cores for sample in use.samples] == [0.0, 0.0]


def test_a_sample_has_the_use_per_second_since_the_one_before(paths: RunPaths, monkeypatch) -> None:
    clock = FakeClock()

    def read(pid: int) -> machine.Reading:
        passed = clock.time - 1000
        disk = {"read_bytes": int(passed * 1000), "written_bytes": int(passed * 2000)}
        network = {"received_bytes": int(passed * 3000), "sent_bytes": int(passed * 4000)}
        return machine.Reading(cpu_s=1.5 * passed, memory_bytes=7, **disk, **network)

    monkeypatch.setattr(machine, "read", read)
    sampler = machine.Sampler(paths, 1, clock)
    # A supervisor that was busy is late.
    for pause_s in (0, 2, 10, 17):
        clock.sleep(pause_s)
        sampler.update(lambda: [("chief-0", 1, "")])
    use = machine_use(paths, "chief-0")
    assert use is not None and [sample.time for sample in use.samples] == [1002, 1012, 1029]
    for sample in use.samples:
        assert (sample.cpu_cores, sample.memory_bytes) == (1.5, 7)
        assert (sample.disk_read_bytes_s, sample.disk_write_bytes_s) == (1000, 2000)
        assert (sample.network_received_bytes_s, sample.network_sent_bytes_s) == (3000, 4000)


def test_samples_that_are_damaged_are_left_out_and_the_others_are_summed_up(paths: RunPaths) -> None:
    path = paths.machine(1, "chief-0")
    write(path, SAMPLE)
    with Path(path).open("ab") as file:
        file.write(b'{"time": "x"}\nnot json\n[]\n' + json.dumps({"time": float("nan")}).encode() + b"\n")
    write(path, replace(SAMPLE, time=102.0, cpu_cores=0.5, memory_bytes=1, gpus=()))
    use = machine_use(paths, "chief-0")
    assert use.samples[0] == SAMPLE
    assert (use.mean_cpu_cores, use.peak_memory_bytes, use.mean_gpu_use) == (1.0, 2_000_000_000, 0.5)
    assert len(use.samples) == 2


def test_averages_weigh_time_and_not_samples_although_later_samples_are_rarer() -> None:
    idle = GpuUse(use=0.0, memory_bytes=0, memory_limit_bytes=1)
    early = [replace(SAMPLE, time=100.0 + 10 * index, cpu_cores=4.0) for index in range(1, 7)]
    late = replace(SAMPLE, time=160.0 + 540.0, cpu_cores=0.0, gpus=(idle,))
    use = MachineUse(task="chief-0", attempt=1, samples=(*early, late))
    # 52 of 592 seconds, the first sample being one of two seconds.
    assert use.mean_cpu_cores == pytest.approx(4.0 * 52 / 592)
    assert use.mean_gpu_use == pytest.approx(0.5 * 52 / 592)
    back = MachineUse(task="chief-0", attempt=1, samples=(early[1], early[0]))
    assert 0 < back.mean_cpu_cores <= 4.0


def test_a_task_that_ended_before_its_first_sample_does_not_keep_the_sampler_busy(paths: RunPaths, monkeypatch) -> None:
    clock, looks = FakeClock(), []
    monkeypatch.setattr(machine, "read", lambda pid: READING)
    sampler = machine.Sampler(paths, 1, clock)

    def running(second: int) -> list[tuple[str, int, str | None]]:
        looks.append(second)
        return [("chief-0", 1, ""), *([("evaluator-0", 2, "")] if second < 2 else [])]

    for second in range(60):
        sampler.update(lambda second=second: running(second))
        clock.sleep(1)
    assert looks == [0, 2, 12, 22, 32, 42, 52]
    assert machine_use(paths, "evaluator-0") is None
