"""A worker of parameter servers that dies is restarted in its container; a new container of it joins the attempt."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from .cloud import Cloud, Container

# Workers and servers serve; the chief takes steps until the test has seen enough.
PROGRAM = """
import json, os, pathlib, threading, time, sdk
ctx = sdk.context()
shared = pathlib.Path(os.environ["SHARED"])
attempt, restarts = int(os.environ["PODLIFT_ATTEMPT"]), int(os.environ.get("PODLIFT_TASK_RESTARTS", 0))
print("begins", ctx.task, attempt, restarts, flush=True)
with open(shared / "begun", "a") as file:
    file.write(json.dumps([ctx.task, attempt, restarts, os.getpid(), os.getppid()]) + "\\n")
if ctx.task != "chief-0":
    threading.Event().wait()
step = 0
while not (shared / "enough").exists():
    step += 1
    ctx.report({}, step=step)
    time.sleep(0.01)
"""


class Served:
    """The containers of a chief, a worker and a parameter server."""

    def __init__(self, cloud: Cloud, write, tmp_path: Path, **retry: int | None) -> None:
        write("train.py", PROGRAM)
        self.cloud, self.shared = cloud, tmp_path / "shared"
        self.shared.mkdir()
        self.plan = cloud.plan(
            "train.py", resources={"workers": 2, "ps": 1}, retry={"infrastructure": 2, "preemptions": None, **retry}
        )
        self.words = cloud.order(self.plan)
        self.containers = {task: self.start(task) for task in self.plan.tasks}

    def start(self, task: str) -> Container:
        return self.cloud.start(self.plan, self.words, task, SHARED=str(self.shared))

    def begun(self) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Return the process of a task and of its agent, by task, attempt and number of restarts."""
        file = self.shared / "begun"
        lines = file.read_text().splitlines() if file.exists() else []
        return {
            (task, attempt, restarts): (pid, agent) for task, attempt, restarts, pid, agent in map(json.loads, lines)
        }

    def serves(self, task: str, attempt: int = 1, restarts: int = 0) -> tuple[int, int]:
        key = task, attempt, restarts
        self.cloud.until(lambda: key in self.begun(), f"{key} begins", *self.containers.values())
        return self.begun()[key]

    def kill(self, task: str, attempt: int = 1, restarts: int = 0) -> None:
        os.kill(self.serves(task, attempt, restarts)[0], signal.SIGKILL)

    def end(self) -> dict[str, int]:
        (self.shared / "enough").write_text("")
        return {task: container.code() for task, container in self.containers.items()}


@pytest.fixture
def served(cloud: Cloud, write, tmp_path: Path):
    return lambda **retry: Served(cloud, write, tmp_path, **retry)


@pytest.mark.full
def test_a_killed_worker_is_restarted_in_its_container_and_the_attempt_goes_on(served) -> None:
    found = served()
    before = {task: found.serves(task) for task in found.plan.tasks}
    found.kill("worker-0")
    again = found.serves("worker-0", restarts=1)
    assert again[0] != before["worker-0"][0] and again[1] == before["worker-0"][1], "its agent stays"
    assert found.end() == dict.fromkeys(found.plan.tasks, 0)
    assert {key for key in found.begun() if key[0] != "worker-0"} == {("chief-0", 1, 0), ("ps-0", 1, 0)}
    events = found.cloud.events(found.plan, "attempt_started", "restarting", "task_restarting")
    assert [event.kind for event in events] == ["attempt_started", "task_restarting"]
    data = events[1].data
    assert (data["task"], data["code"], data["reason"]) == ("worker-0", -9, "killed")
    assert data["failure"]["message"].startswith("worker-0 was killed by SIGKILL")
    entered = [event.sequence for event in found.cloud.events(found.plan, "entry") if event.source == "worker-0"]
    assert entered == [1, 2]


@pytest.mark.full
def test_a_new_container_of_a_worker_joins_the_attempt_and_its_output_and_records_are_continued(served) -> None:
    found = served()
    before = {task: found.serves(task) for task in found.plan.tasks}
    # It is stopped with a notice first, then its successor is killed without one.
    found.containers["worker-0"].process.terminate()
    assert found.containers["worker-0"].code() == 134
    for restarts in (1, 2):
        found.containers["worker-0"] = found.start("worker-0")
        found.serves("worker-0", restarts=restarts)
        if restarts == 1:
            found.containers["worker-0"].process.kill()
            found.containers["worker-0"].code()
    assert found.end() == dict.fromkeys(found.plan.tasks, 0)
    assert {key for key in found.begun() if key[0] != "worker-0"} == {("chief-0", 1, 0), ("ps-0", 1, 0)}
    assert {task: found.begun()[task, 1, 0] for task in found.plan.tasks} == before
    restarted = found.cloud.events(found.plan, "task_restarting")
    assert {event.data["reason"] for event in restarted} == {"preempted"}
    entered = [event.sequence for event in found.cloud.events(found.plan, "entry") if event.source == "worker-0"]
    assert entered[:2] == [1, 2]
    store = found.cloud.store(found.plan)
    parts = store.list("attempts/0001/tails/worker-0.log/")
    assert len(list(store.list("attempts/0001/restarts/"))) == 2
    output = b"".join(bytes(store.get(part.key)) for part in parts).decode()
    begun = [line[-1] for line in output.splitlines() if line.startswith("begins worker-0 1")]
    # What the one that was killed without a notice had not uploaded is lost.
    assert (begun[0], begun[-1]) == ("0", "2"), output
