"""Paths of everything that belongs to a run. No other module joins them."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
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

    @property
    def schedules(self) -> str:
        """The schedules, their plans and the records of their slots, as the objects of a store."""
        return posixpath.join(self.root, "schedules")

    @property
    def sweeps(self) -> str:
        """The sweeps, their plans and the journals of their trials, as the objects of a store."""
        return posixpath.join(self.root, "sweeps")

    @property
    def models(self) -> str:
        """The registered models, as the objects of a store."""
        return posixpath.join(self.root, "models")

    def entrypoint(self, digest: str) -> str:
        """The script that a container starts first."""
        return posixpath.join(self.root, "entrypoints", f"{digest}.py")


class _Fixed:
    """A file or folder that a run has once."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, run: RunPaths, owner: type) -> str:
        # Not posixpath.join: a list of runs needs 100,000 of them.
        url = run.url
        return f"{url}/{self._path}" if url and url[-1] != "/" else url + self._path


class _OfAttempt:
    """A file or folder of each attempt: called with its number."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, run: RunPaths, owner: type) -> Callable[[int], str]:
        return lambda attempt: posixpath.join(run.attempt(attempt), self._path)


class _OfTask:
    """A file or folder of each task: called with the number of its attempt and its name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __get__(self, run: RunPaths, owner: type) -> Callable[[int, str], str]:
        return lambda attempt, task: posixpath.join(run.attempt(attempt), self._path.format(task))


@dataclass(frozen=True)
class RunPaths:
    """One run's directory. Its URL identifies the run."""

    url: str

    plan = _Fixed("plan.json")
    events = _Fixed("events")
    # Cached status of an ended run, for lists of runs. May be missing.
    summary = _Fixed("summary.json")
    # Cancel requests of clients, one file each.
    control = _Fixed("control")
    # Rewritten in the bucket while a supervisor is alive.
    heartbeat = _Fixed("heartbeat.json")
    # Rewritten in the bucket while a process waits for a run that has no supervisor, and submits its next job.
    waiting = _Fixed("waiting.json")
    # State of the synchronization between this folder and the bucket; never uploaded.
    sync = _Fixed("sync")
    # Locked by the process that uploads this folder to the bucket.
    sync_lock = _Fixed("sync/lock")
    sync_log = _Fixed("sync/log")
    supervisor_log = _Fixed("supervisor.log")
    # Output of uv while the run's virtual environment was built.
    environment_log = _Fixed("environment.log")
    # Holds a link to podlift and nothing else, for tasks that do not see the environment podlift is installed in.
    facade = _Fixed("podlift")
    # Preallocated space for the last records of each process, in case the disk fills up. See storage/reserve.py.
    reserves = _Fixed("reserves")
    # Holds the tasks' TMPDIRs. Removed when the attempt ends.
    temporary = _Fixed("tmp")

    model = _Fixed("model")
    checkpoints = _Fixed("checkpoints")
    tensorboard = _Fixed("logs")
    # Checkpoints that podlift writes. The program's own are in `checkpoints`.
    store = _Fixed("store")
    # Files the program wrote, collected when its attempt ended. Missing if there are none.
    outputs = _Fixed("outputs")
    # New and changed files of the first task's copy of the bundle.
    outputs_work = _Fixed("outputs/work")
    # The files of `model`, in a separate folder so that names cannot collide.
    outputs_model = _Fixed("outputs/model")

    # The containers that form an attempt. The first task's container writes it, which creates the attempt.
    membership = _OfAttempt("membership.json")
    # The containers that can take part in an attempt, one file each.
    ready_for = _OfAttempt("ready")
    # How an attempt in containers ended, and whether another one follows. Created once, by any of the containers.
    end = _OfAttempt("end.json")
    # Tasks of an attempt in containers that were restarted alone, one numbered file each.
    restarts = _OfAttempt("restarts")
    # Tasks without activity for so long that it counts as a hang, one file each.
    stalls = _OfAttempt("stalled")
    # Tasks with idle GPUs in an attempt in containers, one file each.
    idle = _OfAttempt("idle")
    payload = _OfAttempt("payload.json")
    # The payload of the last phase, after the training: it registers the model and compares it with the champion.
    last_phase = _OfAttempt("last_phase.json")
    # When the logs of an attempt grew. May be missing.
    log_times = _OfAttempt("logs/times.jsonl")
    # A folder: the actions that all tasks of an attempt agree on, and the step for each.
    rendezvous = _OfAttempt("rendezvous")
    # Exists once the attempt has a verdict, before the supervisor stops its tasks.
    decided = _OfAttempt("decided.json")

    log = _OfTask("logs/{}.log")
    # The last output of a task with logs at a service, as parts of a growing file without its beginning.
    tail = _OfTask("tails/{}.log")
    metrics = _OfTask("metrics/{}.jsonl")
    # Calls for random numbers without a seed that a drill has recorded in a task. Missing if there were none.
    unseeded = _OfTask("unseeded/{}.jsonl")
    # A task's use of its machine, sampled by the process that watches it. May be missing.
    machine = _OfTask("machine/{}.jsonl")
    # A task's progress: a small file that it rewrites with every step.
    progress = _OfTask("progress/{}")
    # The task's private copy of the bundle, in which it starts.
    work = _OfTask("tasks/{}/code")

    @property
    def root(self) -> str:
        """The root that the directory's location implies."""
        return posixpath.dirname(posixpath.dirname(self.url))

    @property
    def run_id(self) -> str:
        return self.url.rpartition("/")[2]

    def revision(self, name: str) -> str:
        """The plan of a run that was resumed with other code. The record of the resume names it."""
        return posixpath.join(self.url, "plans", f"{name}.json")

    def cancel_request(self, number: int) -> str:
        return posixpath.join(self.control, f"{number:06d}.cancel.json")

    def remote_cancel_request(self, resumes: int, number: int) -> str:
        """A cancel request from another machine, for the supervisor that the run has after this many resumes."""
        return posixpath.join(self.control, f"{resumes:04d}-{number:06d}.cancel.json")

    def owner(self, resumes: int) -> str:
        """Exists on the machine that supervises a run in a bucket, after this many resumes."""
        return posixpath.join(self.sync, f"{resumes:04d}.owner")

    def uploaded(self, resumes: int) -> str:
        """Exists there once everything that this supervisor wrote is in the bucket."""
        return posixpath.join(self.sync, f"{resumes:04d}.uploaded")

    @staticmethod
    def part(file: str, offset: int) -> str:
        """One part of a growing file, as a bucket stores it."""
        return posixpath.join(file, f"{offset:015d}.part")

    def launch_spec(self, job: int, location: int = 0) -> str:
        """The launch spec for the containers of a vendor's job, in this location of the plan."""
        name = f"{job:04d}.location-{location}" if location else f"{job:04d}"
        return posixpath.join(self.url, "jobs", f"{name}.launch_spec.json")

    def intent(self, job: int) -> str:
        """The request to the vendor, written before it is sent."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.intent.json")

    def created(self, job: int) -> str:
        """The vendor's name for the job, written once it is known."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.created.json")

    def driver_spec(self, job: int) -> str:
        """The launch spec for the driver of a job, for a service with a driver that starts the containers."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.driver_spec.json")

    def seen(self, job: int, nonce: str) -> str:
        """A file that the machines of a job find, if they see the root where the driver does."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.{nonce}.seen.json")

    def keeper(self, job: int) -> str:
        """The vendor's name for the keeper of the jobs from this one on, written once it is known."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.keeper.json")

    def keeper_spec(self, job: int) -> str:
        """The launch spec for the container of the keeper."""
        return posixpath.join(self.url, "jobs", f"{job:04d}.keeper_spec.json")

    def ready(self, attempt: int, task: str, nonce: str) -> str:
        return posixpath.join(self.ready_for(attempt), f"{task}.{nonce}.json")

    def restart(self, attempt: int, number: int) -> str:
        """The decision to restart a task alone, numbered over all tasks of the attempt."""
        return posixpath.join(self.restarts(attempt), f"{number:06d}.json")

    def stall(self, attempt: int, task: str, beats: int) -> str:
        """A task that has hung since it had finished this many batches."""
        return posixpath.join(self.stalls(attempt), f"{task}.{beats:012d}.json")

    def event(self, attempt: int, source: str, sequence: int, kind: str) -> str:
        return posixpath.join(self.events, f"{attempt:04d}.{source}.{sequence:06d}.{kind}.json")

    def reserve(self, attempt: int, source: str) -> str:
        return posixpath.join(self.reserves, f"{attempt:04d}.{source}")

    def attempt(self, attempt: int) -> str:
        return posixpath.join(self.url, "attempts", f"{attempt:04d}")

    def kill(self, index: int) -> str:
        """Exists once a drill has killed a task."""
        return posixpath.join(self.url, "kills", f"{index:04d}.json")

    def kill_points(self, task: str) -> str:
        """How often a task has reached each kill point of a drill, over all attempts."""
        return posixpath.join(self.url, "kills", f"{task}.kill_points.json")
