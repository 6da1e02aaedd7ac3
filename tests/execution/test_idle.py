"""Containers with only idle GPUs end the run (`test_hosts.py`); one that computes keeps it going."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nvml import one_gpu

from sdk.job.values import changed

from .cloud import Cloud

pytestmark = pytest.mark.full

# They end when the test says so.
PROGRAM = """
import os, pathlib, time
while not pathlib.Path(os.environ["SHARED"], "end").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def gang(cloud: Cloud, write, tmp_path: Path, monkeypatch) -> Iterator[Callable[..., tuple]]:
    """Start two containers, each with a GPU and its use in a file."""

    def start(**uses: int) -> tuple:
        write("train.py", PROGRAM)
        # This machine has no GPUs, so that a plan of it would be refused.
        plan = cloud.plan("train.py", resources={"workers": 2})
        limits = changed(plan.job.limits, idle_accelerator_s=1.5)
        plan = replace(plan, job=changed(plan.job, limits=limits))
        words, files, containers = cloud.order(plan), {}, {}
        for task in plan.tasks:
            variables, files[task] = one_gpu(tmp_path / task, uses[task.partition("-")[0]])
            variables |= {"CUDA_VISIBLE_DEVICES": "0", "SHARED": str(tmp_path)}
            containers[task] = cloud.start(plan, words, task, **variables)
        return plan, containers, files

    yield start


def test_one_that_computes_keeps_the_run_going_until_it_is_idle_too(cloud: Cloud, gang, tmp_path: Path) -> None:
    plan, containers, files = gang(chief=0, worker=50)
    said = RunKeys(cloud, plan)
    cloud.until(lambda: said.idle() == {"chief-0"}, "the chief is idle", *containers.values())
    files["chief-0"].write_text("50")
    cloud.until(lambda: said.idle() == set(), "the chief is used again", *containers.values())
    (tmp_path / "end").touch()
    assert {task: container.code() for task, container in containers.items()} == dict.fromkeys(plan.tasks, 0)


class RunKeys:
    """The reports of the containers."""

    def __init__(self, cloud: Cloud, plan) -> None:
        self._cloud, self._plan = cloud, plan

    def idle(self) -> set[str]:
        blobs = self._cloud.gcs.client().list_blobs(
            "mine", prefix=f"podlift/runs/{self._plan.run_id}/attempts/0001/idle/"
        )
        return {Path(blob.name).stem for blob in blobs}
