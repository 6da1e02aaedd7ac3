"""Restarts inside the containers of an emulated job: podlift's own budget pays for them, and Vertex AI does not notice."""

from __future__ import annotations

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
from sdk.records.recorder import read_events
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
    retry = sdk.Retry(infrastructure=settings.pop("infrastructure", 2), preemptions=None)
    return sdk.submit(
        sdk.Job("train.py", resources=sdk.Resources(workers=workers), retry=retry, **settings), backend=cloud.backend()
    )


def processes(run: sdk.Run, task: str, attempt: int) -> Iterator[psutil.Process]:
    """Yield a task's process as this machine sees it: in its container it has another number."""
    payload = f"/runs/{run.id}/attempts/{attempt:04d}/payload.json"
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if len(words) > 1 and words[-1] == task and words[-2].endswith(payload):
                yield process


def process_of(run: sdk.Run, task: str, attempt: int) -> psutil.Process:
    until(lambda: next(processes(run, task, attempt), None), lambda: run.why())
    return next(processes(run, task, attempt))


def trains(run: sdk.Run, attempt: int) -> None:
    def steps() -> bool:
        run.status()
        found = [event for event in read_events(run.plan.paths, ("first_step",)) if event.attempt == attempt]
        return len(found) > 0

    until(steps, lambda: run.why())


def begins(run: sdk.Run) -> None:
    """Wait until each task has printed its first line: one that is killed before that leaves none."""
    until(lambda: all(said(run, task) for task in run.plan.tasks), lambda: run.why())


def counters(cloud: Cloud) -> dict[str, Any]:
    """Return the emulator's own record of the latest job."""
    # A reset of the emulator begins another one.
    newest = max(cloud.folder.rglob("vertex/jobs.sqlite"), key=lambda path: path.stat().st_mtime)
    with closing(sqlite3.connect(newest)) as db:
        (status,) = db.execute("SELECT status FROM jobs ORDER BY rowid DESC LIMIT 1").fetchone()
    found: dict[str, Any] = json.loads(status)
    return found


@pytest.mark.parametrize("workers", [1, full_only(2)])
def test_killed_tasks_restart_in_their_containers_and_vertex_ai_counts_no_restart(
    cloud, write, monkeypatch, workers
) -> None:
    run = submit(cloud, write, workers=workers)
    last = run.plan.tasks[-1]
    trains(run, 1)
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
    trains(run, 1)
    agent = process_of(run, "chief-0", 1).ppid()
    (job,) = made(cloud)
    assert cloud.preempt(job.name, "workerpool1-0")
    assert process_of(run, "chief-0", 2).ppid() == agent
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    assert (counters(cloud)["restarts"], counters(cloud)["retries"]) == ({}, 0)
