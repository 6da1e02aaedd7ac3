"""The words for how a run is doing. The one place that maps them to exit codes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from . import errors


class State(str, Enum):
    """Where a run is in its life."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    CHECKPOINTED = "CHECKPOINTED"
    LOST = "LOST"

    @property
    def terminal(self) -> bool:
        """True when nothing more will happen to the run."""
        return self not in (State.PENDING, State.RUNNING)


class Reason(str, Enum):
    """Why a run is in its state."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    PROVISIONING = "provisioning"
    PREPARING = "preparing"
    TRAINING = "training"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    DONE = "done"
    USER_ERROR = "user_error"
    IMPORT_ERROR = "import_error"
    WRONG_ENTRY = "wrong_entry"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    HUNG = "hung"
    CANCELLED = "cancelled"
    CHECKPOINTED = "checkpointed"
    PREEMPTED = "preempted"
    INFRASTRUCTURE = "infrastructure"
    SUPERVISOR_LOST = "supervisor_lost"
    QUOTA = "quota"
    STOCKOUT = "stockout"
    PERMISSION = "permission"
    IMAGE = "image"
    REFUSED = "refused"


_EXIT_CODES = {
    State.PENDING: None,
    State.RUNNING: None,
    State.SUCCEEDED: errors.EXIT_DONE,
    State.CANCELLED: errors.EXIT_CANCELLED,
    State.CHECKPOINTED: errors.EXIT_CHECKPOINTED,
    State.LOST: errors.EXIT_INFRASTRUCTURE,
}
_USER_FAULTS = (Reason.USER_ERROR, Reason.IMPORT_ERROR, Reason.WRONG_ENTRY, Reason.TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is, by what its first task has noted.

    Args:
        step: training steps of the run, those of earlier attempts included.
        epoch: which epoch of `fit` goes on, from 1; None where no `fit` does.
        epochs: after which one it ends; None where nobody knows.
        epoch_step: steps of this epoch that are over.
        epoch_steps: steps of an epoch; None while that is unknown.
    """

    step: int
    epoch: int | None = None
    epochs: int | None = None
    epoch_step: int | None = None
    epoch_steps: int | None = None

    @property
    def left(self) -> int | None:
        """Steps until `fit` ends; None where nobody knows."""
        if self.epoch is None or self.epochs is None or self.epoch_steps is None or self.epoch_step is None:
            return None
        return max(0, (self.epochs - self.epoch + 1) * self.epoch_steps - self.epoch_step)

    def __str__(self) -> str:
        if self.epoch is None:
            return f"step {self.step}"
        of, steps = (f"/{self.epochs}" if self.epochs else ""), (f"/{self.epoch_steps}" if self.epoch_steps else "")
        return f"epoch {self.epoch}{of} step {self.epoch_step}{steps}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first real failure of a run.

    Args:
        task: the task it happened in, such as "chief-0"; "" when it belongs to none.
        message: one line.
        traceback: the user's own traceback, or the last log lines; may be "".
        log: path of the task's whole log; may be "".
    """

    task: str
    message: str
    traceback: str = ""
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class Status:
    """What the records say about a run.

    Args:
        state: where it is in its life.
        reason: why.
        attempts: how often the whole gang was started.
        failure: the root cause, for a run that failed.
        value: what the entry function of the first task returned; None for a script.
        timings: seconds from submit to each milestone: `started`, `entry`, `first_step`, `finished`.
        created: unix time of the submit, in seconds.
        since: unix time at which it came into this state, in seconds; for a lost run, its last sign of life.
        saved_step: training step of the last checkpoint; None where there is none.
        saved_at: unix time of it, in seconds: what was trained since is at risk.
        continued_step: training step at which the last of several attempts has continued, 0 where nothing was saved and it
            began anew; None in a first attempt, and until it is known.
        vendor: the cloud's own word for its job, such as "JOB_STATE_QUEUED", known to podlift or not; "" for none.
        console: where a browser shows that job; "" for none.
        findings: what is worth knowing and fails nothing, such as tasks that do not talk to each other; of the last attempt.
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
    vendor: str = ""
    console: str = ""
    findings: tuple[str, ...] = ()

    @property
    def user_fault(self) -> bool:
        """True where starting it again without a change would end the same way."""
        return self.state is State.FAILED and self.reason in _USER_FAULTS

    @property
    def exit_code(self) -> int | None:
        """The exit code that this state stands for; None while the run is going on."""
        if self.state is State.FAILED:
            return errors.EXIT_USER if self.user_fault else errors.EXIT_INFRASTRUCTURE
        return _EXIT_CODES[self.state]


def continuation(attempt: int, step: int | None) -> str:
    """Return where an attempt begins: "attempt 2 continues at step 480".

    Args:
        attempt: counts from 1.
        step: training steps that were saved before it; None or 0 where nothing was.
    """
    return (
        f"attempt {attempt} continues at step {step}" if step else f"nothing was saved: attempt {attempt} begins anew"
    )
