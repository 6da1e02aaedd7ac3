"""Restarts and the last phase in the containers of a job: podlift's own budget pays, and Vertex AI does not notice."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import psutil
import pytest
from support import LIMIT_S, full_only, made, said, until

import sdk
from sdk.backends.vertex.job import logs
from sdk.model_registry.models import Model
from sdk.records.recorder import read_events
from sdk.storage.registry import open_store
from sdk.testing.vertex import Cloud

# It trains for ever in its first attempt, and reports a few steps in every later one.
PROGRAM = """
import os, time, sdk
ctx = sdk.context()
attempt = int(os.environ["PODLIFT_ATTEMPT"])
print("begins", ctx.task, attempt, flush=True)
for step in range(1, 100_000 if attempt == 1 else 30):
    ctx.report({"loss": 1.0}, step=step)
    time.sleep(0.02)
    if ctx.should_stop():
        raise SystemExit(75)
print("through", ctx.task, attempt, flush=True)
"""


def submit(cloud: Cloud, write, program: str = PROGRAM, *, workers: int = 2, **settings: Any) -> sdk.Run:
    write("train.py", program)
    retry, resources = sdk.Retry(infrastructure=2, preemptions=None), sdk.Resources(workers=workers)
    return sdk.submit(sdk.Job("train.py", resources=resources, retry=retry, **settings), backend=cloud.backend())


def processes(run: sdk.Run, task: str, attempt: int) -> Iterator[psutil.Process]:
    """Yield a task's process as this machine sees it: in its container it has another number."""
    payload = f"/runs/{run.id}/attempts/{attempt:04d}/payload.json"
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if len(words) > 1 and words[-1] == task and words[-2].endswith(payload):
                yield process


def process_of(run: sdk.Run, task: str, attempt: int) -> psutil.Process:
    until(lambda: next(processes(run, task, attempt), None), run.why)
    return next(processes(run, task, attempt))


def trains(run: sdk.Run) -> None:
    def steps() -> bool:
        run.status()
        return any(event.attempt == 1 for event in read_events(run.plan.paths, ("first_step",)))

    until(steps, run.why)


def begins(run: sdk.Run) -> None:
    """Wait until each task has printed its first line: one that is killed before that leaves none."""
    until(lambda: all(said(run, task) for task in run.plan.tasks), run.why)


def counters(cloud: Cloud) -> dict[str, Any]:
    """Return the emulator's own record of the latest job."""
    # A reset of the emulator begins another one.
    newest = max(cloud.folder.rglob("vertex/jobs.sqlite"), key=lambda path: path.stat().st_mtime)
    with closing(sqlite3.connect(newest)) as db:
        (status,) = db.execute("SELECT status FROM jobs ORDER BY rowid DESC LIMIT 1").fetchone()
    return json.loads(status)


@pytest.mark.parametrize("workers", [1, full_only(2)])
def test_killed_tasks_restart_in_their_containers_and_vertex_ai_counts_no_restart(
    cloud, write, monkeypatch, workers
) -> None:
    run = submit(cloud, write, workers=workers)
    last = run.plan.tasks[-1]
    trains(run)
    begins(run)
    agents = {task: process_of(run, task, 1).ppid() for task in run.plan.tasks}
    process_of(run, last, 1).kill()
    assert {task: process_of(run, task, 2).ppid() for task in run.plan.tasks} == agents
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    found = counters(cloud)
    assert (found["restarts"], found["retries"], found["preemptions"], found["internal"]) == ({}, 0, 0, 0)
    why = run.why()
    assert "ended (killed)" in why and "Restarts left after this one: 1" in why
    assert "attempt 1" in why and "attempt 2" in why
    # One container's output belongs to both attempts, in the service's log and in the run's directory.
    for _ in range(2):
        for attempt in (1, 2):
            texts = [line.text for line in run.logs(task=last, attempt=attempt)]
            assert [text for text in texts if text.startswith("begins")] == [f"begins {last} {attempt}"], texts
        monkeypatch.setattr(logs, "query", lambda *args, **more: {})


@pytest.mark.full
def test_a_machine_that_is_replaced_joins_the_containers_that_stay(cloud, write) -> None:
    run = submit(cloud, write)
    trains(run)
    agent = process_of(run, "chief-0", 1).ppid()
    (job,) = made(cloud)
    assert cloud.preempt(job.name, "workerpool1-0")
    assert process_of(run, "chief-0", 2).ppid() == agent
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    assert (counters(cloud)["restarts"], counters(cloud)["retries"]) == ({}, 0)


# It writes the model to the bucket, as TensorFlow does with the same address.
REGISTERED = """
import os, sys, sdk
from sdk.storage.registry import open_store
ctx = sdk.context()
if ctx.is_chief:
    open_store(os.environ["AIP_MODEL_DIR"].rstrip("/")).put_new("weights", [sys.argv[1].encode()])
    ctx.report({"loss": 0.5}, step=7)
print("trained", flush=True)
"""
QUALITY = """
import os, time
from pathlib import Path
from sdk.storage.registry import open_store
def measure(model, data):
    text = Path(model, "weights").read_text()
    print("measures", text, data, "TF_CONFIG" in os.environ, flush=True)
    store = open_store(data.replace("/test/", "/signals"))
    while text == "0.7" and "go" not in [stat.key for stat in store.list("")]:
        time.sleep(0.1)
    return {"accuracy": float(text)}
"""


def submit_gated(cloud: Cloud, write, weights: str, *, workers: int = 1) -> sdk.Run:
    write("quality.py", QUALITY)
    gate = sdk.Gate(evaluate="quality:measure", data="test", metric="accuracy")
    about = {"inputs": {"test": data_of(cloud)}, "model": "digits", "gate": gate, "args": [weights]}
    return submit(cloud, write, REGISTERED, workers=workers, **about)


def data_of(cloud: Cloud) -> str:
    return f"gs://{cloud.bucket}/test/"


def evaluations(run: sdk.Run) -> int:
    return len([line for line in run.logs() if "measures 0.7" in line.text])


@pytest.mark.full
def test_containers_promote_a_model_and_a_lost_container_repeats_only_the_last_phase(cloud, write) -> None:
    open_store(data_of(cloud).rstrip("/")).put_new("rows", [b"1,2"])
    run = submit_gated(cloud, write, "0.5", workers=2)
    status = run.wait(LIMIT_S)
    assert status.state is sdk.State.SUCCEEDED, run.why()
    assert str(status.registered).startswith("version 1 of 'digits' was promoted: The first model"), run.why()
    assert f"measures 0.5 {data_of(cloud)} False" in said(run, "chief-0")
    model = Model(run.plan.root, "digits")
    assert (model.champion().record.run, dict(model.champion().metrics)) == (run.id, {"loss": 0.5})

    better = submit_gated(cloud, write, "0.7")
    until(lambda: evaluations(better) == 1, better.why)
    # The machine is gone, and the service starts the container again.
    assert cloud.preempt(cloud._newest_job(better))
    until(lambda: evaluations(better) == 2, better.why)
    open_store(data_of(cloud).replace("/test/", "/signals")).put_new("go", [b""])
    status = better.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), better.why()
    assert len([line for line in better.logs() if line.text == "trained"]) == 1
    assert len(read_events(better.plan.paths, ("entry",))) == 1
    assert [each.record.run for each in model.versions()] == [run.id, better.id]
    assert [(move.before, move.champion) for move in model.history()] == [(0, 1), (1, 2)]


@pytest.mark.full
def test_a_run_in_containers_can_be_cancelled_in_its_last_phase(cloud, write) -> None:
    open_store(data_of(cloud).rstrip("/")).put_new("rows", [b"1,2"])
    run = submit_gated(cloud, write, "0.7")
    until(lambda: evaluations(run) == 1, run.why)
    run.cancel()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED, run.why()
    assert Model(run.plan.root, "digits").history() == ()
