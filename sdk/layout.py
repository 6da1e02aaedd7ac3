"""Where everything of a run lies. The only place that joins these paths."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass


@dataclass(frozen=True)
class RootPaths:
    """The root: runs and bundles live below it."""

    root: str

    @property
    def runs(self) -> str:
        return posixpath.join(self.root, "runs")

    def run(self, run_id: str) -> RunPaths:
        return RunPaths(posixpath.join(self.runs, run_id))

    def bundle(self, digest: str) -> str:
        return posixpath.join(self.root, "bundles", f"{digest}.tar")


@dataclass(frozen=True)
class RunPaths:
    """One run's directory, which is its URL."""

    url: str

    @property
    def parts(self) -> tuple[str, str]:
        """The root that the directory's place implies, and the run's id."""
        runs, run_id = posixpath.split(self.url)
        return posixpath.dirname(runs), run_id

    @property
    def plan(self) -> str:
        return posixpath.join(self.url, "plan.json")

    @property
    def events(self) -> str:
        return posixpath.join(self.url, "events")

    @property
    def summary(self) -> str:
        """What a list of runs says about this one, once it has ended; may be missing."""
        return posixpath.join(self.url, "summary.json")

    @property
    def control(self) -> str:
        """Wishes of clients, one file each."""
        return posixpath.join(self.url, "control")

    def cancel(self, number: int) -> str:
        return posixpath.join(self.control, f"{number:06d}.cancel.json")

    @property
    def supervisor_log(self) -> str:
        return posixpath.join(self.url, "supervisor.log")

    @property
    def environment_log(self) -> str:
        """What was said while the run's own environment was made."""
        return posixpath.join(self.url, "environment.log")

    @property
    def facade(self) -> str:
        """Holds a link to podlift and nothing else, for tasks that see nothing of the environment podlift lives in."""
        return posixpath.join(self.url, "podlift")

    @property
    def model(self) -> str:
        return posixpath.join(self.url, "model")

    @property
    def checkpoints(self) -> str:
        return posixpath.join(self.url, "checkpoints")

    @property
    def tensorboard(self) -> str:
        return posixpath.join(self.url, "logs")

    def event(self, attempt: int, source: str, sequence: int, kind: str) -> str:
        return posixpath.join(self.events, f"{attempt:04d}.{source}.{sequence:06d}.{kind}.json")

    def attempt(self, attempt: int) -> str:
        return posixpath.join(self.url, "attempts", f"{attempt:04d}")

    def payload(self, attempt: int) -> str:
        return posixpath.join(self.attempt(attempt), "payload.json")

    def log(self, attempt: int, task: str) -> str:
        return posixpath.join(self.attempt(attempt), "logs", f"{task}.log")

    def log_times(self, attempt: int) -> str:
        """When the logs of an attempt grew; may be missing."""
        return posixpath.join(self.attempt(attempt), "logs", "times.jsonl")

    def metrics(self, attempt: int, task: str) -> str:
        return posixpath.join(self.attempt(attempt), "metrics", f"{task}.jsonl")

    def stop(self, attempt: int) -> str:
        """Behind which step all tasks of an attempt end; made when somebody asks for the end."""
        return posixpath.join(self.attempt(attempt), "stop.json")

    def progress(self, attempt: int, task: str) -> str:
        """How far a task is: a small file that it rewrites with every step."""
        return posixpath.join(self.attempt(attempt), "progress", task)

    def work(self, attempt: int, task: str) -> str:
        """The task's private copy of the bundle, where it starts."""
        return posixpath.join(self.attempt(attempt), "tasks", task, "code")

    @property
    def outputs(self) -> str:
        """What the program has left, collected when its attempt was over; missing where it left nothing."""
        return posixpath.join(self.url, "outputs")

    @property
    def outputs_work(self) -> str:
        """New and changed files of the first task's copy of the bundle."""
        return posixpath.join(self.outputs, "work")

    @property
    def outputs_model(self) -> str:
        """The files of `model`: in a place of their own, so that no name of theirs is another's."""
        return posixpath.join(self.outputs, "model")

    @property
    def temporary(self) -> str:
        """Where the tasks' TMPDIRs lie, removed when the attempt is over."""
        return posixpath.join(self.url, "tmp")
