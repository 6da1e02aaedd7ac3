"""A worker of parameter servers or an evaluator that is lost is restarted alone; any other lost task restarts all."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, until

import sdk
from sdk.cli import app
from sdk.records.recorder import read_events

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("warm_podlift")]

# The first task trains until the test has seen enough. A line "task attempt restarts pid port" for each process of a task.
PROGRAM = """
import json, os, pathlib, sys, threading, time
import sdk

ctx = sdk.context()
shared = pathlib.Path(os.environ["SHARED"])
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
port = config["cluster"].get(role, [""] * 9)[index].rpartition(":")[2]
attempt, restarts = int(os.environ["PODLIFT_ATTEMPT"]), int(os.environ.get("PODLIFT_TASK_RESTARTS", 0))
print("begins", restarts, flush=True)
with open(shared / "begun", "a") as file:
    file.write(json.dumps([ctx.task, attempt, restarts, os.getpid(), port]) + "\\n")
if ctx.task in os.environ.get("LEAVES", "") and restarts == 0 and attempt == 1:
    raise SystemExit(75)
if role == "evaluator" and restarts == 0:
    raise ValueError("no checkpoint to evaluate")
if role in ("worker", "ps"):
    threading.Event().wait()
step = 0
while not (shared / "enough").exists():
    step += 1
    if role == "chief":
        ctx.report({}, step=step)
    time.sleep(0.01)
print("ends", flush=True)
"""


class Training:
    def __init__(
        self, write: Any, tmp_path: Path, *, retry: sdk.Retry, program: str, leaves: str = "", **resources: Any
    ) -> None:
        self.shared = tmp_path / "shared"
        self.shared.mkdir()
        write("train.py", program)
        job = sdk.Job(
            "train.py",
            resources=sdk.Resources(**resources),
            retry=retry,
            env={"SHARED": str(self.shared), "LEAVES": leaves},
            limits=sdk.Limits(timeout_s=LIMIT_S),
        )
        self.run = sdk.submit(job)

    def begun(self) -> dict[tuple[str, int, int], tuple[int, str]]:
        """Return the process and the port by task, attempt and number of restarts."""
        file = self.shared / "begun"
        lines = file.read_text().splitlines() if file.exists() else []
        return {(task, attempt, restarts): (pid, port) for task, attempt, restarts, pid, port in map(json.loads, lines)}

    def pid(self, task: str, attempt: int = 1, restarts: int = 0) -> int:
        """Return a process once it runs."""
        until(lambda: (task, attempt, restarts) in self.begun() or self.run.status().state.terminal, self.run.why)
        assert (task, attempt, restarts) in self.begun(), self.run.why()
        return self.begun()[task, attempt, restarts][0]

    def kill(self, task: str, attempt: int = 1, restarts: int = 0) -> None:
        os.kill(self.pid(task, attempt, restarts), signal.SIGKILL)

    def end(self) -> sdk.Status:
        (self.shared / "enough").write_text("")
        return self.run.wait(LIMIT_S)


@pytest.fixture
def training(write: Any, tmp_path: Path) -> Any:
    def begin(program: str = PROGRAM, **resources: Any) -> Training:
        given = {"infrastructure": 2, "preemptions": None, **resources.pop("retry", {})}
        return Training(write, tmp_path, retry=sdk.Retry(**given), program=program, **resources)

    return begin


def test_a_killed_worker_of_parameter_servers_starts_again_at_its_address_and_the_others_go_on(
    training: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = training(workers=3, ps=1)
    first = {task: found.pid(task) for task in found.run.plan.tasks}
    found.kill("worker-0")
    assert found.pid("worker-0", restarts=1) != first["worker-0"]
    begun = found.begun()
    assert begun["worker-0", 1, 1][1] == begun["worker-0", 1, 0][1], "the others would not find it"
    status = found.run.status()
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.RUNNING, 1, {"worker-0": 1})
    assert "worker-0 was restarted alone 1 time" in found.run.why()
    # Two at the same instant, one of them in a second life, while the budget allows one more.
    os.kill(first["worker-1"], signal.SIGTERM)
    found.kill("worker-0", restarts=1)
    found.pid("worker-0", restarts=2)
    found.pid("worker-1", restarts=1)
    status = found.end()
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 1), found.run.why()
    assert status.restarted_alone == {"worker-0": 2, "worker-1": 1}
    app.run(["status", found.run.id])
    assert "restarted alone in the last one: worker-0 2 times, worker-1 1 time" in capsys.readouterr().out
    others = [key for key in found.begun() if key[0] in ("chief-0", "ps-0")]
    assert sorted(others) == [("chief-0", 1, 0), ("ps-0", 1, 0)], "they were restarted"
    lines = [line.text for line in found.run.logs(task="worker-0")]
    assert [line for line in lines if line.startswith("begins")] == ["begins 0", "begins 1", "begins 2"]
    why = " ".join(found.run.why().split())
    assert "worker-0 was killed by SIGKILL" in why
    assert "Restarting worker-0 alone after an infrastructure failure (killed). Restarts left after this one: 0." in why
    assert "Restarting worker-1 alone after a preemption (preempted)." in why


def test_a_killed_parameter_server_restarts_all_tasks_and_a_worker_that_leaves_with_75_only_itself(
    training: Any,
) -> None:
    found = training(workers=2, ps=1, leaves="worker-0")
    for task in found.run.plan.tasks:
        found.pid(task, restarts=int(task == "worker-0"))
    [left] = [event for event in read_events(found.run.plan.paths) if event.kind == "task_restarting"]
    assert (left.attempt, left.data["code"], left.data["reason"]) == (1, 75, "checkpointed")
    found.kill("ps-0")
    for task in found.run.plan.tasks:
        found.pid(task, attempt=2)
    status = found.end()
    assert (status.state, status.attempts, status.restarted_alone) == (sdk.State.SUCCEEDED, 2, {}), found.run.why()


@pytest.mark.full
def test_a_worker_without_parameter_servers_restarts_all_and_its_evaluator_alone_with_the_records_of_both_lives(
    training: Any,
) -> None:
    found = training(workers=2, evaluator=True, retry={"user_errors": 1})
    for task in found.run.plan.tasks:
        found.pid(task)
    found.pid("evaluator-0", restarts=1)
    found.kill("worker-0")
    # Its error of the second attempt is one more than the budget allows.
    status = found.run.wait(LIMIT_S)
    assert (status.state, status.reason, status.attempts) == (sdk.State.FAILED, sdk.Reason.USER_ERROR, 2), (
        found.run.why()
    )
    assert status.failure is not None and "evaluator-0 failed: ValueError: no checkpoint" in status.failure.message
    events = [event for event in read_events(found.run.plan.paths) if event.attempt == 1]
    own = sorted((event.sequence, event.kind) for event in events if event.source == "evaluator-0")
    assert own == [(1, "entry"), (2, "failed"), (3, "entry")]
    [ended] = [event for event in events if event.kind == "restarting"]
    assert ended.data["failure"]["task"] == "worker-0", "the evaluator's first error was settled"
