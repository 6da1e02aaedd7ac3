"""What `podlift status` says about the machine of each task."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import sdk
from sdk.cli.output import machine_line
from sdk.records.machine import GpuUse, MachineSample, MachineUse, machine_use

SAMPLE = MachineSample(
    time=100.0,
    cpu_cores=1.53,
    memory_bytes=2_000_000_000,
    memory_limit_bytes=8_000_000_000,
    disk_read_bytes_s=0.4,
    disk_write_bytes_s=5000.0,
    network_received_bytes_s=0.0,
    network_sent_bytes_s=20.0,
    gpus=(GpuUse(use=0.5, memory_bytes=3_000_000, memory_limit_bytes=4_000_000_000),),
)


def test_a_line_has_the_last_use_and_after_the_end_the_mean_and_the_peak_of_memory() -> None:
    use = MachineUse(task="chief-0", attempt=1, samples=(SAMPLE,))
    expected = "CPU 1.5 cores, memory 2.0 GB of 8.0 GB, GPU 50%, 3.0 MB of 4.0 GB, disk 5.0 kB/s, network 20 bytes/s"
    assert machine_line(use) == expected
    bare = replace(SAMPLE, gpus=(), memory_limit_bytes=None)
    assert (
        machine_line(replace(use, samples=(bare,))) == "CPU 1.5 cores, memory 2.0 GB, disk 5.0 kB/s, network 20 bytes/s"
    )
    idle = replace(SAMPLE, time=108.0, cpu_cores=0.0, memory_bytes=1, gpus=(replace(SAMPLE.gpus[0], use=0.0),))
    expected = "CPU mean 0.3 cores, memory peak 2.0 GB of 8.0 GB, GPU mean 10%, 3.0 MB of 4.0 GB, disk mean 5.0 kB/s, "
    assert machine_line(replace(use, samples=(SAMPLE, idle)), ended=True) == f"{expected}network mean 20 bytes/s"


@pytest.mark.process
def test_a_run_keeps_the_machine_use_of_its_tasks_and_status_shows_it(write, here) -> None:
    write("train.py", "import time\nwhile time.process_time() < 0.2: pass\ntime.sleep(3.5)")
    run = sdk.submit("train.py")
    run.wait(60)
    found = machine_use(run.plan.paths, "chief-0")
    assert found is not None and found.last.memory_bytes > 1_000_000
    line = next(line for line in here("status", run.id, "-v").stdout.splitlines() if line.startswith("machine"))
    assert line.startswith("machine    chief-0: CPU mean ") and "memory peak " in line and "GPU" not in line
    assert "machine " not in here("status", run.id).stdout
    told = json.loads(here("status", run.id, "--json").stdout)["machine"]["chief-0"]
    assert told["memory_bytes"] == found.last.memory_bytes
    assert told["peak_memory_bytes"] >= told["memory_bytes"] and told["gpus"] == []
