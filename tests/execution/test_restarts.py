"""A task that dies is restarted with its gang inside the containers that live; nothing is asked of the service for that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sdk.job.layout import RunPaths

from .cloud import Cloud, Container

# Every step ends when all tasks have taken part in it, as in training. The steps go on until the test names a last one.
IN_STEP = """
import os, pathlib, sdk, sys, time
ctx = sdk.context()
shared = pathlib.Path(os.environ["SHARED"])
mine = shared / os.environ["PODLIFT_ATTEMPT"]
mine.mkdir(exist_ok=True)
(mine / f"{ctx.task}.pid").write_text(f"{os.getpid()} {os.getppid()}")
def number(path):
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0
step = 0
while not (last := number(shared / "last")) or step < last:
    step += 1
    (mine / ctx.task).write_text(str(step))
    ctx.report({}, step=step)
    while min(number(mine / task) for task in ctx.tasks) < step:
        time.sleep(0.002)
    if ctx.should_stop():
        sys.exit(75)
    time.sleep(0.01)
"""


class Gang:
    """Two containers that train."""

    def __init__(self, cloud: Cloud, write, tmp_path: Path, program: str = IN_STEP, **settings) -> None:
        write("train.py", program)
        retry = {"infrastructure": 3, "preemptions": None, **settings.pop("retry", {})}
        self.cloud, self.shared = cloud, tmp_path / "shared"
        self.shared.mkdir()
        self.plan = cloud.plan("train.py", resources={"workers": 2}, retry=retry, **settings)
        self.words = cloud.order(self.plan)
        self.containers = {task: self.start(task) for task in self.plan.tasks}

    def start(self, task: str) -> Container:
        return self.cloud.start(self.plan, self.words, task, SHARED=str(self.shared))

    def trains(self, attempt: int, steps: int = 5) -> None:
        self.cloud.until(
            lambda: all(number(self.shared / str(attempt) / task) >= steps for task in self.plan.tasks),
            f"{steps} steps of attempt {attempt}",
            *self.containers.values(),
        )

    def pids(self, attempt: int, task: str) -> tuple[int, int]:
        """Return the process of a task and of its agent."""
        pid, agent = (self.shared / str(attempt) / f"{task}.pid").read_text().split()
        return int(pid), int(agent)

    def kill(self, attempt: int, *tasks: str) -> None:
        for task in tasks:
            os.kill(self.pids(attempt, task)[0], signal.SIGKILL)

    def waits_for_chief(self) -> Container:
        """Return the worker's container once it has ended the first attempt, and the chief's is stopped or gone."""
        worker = self.containers["worker-0"]
        self.cloud.until(
            lambda: "waiting for chief-0" in worker.said.partition("attempt 1 has ended")[2], "it waits", worker
        )
        return worker

    def finish(self) -> dict[str, int]:
        last = max(number(file) for file in self.shared.glob("*/*-0")) + 50
        (self.shared / "coming").write_text(str(last))
        (self.shared / "coming").rename(self.shared / "last")
        return self.codes()

    def codes(self) -> dict[str, int]:
        return {task: container.code() for task, container in self.containers.items()}

    def attempts(self) -> list[int]:
        return [event.attempt for event in self.cloud.events(self.plan, "attempt_started")]


def number(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


@pytest.fixture
def gang(cloud: Cloud, write, tmp_path: Path):
    return lambda *given, **settings: Gang(cloud, write, tmp_path, *given, **settings)


@pytest.mark.full
def test_a_chief_is_replaced_while_its_workers_task_is_killed(gang) -> None:
    found = gang()
    found.trains(1)
    found.containers["chief-0"].process.kill()
    found.kill(1, "worker-0")
    found.containers["chief-0"].code()
    found.waits_for_chief()
    found.containers["chief-0"] = found.start("chief-0")
    found.cloud.until(lambda: number(found.shared / "2" / "chief-0") > 5, "5 steps", *found.containers.values())
    assert found.finish() == dict.fromkeys(found.plan.tasks, 0)
    assert found.attempts() == [1, 2]


@pytest.mark.full
def test_a_signal_between_two_attempts_ends_a_container_and_a_cancel_request_all_of_them(gang) -> None:
    # The second attempt never begins: the chief's container is stopped before.
    found = gang(retry={"infrastructure": 9})
    found.trains(1)
    os.kill(found.containers["chief-0"].process.pid, signal.SIGSTOP)
    found.kill(1, "worker-0")
    worker = found.waits_for_chief()
    store = found.cloud.store(found.plan)
    store.put_new(RunPaths("").remote_cancel_request(0, 1), [b"{}"])
    assert worker.code() == 4
    assert "the run was cancelled" in worker.said
    chief = found.containers["chief-0"]
    chief.process.send_signal(signal.SIGTERM)
    os.kill(chief.process.pid, signal.SIGCONT)
    assert chief.code() in (134, 137), chief.said
    assert found.attempts() == [1]
