"""The versioned JSON that tells a task what to run. It is the only message from podlift's client to a task."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from .gates import Gate
from .policies import Checkpoints, Limits
from .wire import decode

VERSION = 1
# The variable with the number of times that a task was restarted alone in its attempt; missing for never.
TASK_RESTARTS = "PODLIFT_TASK_RESTARTS"
KillPoint = Literal["step", "epoch", "save", "validation"]
# "process": the task's process. "agent": the agent of its container, which ends the container. "machine": its machine, with
# some notice. "region": its agent, and then all machines of its region, until a job has failed to get one.
KillTarget = Literal["process", "agent", "machine", "region"]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill of a task: of its process by SIGKILL, or of its agent, machine or region (`what`).

    "step": after that training step of the run. "epoch": after that epoch of the task, before its state is saved. "save":
    once the task has begun that many checkpoints, while the last one is being written. "validation": at the first batch of
    that validation. Epochs, saves and validations are counted over all attempts, repeated ones included.
    """

    task: str
    point: KillPoint
    number: int  # from 1
    what: KillTarget = "process"

    def __str__(self) -> str:
        return f"{self.task}@{self.point}:{self.number}" + (f":{self.what}" if self.what != "process" else "")

    @property
    def announcement(self) -> str:
        """The line that the task prints to request the kill from the emulator."""
        return f"podlift: drill: {self}"


@dataclass(frozen=True, kw_only=True)
class Drill:
    """The kills of a run in a drill."""

    seed: int  # of all random numbers
    kills: tuple[Kill, ...] = ()


Choice = Literal["champion", "last"]


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """The version of a registered model that gives a run its first weights. The plan chooses it: restarts use the same."""

    choice: Choice
    model: str
    version: int = 0  # 0 if there was none: the weights start fresh
    manifest: str = ""  # digest of the list of its files
    why: str = ""  # why there was none

    def __str__(self) -> str:
        if not self.version:
            return f"fresh weights: {self.why}"
        what = "the champion" if self.choice == "champion" else "the newest version"
        return f"version {self.version} of {self.model!r}, {what}"

    @property
    def unused(self) -> str:
        """The note on a run with a program that never loaded them."""
        return (
            f"warm_start: the weights of {self} were never loaded, because the program called no fit. Next: "
            "sdk.context().warm_start(model) before its training loop."
        )


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The work of one attempt of a run."""

    run_id: str
    run_url: str  # the run's directory
    attempt: int  # from 1
    kind: str  # "script", "module" or "function"
    target: str  # the script's path in the bundle, or the module
    function: str  # its name; "" unless `kind` is "function"
    argv: list[str]  # words after the script's or module's name
    kwargs: dict[str, object]  # keyword arguments of the function
    bundle: str  # path of the archive
    digest: str  # sha256 of the bundle
    roots: list[str]  # folders of the bundle that come first on sys.path, "" for the top
    tasks: list[str]  # names of all tasks; the first one decides whether the run succeeded
    writes: str  # "chief" or "all": the tasks that write Keras files to the path in the program
    limits: Limits
    checkpoints: Checkpoints
    cwd: str = ""  # folder of the bundle in which the program starts, "" for the top
    inputs: dict[str, str] = field(default_factory=dict)  # where the data is, by name
    source_dirs: list[str] = field(default_factory=list)  # the original project: a task must not import from there
    warm_start: str = ""  # the checkpoint to start with, as `STORE#COMMIT`; "" for none
    initial: InitialWeights | None = None  # the weights to start with
    models: str = ""  # where registered models are
    drill: Drill | None = None
    store: str = ""  # where checkpoints are kept; "" for the run's own directory
    bucket_url: str = ""  # the run's directory in a bucket, if the tasks share no folder; "" if they do
    cancels: int = 0  # cancel requests that earlier supervisors have handled; without `bucket_url` only
    # How often the run was resumed, in all and by users: a cancel request counts until the next resume by a user. Used with
    # `bucket_url` only.
    resumes: int = 0
    resumes_by_users: int = 0
    vendor: str = ""  # folder of packages that come last on sys.path; "" for none
    tpu: str = ""  # row of the accelerator table, if the task runs on a TPU; "" for none
    gpu: str = ""  # likewise, if it has GPUs
    stand_in: bool = False  # True if logical CPU devices stand in for the accelerator
    copied: list[str] = field(default_factory=list)  # variables without a stored value: the caller's, and secrets
    secrets: dict[str, str] = field(
        default_factory=dict
    )  # versions in Secret Manager by variable, for tasks in containers
    replicas: tuple[int, int] | None = None  # of this job and of the run's first location, to keep its global batch
    model: str = (
        ""  # the name under which the run's model is registered when the program has succeeded; "" if it is not
    )
    gate: Gate = field(default_factory=Gate)  # the conditions for that model's promotion
    cores: str = ""  # how the tasks divide this machine's CPUs, for the log

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Payload:
        """Read the output of `to_json`; fields unknown to this version are ignored."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ValueError(f"This is not a payload of version {VERSION}. Received: {str(text)[:80]!r}")
        return decode(Payload, data)
