"""Containers of a job, from the loader's first word to the exit code: real processes, and a storage on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
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
def test_a_cancel_request_stops_all_tasks_after_the_same_step_and_nothing_starts_again(cloud, write, tmp_path) -> None:
    plan, tasks = in_step(cloud, write, tmp_path / "shared")
    cloud.store(plan).put_new(RunPaths("").remote_cancel_request(0, "abc"), [b"{}"])
    assert {task: container.code() for task, container in tasks.items()} == dict.fromkeys(plan.tasks, 75)
    places = [stopped_at(container) for container in tasks.values()]
    assert places == [places[0]] * 2


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


def test_a_task_that_listens_to_no_signal_ends_at_once_and_is_started_again(cloud: Cloud, write) -> None:
    write("train.py", "import time\nprint('here', flush=True)\ntime.sleep(600)")
    plan = cloud.plan("train.py", retry={"preemptions": None})
    container = cloud.start(plan, cloud.order(plan))
    cloud.until(lambda: "here" in container.said, "it runs", container)
    container.process.send_signal(signal.SIGTERM)
    assert container.code() == 134
    [exited] = cloud.events(plan, "exited")
    assert (exited.data["code"], exited.data["reason"]) == (-15, "preempted")


@pytest.mark.full
def test_what_a_task_leaves_running_ends_with_it(cloud: Cloud, write) -> None:
    write(
        "train.py",
        """
        import subprocess
        left = subprocess.Popen(["setsid", "sleep", "600"])
        print("left", left.pid, flush=True)
        """,
    )
    plan = cloud.plan("train.py")
    container = cloud.start(plan, cloud.order(plan))
    assert container.code() == 0
    pid = int(re.search(r"left (\d+)", container.said)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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
    cloud.store(plan).put_new(f"{RunPaths('').preempted(1)}/any.json", [b"{}"])
    assert {task: container.code() for task, container in containers.items()} == dict.fromkeys(plan.tasks, 0)
    places = [stopped_at(container) for container in containers.values()]
    assert len(places[0]) == 1 and places == [places[0]] * 2
    cloud.gcs.faults()
    exits = {e.data["task"]: (e.data["code"], e.data["reason"]) for e in cloud.events(plan, "exited") if e.attempt == 1}
    assert exits == dict.fromkeys(plan.tasks, (75, "checkpointed"))
    claims = [json.loads(bytes(cloud.store(plan).get(RunPaths("").membership(number)))) for number in (1, 2)]
    assert claims[0]["members"] == claims[1]["members"]


HANGS = """
import os, sdk, time
ctx = sdk.context()
first = os.environ["PODLIFT_ATTEMPT"] == "1"
for step in range(1, 10):
    ctx.report({}, step=step)
    time.sleep(0.02)
    if first and step == (7 if ctx.task == "chief-0" else 5):
        stuck_in_the_first_attempt = time.sleep
        stuck_in_the_first_attempt(600)
print("through", ctx.task, flush=True)
"""


@pytest.mark.full
def test_a_gang_that_hangs_is_reported_with_all_stacks_and_the_slow_task_and_restarted_in_place(
    cloud: Cloud, write
) -> None:
    write("train.py", HANGS)
    plan = cloud.plan("train.py", resources={"workers": 2}, retry={"infrastructure": 1}, limits={"hang_s": 3.0})
    containers = cloud.start_all(plan, cloud.order(plan))
    assert {task: container.code() for task, container in containers.items()} == dict.fromkeys(plan.tasks, 0)
    [restarting] = cloud.events(plan, "restarting")
    assert (restarting.data["reason"], restarting.data["failure"]["task"]) == ("hung", "worker-0")
    assert re.search(
        r"No task has finished a batch for 3 s .* chief-0 7, worker-0 5\. The slowest task is worker-0",
        restarting.data["failure"]["message"],
    )
    for container in containers.values():
        before, through, _ = container.said.partition("through")
        assert through and "train.py" in before.partition("most recent call first")[2]
    assert [event.attempt for event in cloud.events(plan, "attempt_started")] == [1, 2]


@pytest.mark.full
def test_a_crash_in_exit_handlers_after_a_program_that_returned_is_no_reason_to_train_again(
    cloud: Cloud, write
) -> None:
    write("train.py", "import atexit, os; atexit.register(os.abort); print('OSError: no such bucket')")
    plan = cloud.plan("train.py", retry={"infrastructure": 1})
    container = cloud.start(plan, cloud.order(plan))
    assert container.code() == 0
    crashed, untrained = [event.data["text"] for event in cloud.events(plan, "finding")]
    assert "chief-0 was killed by SIGABRT in its exit handlers" in crashed and crashed in container.said
    assert untrained == "No training step was seen; last error line: OSError: no such bucket"
    assert [event.data["code"] for event in cloud.events(plan, "exited")] == [0]
