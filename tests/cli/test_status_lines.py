"""What `podlift status` says about the time of a run and the machines of its tasks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import finished_run, holds

import sdk
from sdk.cli.output import goodput_line, machine_line
from sdk.records.machine import GpuUse, MachineSample, MachineUse, machine_use
from sdk.runtime.account import OTHER, STEP, Account
from sdk.runtime.reporting import ProgressWriter
from sdk.status import Goodput

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


def test_goodput_of_an_earlier_podlift_is_not_recorded_and_a_new_run_names_each_task(root, here) -> None:
    paths = finished_run(root)
    assert "\ngoodput    not recorded\n" in here("status", paths.url).stdout
    assert json.loads(here("status", paths.url, "--json").stdout)["goodput"] is None
    run = sdk.attach(paths.url)
    assert run.goodput() is None
    status, tasks, time = run.status(), run.plan.tasks, [0]
    for task in tasks:
        time[0] = 0
        # It began with the attempt, trained for 2 s and was done for another one.
        account = Account(lambda: time[0], lambda: status.created + status.timings["started"] + time[0] / 1e9)
        writer = ProgressWriter(paths.progress(1, task), account)
        for part, seconds in ((STEP, 2), (OTHER, 1), (OTHER, 1)):
            account.enter(part)
            time[0] += seconds * 10**9
        writer.step()
    shown = here("status", paths.url, "-v").stdout
    assert [line.split()[1].rstrip(":") for line in shown.splitlines() if line.startswith("goodput")] == tasks
    holds(shown, "step 2 s", lacks=["input wait"])


def test_the_line_has_the_parts_that_took_time_and_the_steps_that_were_done_again() -> None:
    parts = {"start_s": 7.84, "step_s": 672.06, "input_wait_s": 0.02, "lost_to_failures_s": 20.1}
    said = "96.0% of 11 min 40 s: start 7.8 s, step 11 min 12 s, lost to failures 20.1 s (1 step again)"
    assert goodput_line(Goodput(task="chief-0", total_s=700.0, steps_lost=1, **parts)) == said
    assert goodput_line(Goodput(task="chief-0")).startswith("0.0% of 0 s")


def test_a_line_has_the_last_use_and_after_the_end_the_mean_and_the_peak_of_memory() -> None:
    def said(*samples: MachineSample, ended: bool = False) -> str:
        return machine_line(MachineUse(task="chief-0", attempt=1, samples=samples), ended=ended)

    expected = "CPU 1.5 cores, memory 2.0 GB of 8.0 GB, GPU 50%, 3.0 MB of 4.0 GB, disk 5.0 kB/s, network 20 bytes/s"
    assert said(SAMPLE) == expected
    bare = replace(SAMPLE, gpus=(), memory_limit_bytes=None)
    assert said(bare) == "CPU 1.5 cores, memory 2.0 GB, disk 5.0 kB/s, network 20 bytes/s"
    idle = replace(SAMPLE, time=108.0, cpu_cores=0.0, memory_bytes=1, gpus=(replace(SAMPLE.gpus[0], use=0.0),))
    expected = "CPU mean 0.3 cores, memory peak 2.0 GB of 8.0 GB, GPU mean 10%, 3.0 MB of 4.0 GB, disk mean 5.0 kB/s, "
    assert said(SAMPLE, idle, ended=True) == f"{expected}network mean 20 bytes/s"


@pytest.mark.process
def test_a_run_keeps_the_machine_use_of_its_tasks_and_status_shows_it(write, here) -> None:
    write("train.py", "import time\nwhile time.process_time() < 0.2: pass\ntime.sleep(3.5)")
    run = sdk.submit("train.py")
    run.wait(60)
    found = machine_use(run.plan.paths, "chief-0")
    assert found is not None and found.last.memory_bytes > 1_000_000
    line = next(line for line in here("status", run.id, "-v").stdout.splitlines() if line.startswith("machine"))
    holds(line, "machine    chief-0: CPU mean ", "memory peak ", lacks=["GPU"])
    assert "machine " not in here("status", run.id).stdout
    told = json.loads(here("status", run.id, "--json").stdout)["machine"]["chief-0"]
    assert told["memory_bytes"] == found.last.memory_bytes
    assert told["peak_memory_bytes"] >= told["memory_bytes"] and told["gpus"] == []
