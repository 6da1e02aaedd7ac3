"""Run states, reasons and their exit codes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from enum import Enum

from .text import html_lines, html_table, milestones, money, shown

EXIT_DONE = 0
EXIT_USER = 1
EXIT_INPUT = 2
EXIT_INFRASTRUCTURE = 3
EXIT_CANCELLED = 4
EXIT_CHECKPOINTED = 75


class State(str, Enum):
    """The state of a run: `run.status().state is sdk.State.SUCCEEDED`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    CHECKPOINTED = "CHECKPOINTED"
    LOST = "LOST"

    @property
    def terminal(self) -> bool:
        """True if the run has ended: `run.status().state.terminal`."""
        return self not in (State.PENDING, State.RUNNING)


class Reason(str, Enum):
    """Why a run is in its state: `run.status().reason is sdk.Reason.PREEMPTED`."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    PROVISIONING = "provisioning"
    PREPARING = "preparing"
    TRAINING = "training"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    EVALUATING = "evaluating"
    DONE = "done"
    USER_ERROR = "user_error"
    IMPORT_ERROR = "import_error"
    WRONG_ENTRY = "wrong_entry"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    HUNG = "hung"
    ACCELERATOR_IDLE = "accelerator_idle"
    CANCELLED = "cancelled"
    CHECKPOINTED = "checkpointed"
    PREEMPTED = "preempted"
    INFRASTRUCTURE = "infrastructure"
    INTERNAL = "internal"
    SUPERVISOR_LOST = "supervisor_lost"
    JOB_LOST = "job_lost"
    QUOTA = "quota"
    STOCKOUT = "stockout"
    PERMISSION = "permission"
    IMAGE = "image"
    REFUSED = "refused"
    BUDGET = "budget"


_EXIT_CODES = {
    State.PENDING: None,
    State.RUNNING: None,
    State.SUCCEEDED: EXIT_DONE,
    State.CANCELLED: EXIT_CANCELLED,
    State.CHECKPOINTED: EXIT_CHECKPOINTED,
    State.LOST: EXIT_INFRASTRUCTURE,
}
_USER_FAULTS = (
    Reason.USER_ERROR, Reason.IMPORT_ERROR, Reason.WRONG_ENTRY, Reason.TIMEOUT, Reason.BUDGET, Reason.ACCELERATOR_IDLE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a training, as reported by its first task.

    Args:
        step: training steps of the run, including earlier attempts.
        epoch: the current epoch of `fit`, from 1; None outside of `fit`.
        epochs: the last epoch of `fit`; None if unknown.
        epoch_step: completed steps of this epoch.
        epoch_steps: steps of an epoch; None if unknown.
    """

    step: int
    epoch: int | None = None
    epochs: int | None = None
    epoch_step: int | None = None
    epoch_steps: int | None = None

    @property
    def left(self) -> int | None:
        """Steps until `fit` ends; None if unknown."""
        if self.epoch is None or self.epochs is None or self.epoch_steps is None or self.epoch_step is None:
            return None
        return max(0, (self.epochs - self.epoch + 1) * self.epoch_steps - self.epoch_step)

    def __str__(self) -> str:
        if self.epoch is None:
            return f"step {self.step}"
        of, steps = (f"/{self.epochs}" if self.epochs else ""), (f"/{self.epoch_steps}" if self.epoch_steps else "")
        return f"epoch {self.epoch}{of} step {self.epoch_step}{steps}"


def steps_left(progress: Progress, max_steps: int | None) -> int | None:
    """Return the training steps until a training ends, by its epochs or its limit; None if unknown."""
    until_limit = None if max_steps is None else max(0, max_steps - progress.step)
    return min((steps for steps in (until_limit, progress.left) if steps is not None), default=None)


def done_share(progress: Progress, left: int) -> float:
    """Return the part of a training that is done, from 0 to 1."""
    done = progress.step
    if progress.epoch is not None and progress.epoch_steps is not None:
        # This fit alone: the steps of the run include earlier fits.
        done = (progress.epoch - 1) * progress.epoch_steps + (progress.epoch_step or 0)
    return done / (done + left) if done + left else 0.0


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """How the time of a run was spent, in seconds: `run.goodput().parts`. The parts add up to `total_s`.

    Args:
        task: name of the task: the first one by default.
        total_s: from the submit to the end of the run, or until now.
        start_s: until the first training begins: environment, imports, data, the restored checkpoint of a resumed run.
        compile_s: the first call of each train function, with its first step.
        input_wait_s: steps that waited for their next batch; None where that is not measured: TPUs, parameter servers,
            several steps in an execution, deterministic operations.
        step_s: training steps that were kept, with the callbacks between them and the communication of the tasks. This is the
            productive time.
        communication_s: None: it is part of the steps, and only a profiler can separate the two.
        checkpoint_s: training that waited for its checkpoints.
        evaluation_s: `evaluate`, `predict` and the validation of `fit`.
        lost_to_failures_s: steps that were done again, failed attempts until they ended, and all that a restarted attempt
            needs until it trains.
        idle_s: no task could run: waiting for machines, between the end of a run and its resume, while the machine slept.
        other_s: the program's other work, such as callbacks at the end of an epoch and work after the training.
        steps_lost: training steps that were done again.
    """

    task: str
    total_s: float = 0.0
    start_s: float = 0.0
    compile_s: float = 0.0
    input_wait_s: float | None = None
    step_s: float = 0.0
    communication_s: float | None = None
    checkpoint_s: float = 0.0
    evaluation_s: float = 0.0
    lost_to_failures_s: float = 0.0
    idle_s: float = 0.0
    other_s: float = 0.0
    steps_lost: int = 0

    @property
    def goodput(self) -> float:
        """The productive share of the time, from 0 to 1."""
        return self.step_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def program_share(self) -> float:
        """The share of the time that the program had: steps, their input, evaluations and its other work, from 0 to 1."""
        own = self.step_s + (self.input_wait_s or 0.0) + self.evaluation_s + self.other_s
        return own / self.total_s if self.total_s > 0 else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """The parts that are measured, in seconds by their names: "start", "input_wait"."""
        measured = {
            name.removesuffix("_s"): getattr(self, name) for name in self.__dataclass_fields__ if name[-2:] == "_s"
        }
        return {name: seconds for name, seconds in measured.items() if name != "total" and seconds is not None}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first real failure of a run."""

    task: str  # such as "chief-0"; "" if it belongs to none
    message: str  # one line
    traceback: str = ""  # of the user's program, or the last log lines
    log: str = ""  # path of the task's whole log


@dataclass(frozen=True, kw_only=True)
class Registered:
    """The outcome of the registration of a run's model.

    Args:
        model: the name of the model.
        version: the number of its version, 0 if there is none.
        outcome: "registered" without a gate; "promoted"; "kept", if the champion stays;
            "asks", if it needs an approval; "none", if the run has no model.
        reason: why, in one sentence.
    """

    model: str
    version: int = 0
    outcome: str = "registered"
    reason: str = ""

    @property
    def line(self) -> str:
        """The outcome in one sentence, without the next command."""
        if self.outcome == "none":
            return self.reason
        words = {"promoted": "was promoted", "kept": "was not promoted", "asks": "needs an approval"}
        about = f"version {self.version} of {self.model!r} {words.get(self.outcome, 'was registered')}"
        return f"{about}: {self.reason}" if self.reason else about

    def __str__(self) -> str:
        """Return the line and the next command."""
        model = shlex.quote(self.model)
        following = {
            "promoted": f"status {model} {self.version}",
            "asks": f"promote {model} {self.version} --as-compared",
        }
        command = following.get(self.outcome)
        return f"{self.line}. Next: podlift models {command}" if command else self.line


@dataclass(frozen=True, kw_only=True)
class Status:
    """The status of a run, read from its records: `status = run.status(); print(status.state, status.saved_step)`.

    Args:
        state: its state.
        reason: why it is in this state.
        attempts: number of attempts that were started.
        failure: the root cause of a failed run.
        value: the return value of the entry function in the first task; None for a script.
        timings: seconds from submit to each milestone: `started`, `entry`, `first_step`, `finished`.
        created: unix time of the submit, in seconds.
        since: unix time at which it entered this state, in seconds; for a lost run, the time of its last record.
        saved_step: training step of the last checkpoint; None without one.
        saved_at: unix time of the last checkpoint, in seconds; training since then is at risk.
        saved_every_s: seconds from one checkpoint to the next, if that was chosen while the run trains; otherwise None.
        restarted_alone: number of restarts in the last attempt of each task that was restarted alone, by its name.
        continued_step: training step from which the last of several attempts continues, 0 if it starts from the beginning;
            None in a first attempt, and until it is known.
        vendor: the cloud's own state of its job, such as "JOB_STATE_QUEUED"; "" for none.
        service: who runs the job: "Vertex AI", or "the emulator at 127.0.0.1:8123"; "" for this machine.
        console: URL of the job's page in the cloud's console; "" for none, and on an emulator.
        spent_s: time in seconds for which the machines of its jobs have run so far; None for a run on this machine.
        spent_usd: its price so far, in US dollars, without boot disks; None if nothing is billed or no price is known.
        spent_at_least: True if a part of the price is unknown, which `spent_usd` does not hold.
        registered: outcome of the registration of the run's model; None if its job names none, and until it is known.
        findings: remarks about the last attempt that do not fail it, such as tasks that do not communicate.
    """

    state: State
    reason: Reason
    attempts: int = 0
    failure: Failure | None = None
    value: object = None
    timings: dict[str, float] = field(default_factory=dict)
    created: float = 0.0
    since: float = 0.0
    saved_step: int | None = None
    saved_at: float | None = None
    continued_step: int | None = None
    saved_every_s: float | None = None
    restarted_alone: dict[str, int] = field(default_factory=dict)
    vendor: str = ""
    service: str = ""
    console: str = ""
    spent_s: float | None = None
    spent_usd: float | None = None
    spent_at_least: bool = False
    registered: Registered | None = None
    findings: tuple[str, ...] = ()

    @property
    def user_fault(self) -> bool:
        """True if another start without a change would fail in the same way: `run.status().user_fault`."""
        return self.state is State.FAILED and self.reason in _USER_FAULTS

    @property
    def exit_code(self) -> int | None:
        """The exit code of this state: `sys.exit(run.status().exit_code)`; None while the run is going."""
        if self.state is State.FAILED:
            return EXIT_USER if self.user_fault else EXIT_INFRASTRUCTURE
        return _EXIT_CODES[self.state]

    def _repr_html_(self) -> str:
        rows = [("state", f"{self.state.value} ({self.reason.value})"), ("attempts", str(self.attempts))]
        rows += [("failure", self.failure.message)] if self.failure else []
        rows += [("value", shown(self.value))] if self.value is not None else []
        rows += [("timings", milestones(self.timings))]
        rows += [("last checkpoint", f"step {self.saved_step}")] if self.saved_step is not None else []
        spent = f"{'at least ' if self.spent_at_least else ''}{money(self.spent_usd)}"
        rows += [("spent", spent)] if self.spent_usd is not None else []
        rows += [("service", f"{self.service} {self.vendor} {self.console}".strip())] if self.service else []
        rows += [("model", str(self.registered))] if self.registered else []
        table = html_table([*rows, *(("finding", text) for text in self.findings)])
        return table + (html_lines(self.failure.traceback) if self.failure and self.failure.traceback else "")


def at_risk_s(status: Status, now: float) -> float | None:
    """Return the seconds of training after the last checkpoint; None without a checkpoint, and after the training's success."""
    if status.saved_at is None or status.state is State.SUCCEEDED or status.reason is Reason.EVALUATING:
        return None
    return max((status.since if status.state.terminal else now) - status.saved_at, 0.0)


def continuation(attempt: int, step: int | None) -> str:
    """Return where an attempt starts: "attempt 2 continues at step 480"."""
    if step:
        return f"attempt {attempt} continues at step {step}"
    return f"no checkpoint was saved: attempt {attempt} starts from the beginning"
