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

    def runtime(self, digest: str) -> str:
        """What of podlift a container needs, with the pure-Python packages that this part imports."""
        return posixpath.join(self.root, "runtime", f"{digest}.tar")

    def stage(self, digest: str) -> str:
        """The program that a container runs first."""
        return posixpath.join(self.root, "stages", f"{digest}.py")


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

    def revision(self, name: str) -> str:
        """The plan of a run that was resumed with other code; the record of that names it."""
        return posixpath.join(self.url, "plans", f"{name}.json")

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

    def distant_wish(self, generation: int, nonce: str) -> str:
        """A wish of a client on another machine, for the supervisor of that generation."""
        return posixpath.join(self.control, f"{generation:04d}-{nonce}.cancel.json")

    def own(self, generation: int) -> str:
        """Made on the machine whose supervisor looks after a run in a bucket since it was resumed so often."""
        return posixpath.join(self.url, "mirror", f"{generation:04d}.own")

    def carried(self, generation: int) -> str:
        """Made there when all that this supervisor has left is in the bucket."""
        return posixpath.join(self.url, "mirror", f"{generation:04d}.carried")

    @property
    def mirror_lock(self) -> str:
        """Locked by who carries between this folder and the bucket."""
        return posixpath.join(self.url, "mirror", "lock")

    @property
    def mirror_log(self) -> str:
        return posixpath.join(self.url, "mirror", "log")

    @property
    def heartbeat(self) -> str:
        """Rewritten in the bucket as long as a supervisor lives."""
        return posixpath.join(self.url, "heartbeat.json")

    @staticmethod
    def piece(file: str, offset: int) -> str:
        """One piece of a growing file, as a bucket holds it."""
        return posixpath.join(file, f"{offset:015d}.part")

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

    def order(self, job: int) -> str:
        """What the containers of a vendor's job have to do."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.order.json")

    def intent(self, job: int) -> str:
        """What will be asked of the vendor; written before it is asked."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.intent.json")

    def made(self, job: int) -> str:
        """What the vendor calls its job."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.made.json")

    @property
    def joins(self) -> str:
        """Containers that have started, one file each."""
        return posixpath.join(self.url, "joins")

    def join(self, task: str, nonce: str) -> str:
        return posixpath.join(self.joins, f"{task}.{nonce}.json")

    def claim(self, attempt: int) -> str:
        """Which containers form an attempt; the first task's writes it, and with that the attempt exists."""
        return posixpath.join(self.attempt(attempt), "claim.json")

    def event(self, attempt: int, source: str, sequence: int, kind: str) -> str:
        return posixpath.join(self.events, f"{attempt:04d}.{source}.{sequence:06d}.{kind}.json")

    @property
    def reserves(self) -> str:
        """Room for the last records of each process, for a disk that is full: see storage/reserve.py."""
        return posixpath.join(self.url, "reserves")

    def reserve(self, attempt: int, source: str) -> str:
        return posixpath.join(self.reserves, f"{attempt:04d}.{source}")

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

    def agreed(self, attempt: int, number: int) -> str:
        """What all tasks of an attempt do behind which step."""
        return posixpath.join(self.attempt(attempt), "agreed", f"{number:06d}.json")

    def wanted_back(self, attempt: int) -> str:
        """A folder; it appears when somebody has asked a task to end (SIGTERM)."""
        return posixpath.join(self.attempt(attempt), "wanted_back")

    def over(self, attempt: int) -> str:
        """Made when the supervisor ends the tasks because the attempt is decided."""
        return posixpath.join(self.attempt(attempt), "over.json")

    def kill(self, index: int) -> str:
        """Made when a drill has killed a task."""
        return posixpath.join(self.url, "kills", f"{index:04d}.json")

    def moments(self, task: str) -> str:
        """How often each moment of a drill has come for a task, over all attempts."""
        return posixpath.join(self.url, "kills", f"{task}.moments.json")

    def unseeded(self, attempt: int, task: str) -> str:
        """Where a drill has seen a task ask for random numbers that no seed decides; missing where it did not."""
        return posixpath.join(self.attempt(attempt), "unseeded", f"{task}.jsonl")

    @property
    def store(self) -> str:
        """The checkpoints that podlift makes; those of the program itself lie in `checkpoints`."""
        return posixpath.join(self.url, "store")

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
