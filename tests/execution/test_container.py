"""Containers of a job, from the loader's first word to the exit code: real processes, and a storage on loopback."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from nvml import one_gpu

import sdk
from sdk.job.layout import RunPaths
from sdk.job.values import changed

from .cloud import Cloud
from .hosts import Given, Play

HELLO = """
import os, sdk, sys
ctx = sdk.context()
print("task", ctx.task, ctx.dirs.model, os.environ["AIP_MODEL_DIR"], sys.argv[1:])
open("left.txt", "w").write("left")
ctx.report({"loss": 0.5}, step=1)
"""


def test_one_container_runs_the_program_and_leaves_its_records_in_the_bucket(cloud: Cloud, write) -> None:
    write("train.py", HELLO)
    plan = cloud.plan("train.py", args=["--epochs", "2"])
    # Vertex AI's own output directory may be in a bucket of another region: nothing of a run goes there.
    container = cloud.start(plan, cloud.order(plan), AIP_MODEL_DIR="gs://elsewhere/podlift/model/")
    assert container.code() == 0, container.said
    assert f"task chief-0 {plan.url}/model {plan.url}/model/ ['--epochs', '2']" in container.said
    kinds = ["attempt_started", "entry", "first_step", "done", "exited", "collected"]
    assert [event.kind for event in cloud.events(plan, *kinds)] == kinds
    objects = cloud.objects(plan)
    assert {"outputs/work/left.txt", "attempts/0001/membership.json"} <= objects.keys()
    assert any(name.startswith("attempts/0001/metrics/chief-0.jsonl/") for name in objects)
    assert list(cloud.folder.glob("tmp-0/*")) == []


@pytest.mark.full
def test_a_container_keeps_the_use_of_its_task_where_every_client_finds_it(cloud: Cloud, write) -> None:
    write("train.py", "import time; time.sleep(5)")
    plan = cloud.plan("train.py")
    container = cloud.start(plan, cloud.order(plan))
    assert container.code() == 0, container.said
    (sample, *_) = cloud.objects(plan)["attempts/0001/machine/chief-0.jsonl/000000000000000.part"].splitlines()
    assert json.loads(sample)["memory_bytes"] > 1_000_000


@pytest.mark.full
def test_an_error_is_retried_as_the_job_allows_and_records_hide_the_callers_values(
    cloud: Cloud, write, monkeypatch
) -> None:
    write("train.py", "import os; raise ValueError('no such data ' + os.environ.pop('KEY'))")
    monkeypatch.setenv("KEY", "s3cr3t-value")
    plan = cloud.plan("train.py", env={"KEY": sdk.FromCaller()}, retry={"user_errors": 1})
    words = cloud.order(plan)
    # The service starts the container once more all the same.
    for _ in (1, 2):
        container = cloud.start(plan, words, KEY="s3cr3t-value")
        assert container.code() == 1
    assert "run has ended" in container.said
    records = cloud.events(plan, "failed")
    assert [record.attempt for record in records] == [1, 2]
    assert {record.data["message"] for record in records} == {"no such data ***"}
    assert not any("s3cr3t-value" in record.data["traceback"] for record in records)


REFUSED = {
    "every write": ({}, ["permission denied (403)", "roles/storage.objectUser"]),
    "all after its beginning": ({"nth": [*range(3, 1000)]}, ["trained", "records and outputs could not be uploaded"]),
}


@pytest.mark.parametrize(("which", "words"), REFUSED.values(), ids=REFUSED)
def test_a_missing_write_permission_is_reported_and_the_job_is_not_restarted(cloud, write, which, words) -> None:
    write("train.py", "print('trained')")
    plan = cloud.plan("train.py")
    order = cloud.order(plan)
    cloud.gcs.faults({"kind": "status_before", "status": 403, "method": "POST", **which})
    container = cloud.start(plan, order)
    assert container.code() == 3
    assert [each for each in words if each not in container.said] == []
    assert "Traceback" not in container.said


@pytest.mark.full
def test_preempted_tasks_stop_after_the_same_step_also_where_the_storage_fails(cloud: Cloud, play: Play) -> None:
    player = play("bucket 2", Given(resources={"workers": 2}, retry={"preemptions": None}))
    unavailable = {"kind": "status_before", "status": 503, "probability": 0.1, "seed": 1}
    cloud.gcs.faults(unavailable, {"kind": "drop_after", "probability": 0.1, "seed": 2})
    player.reach("step")
    # As a task that trains writes it down when it gets SIGTERM.
    question = json.dumps({"action": "preempt", "step": 0}).encode()
    store = cloud.store(player.plan)
    store.put_new(f"{RunPaths('').rendezvous(1)}/000001.question.json", [question])
    player.reach("step", attempt=2)
    player.finish()
    player.wait()
    assert player.codes == dict.fromkeys(player.plan.tasks, 0)
    places = [re.findall(r"saves after step (\d+)", container.said) for container in player.containers.values()]
    assert len(places[0]) == 1 and places == [places[0]] * 2
    cloud.gcs.faults()
    exits = {e.data["task"]: (e.data["code"], e.data["reason"]) for e in player.events("exited") if e.attempt == 1}
    assert exits == dict.fromkeys(player.plan.tasks, (75, "checkpointed"))
    claims = [json.loads(bytes(store.get(RunPaths("").membership(number)))) for number in (1, 2)]
    assert claims[0]["members"] == claims[1]["members"]


# They end when the test says so.
WAITS = """
import os, pathlib, time
while not pathlib.Path(os.environ["SHARED"], "end").exists():
    time.sleep(0.05)
"""


@pytest.mark.full
def test_one_that_computes_keeps_the_run_going_until_it_is_idle_too(cloud: Cloud, write, tmp_path: Path) -> None:
    write("train.py", WAITS)
    # This machine has no GPUs, so that a plan of it would be refused.
    plan = cloud.plan("train.py", resources={"workers": 2})
    plan = replace(plan, job=changed(plan.job, limits=changed(plan.job.limits, idle_accelerator_s=1.5)))
    words, files, containers = cloud.order(plan), {}, {}
    for task, use in {"chief-0": 0, "worker-0": 50}.items():
        variables, files[task] = one_gpu(tmp_path / task, use)
        variables |= {"CUDA_VISIBLE_DEVICES": "0", "SHARED": str(tmp_path)}
        containers[task] = cloud.start(plan, words, task, **variables)

    def idle() -> set[str]:
        return {Path(name).stem for name in cloud.objects(plan, "attempts/0001/idle/")}

    cloud.until(lambda: idle() == {"chief-0"}, "the chief is idle", *containers.values())
    files["chief-0"].write_text("50")
    cloud.until(lambda: idle() == set(), "the chief is used again", *containers.values())
    (tmp_path / "end").touch()
    assert {task: container.code() for task, container in containers.items()} == dict.fromkeys(plan.tasks, 0)
