"""Containers of a job, from the loader's first word to the exit code: real processes, and a storage on loopback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sdk
from sdk.job.layout import RunPaths
from sdk.job.plan import Plan

from .cloud import BUCKET, Cloud, Container

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
    kinds = [
        event.kind
        for event in cloud.events(plan, "attempt_started", "entry", "first_step", "done", "exited", "collected")
    ]
    assert kinds == ["attempt_started", "entry", "first_step", "done", "exited", "collected"]
    blobs = {blob.name.removeprefix(f"podlift/runs/{plan.run_id}/") for blob in cloud.gcs.client().list_blobs(BUCKET)}
    assert {"outputs/work/left.txt", "attempts/0001/membership.json"} <= blobs
    assert any(name.startswith("attempts/0001/metrics/chief-0.jsonl/") for name in blobs)
    assert list(cloud.folder.glob("tmp-0/*")) == []


@pytest.mark.full
def test_a_container_keeps_what_its_task_uses_where_every_client_finds_it(cloud: Cloud, write, monkeypatch) -> None:
    write("train.py", "import time; time.sleep(5)")
    plan = cloud.plan("train.py")
    container = cloud.start(plan, cloud.order(plan))
    assert container.code() == 0, container.said
    key = f"podlift/runs/{plan.run_id}/attempts/0001/machine/chief-0.jsonl/000000000000000.part"
    (sample, *_) = cloud.gcs.client().bucket(BUCKET).blob(key).download_as_bytes().splitlines()
    assert json.loads(sample)["memory_bytes"] > 1_000_000


# Every step ends when all tasks have taken part in it, as in training; a second attempt ends by itself.
IN_STEP = """
import os, pathlib, sdk, sys, time
ctx = sdk.context()
shared = pathlib.Path(os.environ["SHARED"], os.environ["PODLIFT_ATTEMPT"])
shared.mkdir(exist_ok=True)
for step in range(1, 40 if os.environ["PODLIFT_ATTEMPT"] == "2" else 100_000):
    (shared / ctx.task).write_text(str(step))
    def least():
        return min(int((shared / task).read_text() or 0) if (shared / task).exists() else 0 for task in ctx.tasks)
    while least() < step:
        time.sleep(0.002)
    if ctx.should_stop():
        print(f"stopped at {step}", flush=True)
        sys.exit(75)
    time.sleep(0.01)
"""


def stopped_at(container) -> list[str]:
    return re.findall(r"stopped at (\d+)", container.said)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def in_step(cloud: Cloud, write, shared: Path, *faults: dict) -> tuple[Plan, dict[str, Container]]:
    """Start two containers whose tasks step together, in a storage with faults, and wait until they train."""
    write("train.py", IN_STEP)
    plan = cloud.plan("train.py", resources={"workers": 2}, retry={"preemptions": None})
    words = cloud.order(plan)
    shared.mkdir()
    cloud.gcs.faults(*faults)
    containers = cloud.start_all(plan, words, SHARED=str(shared))
    cloud.until(lambda: int(text(shared / "1" / "worker-0") or 0) > 20, "20 steps", *containers.values())
    return plan, containers


@pytest.mark.full
def test_an_error_of_the_program_is_final_unless_the_job_allows_another_try(cloud: Cloud, write, monkeypatch) -> None:
    write("train.py", "import os; raise ValueError('no such data ' + os.environ.pop('KEY'))")
    monkeypatch.setenv("KEY", "s3cr3t-value")
    plan = cloud.plan("train.py", env={"KEY": sdk.FromCaller()})
    container = cloud.start(plan, cloud.order(plan), KEY="s3cr3t-value")
    assert container.code() == 1
    assert "ValueError: no such data s3cr3t-value" in container.said
    [failed] = cloud.events(plan, "failed")
    assert failed.data["message"] == "no such data ***", "as in the last output, values of the caller are not stored"
    assert "s3cr3t-value" not in failed.data["traceback"]
    again = cloud.plan("train.py", retry={"user_errors": 1})
    words = cloud.order(again)
    assert cloud.start(again, words).code() == 1
    assert [event.attempt for event in cloud.events(again, "restarting")] == [1]
    assert [event.attempt for event in cloud.events(again, "failed")] == [1, 2]
    # The service starts the container once more all the same.
    assert cloud.start(again, words).code() == 1
    assert [event.attempt for event in cloud.events(again, "attempt_started")] == [1, 2]


def test_a_missing_write_permission_is_reported_and_the_job_is_not_restarted(cloud: Cloud, write) -> None:
    write("train.py", "print('trained')")
    plan = cloud.plan("train.py")
    words = cloud.order(plan)
    cloud.gcs.faults({"kind": "status_before", "status": 403, "method": "POST"})
    container = cloud.start(plan, words)
    assert container.code() == 3
    assert "permission denied (403)" in container.said
    assert "roles/storage.objectUser" in container.said
    assert "Traceback" not in container.said


def test_a_bucket_that_refuses_the_records_is_reported_and_is_not_the_tasks_fault(cloud: Cloud, write) -> None:
    write("train.py", "print('trained')")
    plan = cloud.plan("train.py")
    words = cloud.order(plan)
    # After the beginning of the attempt, nothing is taken any more.
    cloud.gcs.faults({"kind": "status_before", "status": 403, "method": "POST", "nth": list(range(3, 1000))})
    container = cloud.start(plan, words)
    assert container.code() == 3
    assert "trained" in container.said
    assert "records and outputs could not be uploaded" in container.said


@pytest.mark.full
def test_preempted_tasks_stop_after_the_same_step_also_where_the_storage_fails(cloud: Cloud, write, tmp_path) -> None:
    unavailable = {"kind": "status_before", "status": 503, "probability": 0.1, "seed": 1}
    lost = {"kind": "drop_after", "probability": 0.1, "seed": 2}
    plan, containers = in_step(cloud, write, tmp_path / "shared", unavailable, lost)
    # As a task that trains writes it down when it gets SIGTERM.
    question = json.dumps({"action": "preempt", "step": 0}).encode()
    cloud.store(plan).put_new(f"{RunPaths('').rendezvous(1)}/000001.question.json", [question])
    assert {task: container.code() for task, container in containers.items()} == dict.fromkeys(plan.tasks, 0)
    places = [stopped_at(container) for container in containers.values()]
    assert len(places[0]) == 1 and places == [places[0]] * 2
    cloud.gcs.faults()
    exits = {e.data["task"]: (e.data["code"], e.data["reason"]) for e in cloud.events(plan, "exited") if e.attempt == 1}
    assert exits == dict.fromkeys(plan.tasks, (75, "checkpointed"))
    claims = [json.loads(bytes(cloud.store(plan).get(RunPaths("").membership(number)))) for number in (1, 2)]
    assert claims[0]["members"] == claims[1]["members"]
