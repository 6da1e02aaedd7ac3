"""Paths of everything that belongs to a run. No other module joins them."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass


@dataclass(frozen=True)
class RootPaths:
    """The root, which holds runs and bundles."""

    root: str

    @property
    def runs(self) -> str:
        return posixpath.join(self.root, "runs")

    def run(self, run_id: str) -> RunPaths:
        return RunPaths(posixpath.join(self.runs, run_id))

    def bundle(self, digest: str) -> str:
        return posixpath.join(self.root, "bundles", f"{digest}.tar")

    def runtime(self, digest: str) -> str:
        """The part of podlift that runs in containers, with the pure-Python packages that it imports."""
        return posixpath.join(self.root, "runtime", f"{digest}.tar")

    def entrypoint(self, digest: str) -> str:
        """The script that a container starts first."""
        return posixpath.join(self.root, "entrypoints", f"{digest}.py")


@dataclass(frozen=True)
class RunPaths:
    """One run's directory. Its URL identifies the run."""

    url: str

    @property
    def root(self) -> str:
        """The root that the directory's location implies."""
        return posixpath.dirname(posixpath.dirname(self.url))

    @property
    def run_id(self) -> str:
        return posixpath.basename(self.url)

    @property
    def plan(self) -> str:
        return posixpath.join(self.url, "plan.json")

    def revision(self, name: str) -> str:
        """The plan of a run that was resumed with other code. The record of the resume names it."""
        return posixpath.join(self.url, "plans", f"{name}.json")

    @property
    def events(self) -> str:
        return posixpath.join(self.url, "events")

    @property
    def summary(self) -> str:
        """Cached status of an ended run, for lists of runs. May be missing."""
        return posixpath.join(self.url, "summary.json")

    @property
    def control(self) -> str:
        """Cancel requests of clients, one file each."""
        return posixpath.join(self.url, "control")

    def cancel_request(self, number: int) -> str:
        return posixpath.join(self.control, f"{number:06d}.cancel.json")

    def remote_cancel_request(self, resumes: int, nonce: str) -> str:
        """A cancel request from another machine, for the supervisor that the run has after this many resumes."""
        return posixpath.join(self.control, f"{resumes:04d}-{nonce}.cancel.json")

    @property
    def sync(self) -> str:
        """State of the synchronization between this folder and the bucket; never uploaded."""
        return posixpath.join(self.url, "sync")

    def owner(self, resumes: int) -> str:
        """Exists on the machine that supervises a run in a bucket, after this many resumes."""
        return posixpath.join(self.sync, f"{resumes:04d}.owner")

    def uploaded(self, resumes: int) -> str:
        """Exists there once everything that this supervisor wrote is in the bucket."""
        return posixpath.join(self.sync, f"{resumes:04d}.uploaded")

    @property
    def sync_lock(self) -> str:
        """Locked by the process that uploads this folder to the bucket."""
        return posixpath.join(self.sync, "lock")

    @property
    def sync_log(self) -> str:
        return posixpath.join(self.sync, "log")

    @property
    def heartbeat(self) -> str:
        """Rewritten in the bucket while a supervisor is alive."""
        return posixpath.join(self.url, "heartbeat.json")

    @staticmethod
    def part(file: str, offset: int) -> str:
        """One part of a growing file, as a bucket stores it."""
        return posixpath.join(file, f"{offset:015d}.part")

    @property
    def supervisor_log(self) -> str:
        return posixpath.join(self.url, "supervisor.log")

    @property
    def environment_log(self) -> str:
        """Output of pip while the run's virtual environment was built."""
        return posixpath.join(self.url, "environment.log")

    @property
    def facade(self) -> str:
        """Holds a link to podlift and nothing else, for tasks that do not see the environment podlift is installed in."""
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

    def launch_spec(self, job: int) -> str:
        """What the containers of a vendor's job have to run."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.launch_spec.json")

    def intent(self, job: int) -> str:
        """The request to the vendor, written before it is sent."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.intent.json")

    def created(self, job: int) -> str:
        """The vendor's name for the job, written once it is known."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.created.json")

    @property
    def members(self) -> str:
        """Containers that have started, one file each."""
        return posixpath.join(self.url, "members")

    def member(self, task: str, nonce: str) -> str:
        return posixpath.join(self.members, f"{task}.{nonce}.json")

    def membership(self, attempt: int) -> str:
        """The containers that form an attempt. The first task's container writes it, which creates the attempt."""
        return posixpath.join(self.attempt(attempt), "membership.json")

    def event(self, attempt: int, source: str, sequence: int, kind: str) -> str:
        return posixpath.join(self.events, f"{attempt:04d}.{source}.{sequence:06d}.{kind}.json")

    @property
    def reserves(self) -> str:
        """Preallocated space for the last records of each process, in case the disk fills up. See storage/reserve.py."""
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
        """When the logs of an attempt grew. May be missing."""
        return posixpath.join(self.attempt(attempt), "logs", "times.jsonl")

    def metrics(self, attempt: int, task: str) -> str:
        return posixpath.join(self.attempt(attempt), "metrics", f"{task}.jsonl")

    def rendezvous(self, attempt: int, number: int) -> str:
        """What all tasks of an attempt agreed to do, and after which step."""
        return posixpath.join(self.attempt(attempt), "rendezvous", f"{number:06d}.json")

    def preempted(self, attempt: int) -> str:
        """A folder that exists once a task has received SIGTERM."""
        return posixpath.join(self.attempt(attempt), "preempted")

    def decided(self, attempt: int) -> str:
        """Exists once the attempt has a verdict, before the supervisor stops its tasks."""
        return posixpath.join(self.attempt(attempt), "decided.json")

    def kill(self, index: int) -> str:
        """Exists once a drill has killed a task."""
        return posixpath.join(self.url, "kills", f"{index:04d}.json")

    def kill_points(self, task: str) -> str:
        """How often a task has reached each kill point of a drill, over all attempts."""
        return posixpath.join(self.url, "kills", f"{task}.kill_points.json")

    def unseeded(self, attempt: int, task: str) -> str:
        """Calls for random numbers without a seed that a drill has seen in a task. Missing if there were none."""
        return posixpath.join(self.attempt(attempt), "unseeded", f"{task}.jsonl")

    @property
    def store(self) -> str:
        """Checkpoints that podlift writes. The program's own are in `checkpoints`."""
        return posixpath.join(self.url, "store")

    def progress(self, attempt: int, task: str) -> str:
        """A task's progress: a small file that it rewrites with every step."""
        return posixpath.join(self.attempt(attempt), "progress", task)

    def work(self, attempt: int, task: str) -> str:
        """The task's private copy of the bundle, in which it starts."""
        return posixpath.join(self.attempt(attempt), "tasks", task, "code")

    @property
    def outputs(self) -> str:
        """Files the program wrote, collected when its attempt ended. Missing if there are none."""
        return posixpath.join(self.url, "outputs")

    @property
    def outputs_work(self) -> str:
        """New and changed files of the first task's copy of the bundle."""
        return posixpath.join(self.outputs, "work")

    @property
    def outputs_model(self) -> str:
        """The files of `model`, in a folder of their own so that names cannot collide."""
        return posixpath.join(self.outputs, "model")

    @property
    def temporary(self) -> str:
        """Holds the tasks' TMPDIRs. Removed when the attempt ends."""
        return posixpath.join(self.url, "tmp")
