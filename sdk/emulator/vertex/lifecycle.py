"""The state machine of a custom job, without clock, threads or I/O.

Each public method of `Lifecycle` is an event that changes `status` and appends to `actions`.
Documented numbers are Google's: five restarts of a worker, three retries of a job, six after a spot preemption, three
attempts after a stockout or an internal error. The durations of stages are `JobTimings`, because waiting teaches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from ..messages import duration_s
from .environment import replicas

QUEUED, PENDING, RUNNING = "JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING"
SUCCEEDED, FAILED, CANCELLED = "JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"
CANCELLING, EXPIRED = "JOB_STATE_CANCELLING", "JOB_STATE_EXPIRED"
TERMINAL = frozenset((SUCCEEDED, FAILED, CANCELLED, EXPIRED))
_TIMEOUT_S, _MAX_WAIT_S = 7 * 86400.0, 86400.0

Stage = Literal["queued", "provisioning", "starting", "running", "stopping", "over"]
RestartStage = Literal["", "starting", "provisioning"]
ActionKind = Literal["log", "start", "start_one", "stop", "preempt", "kill", "close"]
CHIEF = "workerpool0-0"
# SIGABRT and SIGSEGV of a container; any other exit code is the program's own fault.
TRANSIENT = frozenset((134, 139))
# "starting" too: containers write lines before all of them are known to have started.
ACTIVE = frozenset(("starting", "running"))
INTERNAL = "Internal error occurred for the current attempt"
_WORKER_RESTARTS, _RETRIES, _PREEMPTIONS, _STOCKOUTS, _INTERNAL = 5, 3, 6, 3, 2
_CANCELLED, _INVALID, _DEADLINE, _EXHAUSTED, _INTERNAL_CODE = 1, 3, 4, 8, 13


@dataclass(frozen=True, kw_only=True)
class JobTimings:
    """Durations that are minutes on Vertex AI, in seconds."""

    queue_s: float = 0.05  # Before the job leaves the queue
    provision_s: float = 0.05  # Before its machines are ready; also before each retry of the whole job
    stockout_s: float = 0.05  # Between two attempts to get machines
    grace_s: float = 1.0  # Between SIGTERM and SIGKILL when a job is ended; Google documents none
    error_s: float = 0.0  # Between the end of a job and the appearance of its `error`; about a minute on Vertex AI


@dataclass(frozen=True, kw_only=True)
class SchedulingTerms:
    replicas: tuple[str, ...]
    region: str
    logs_url: str
    timeout_s: float = _TIMEOUT_S
    max_wait_s: float | None = None
    spot: bool = False
    flex: bool = False
    restart_job: bool = False
    retries: bool = True

    @classmethod
    def of(cls, job: Mapping[str, Any], *, region: str, logs_url: str) -> SchedulingTerms:
        scheduling = job.get("jobSpec", {}).get("scheduling", {})
        strategy, disabled = scheduling.get("strategy"), scheduling.get("disableRetries", False)
        wait = duration_s(scheduling["maxWaitDuration"]) if "maxWaitDuration" in scheduling else _MAX_WAIT_S
        return cls(
            replicas=tuple(replica.name for replica in replicas(job)),
            region=region,
            logs_url=logs_url,
            timeout_s=duration_s(scheduling["timeout"]) if "timeout" in scheduling else _TIMEOUT_S,
            # Zero means no limit.
            max_wait_s=wait or None if strategy == "FLEX_START" else None,
            spot=strategy == "SPOT",
            flex=strategy == "FLEX_START",
            restart_job=scheduling.get("restartJobOnWorkerRestart", False) and not disabled,
            retries=not disabled,
        )


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    state: str
    code: int = 0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job. Times are Unix times in seconds, of the job's own clock."""

    state: str  # As the API shows it
    stage: Stage
    created: float
    updated: float
    due: float | None = None  # When time alone changes something; None for never
    behind: float = 0.0  # How far the clock was moved without the job: all its times are earlier by this
    started: float | None = None
    ended: float | None = None
    outcome: JobOutcome | None = None  # How it ends, or will end once all replicas are stopped
    # The stage after a stop that is not the end: "starting" in the same place, "provisioning" on new machines
    next_stage: RestartStage = ""
    restarts: Mapping[str, int] = field(default_factory=dict)
    retries: int = 0
    preemptions: int = 0
    stockouts: int = 0
    internal: int = 0
    preempted: tuple[str, ...] = ()
    out_of_memory: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> JobStatus:
        values = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        values["outcome"] = JobOutcome(**values["outcome"]) if values["outcome"] else None
        for name in ("preempted", "out_of_memory"):
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class JobAction:
    """A command: `log` a line, `start` all replicas, `start_one`, `stop` all, `preempt` or `kill` one, or `close` for good."""

    kind: ActionKind
    replica: str = ""
    text: str = ""
    severity: str = "INFO"


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether there are machines: `room`, none yet (`held`, until a known time or not) or none at all (`stockout`)."""

    kind: Literal["room", "held", "stockout"] = "room"
    until: float = math.inf


_CANCELLED_OUTCOME = JobOutcome(state=CANCELLED, code=_CANCELLED, message="CANCELED")
_EXPIRED_OUTCOME = JobOutcome(
    state=EXPIRED,
    code=_DEADLINE,
    message="The requested resources were not available within the maximum wait duration.",
)
_INTERNAL_OUTCOME = JobOutcome(state=FAILED, code=_INTERNAL_CODE, message=f"{INTERNAL}.")


class Lifecycle:
    """One job. Each event happens at the time `now` of its own clock; the caller performs the `actions` that follow from it."""

    def __init__(self, terms: SchedulingTerms, timings: JobTimings, status: JobStatus) -> None:
        self.status, self.now = status, status.updated
        self.actions: list[JobAction] = []
        self._terms, self._timings = terms, timings

    def enqueue(self) -> None:
        self._wait(self.now + self._timings.queue_s)
        self._log("Waiting for job to be provisioned.")

    def tick(self, availability: Availability) -> None:
        """Apply the changes by the time alone; called when `due` has come, or when the availability has changed."""
        status, terms, now = self.status, self._terms, self.now
        is_waiting = status.stage in ("queued", "provisioning")
        if is_waiting and status.state == CANCELLING:
            self._finish(status.outcome or _CANCELLED_OUTCOME)
        elif is_waiting and now >= self._max_wait_until():
            self._finish(_EXPIRED_OUTCOME)
        elif status.stage == "queued":
            self._leave_queue(availability)
        elif status.stage == "provisioning":
            self._provision(availability)
        elif status.stage == "running" and status.started is not None and now >= status.started + terms.timeout_s:
            text = f"The job was cancelled because it exceeded its timeout of {terms.timeout_s:g} seconds."
            # Google documents no final state.
            self._stop(outcome=JobOutcome(state=CANCELLED, code=_CANCELLED, message=text), state=CANCELLING)

    def replicas_started(self) -> None:
        if self.status.stage == "starting":
            started = self.now if self.status.started is None else self.status.started
            self._set(state=RUNNING, stage="running", started=started, due=started + self._terms.timeout_s, stockouts=0)
            self._log("Job is running.")

    def replicas_exited(self, codes: Mapping[str, int], killed: Set[str] = frozenset()) -> None:
        """Replicas have exited, perhaps several at the same time."""
        if self.status.stage != "running":
            return
        if killed:
            self._set(out_of_memory=tuple({*self.status.out_of_memory, *killed}))
        status, terms = self.status, self._terms
        gone = [name for name in codes if name in status.preempted]
        bad = sorted((name for name, code in codes.items() if code), key=terms.replicas.index)
        if codes.get(CHIEF) == 0:
            self._stop(outcome=JobOutcome(state=SUCCEEDED))
        elif gone:
            self._replace_machine(gone[0])
        else:
            # An exit that restarts nothing decides, wherever it is in the order.
            bad.sort(key=lambda name: terms.retries and codes[name] in TRANSIENT and name not in status.out_of_memory)
            for name in bad:
                if self.status.stage == "running":
                    self._restart(name, codes[name])

    def replicas_stopped(self) -> None:
        """The last process of the job has ended."""
        if self.status.stage != "stopping":
            return
        self._set(preempted=(), out_of_memory=())
        if self.status.outcome is not None:
            self._finish(self.status.outcome)
        elif self.status.next_stage == "starting":
            self._set(stage="starting", next_stage="")
            self._do("start")
        else:
            due = self.now + self._timings.provision_s
            self._set(state=PENDING, stage="provisioning", next_stage="", due=due)
            self._log("Waiting for job to be provisioned.")

    def cancel(self) -> None:
        stage = self.status.stage
        if stage == "over" or self.status.state == CANCELLING:
            return
        outcome = self.status.outcome or _CANCELLED_OUTCOME
        if stage in ("queued", "provisioning"):
            self._set(state=CANCELLING, due=self.now)
        elif stage == "stopping":
            self._set(state=CANCELLING, outcome=outcome, next_stage="")
        else:
            self._stop(outcome=outcome, state=CANCELLING)

    def preempt(self, replica: str) -> None:
        if self._is_active(replica) and replica not in self.status.preempted:
            self._set(preempted=(*self.status.preempted, replica))
            self._log(f"The machine of {replica} is being taken away.", "WARNING")
            self._do("preempt", replica)

    def kill(self, replica: str) -> None:
        if self._is_active(replica):
            self._do("kill", replica)

    def out_of_memory(self, replica: str) -> None:
        if self._is_active(replica):
            self._set(out_of_memory=(*self.status.out_of_memory, replica))
            self._stop(outcome=self._exit_outcome(replica, 137))

    def internal_error(self) -> None:
        if self.status.stage not in ACTIVE:
            return
        self._set(internal=self.status.internal + 1)
        if not self._terms.retries or self.status.internal > _INTERNAL:
            self._stop(outcome=_INTERNAL_OUTCOME)
        else:
            self._log(f"{INTERNAL}; the job is restarted.", "WARNING")
            self._stop(next_stage="provisioning")

    def expire(self) -> None:
        """The service gives up on the job, wherever it is."""
        if self.status.stage in ("queued", "provisioning"):
            self._finish(self.status.outcome or _EXPIRED_OUTCOME)
        elif self.status.stage in ACTIVE:
            self._stop(outcome=_EXPIRED_OUTCOME)

    def fall_behind(self, seconds: float) -> None:
        """The clock was moved without the job. Its machines are there at once, unless it waits for something else."""
        status = self.status
        due = status.updated if status.due is not None and status.stage in ("queued", "provisioning") else status.due
        self.status = replace(status, due=due, behind=status.behind + seconds)

    def emulator_error(self, why: str) -> None:
        """The emulator itself cannot continue with the job."""
        if self.status.stage != "over":
            self._finish(replace(_INTERNAL_OUTCOME, message=f"{INTERNAL}: {why}"))

    def recover(self) -> None:
        """The emulator was restarted: all processes of the job have ended."""
        if self.status.stage in ("queued", "provisioning", "over"):
            return
        if self.status.state == CANCELLING:
            self._finish(self.status.outcome or _CANCELLED_OUTCOME)
        else:
            self.emulator_error("the emulator was restarted while the job was running.")

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, updated=self.now, **changes)

    def _do(self, kind: ActionKind, replica: str = "") -> None:
        self.actions.append(JobAction(kind=kind, replica=replica))

    def _log(self, text: str, severity: str = "INFO") -> None:
        self.actions.append(JobAction(kind="log", text=text, severity=severity))

    def _is_active(self, replica: str) -> bool:
        return self.status.stage in ACTIVE and replica in self._terms.replicas

    def _max_wait_until(self) -> float:
        is_limited = self._terms.max_wait_s is not None and self.status.started is None
        return self.status.created + (self._terms.max_wait_s or 0.0) if is_limited else math.inf

    def _wait(self, due: float) -> None:
        """Set the next deadline: the next check of the availability, or the end of the maximum wait."""
        until = min(due, self._max_wait_until())
        self.status = replace(self.status, due=None if math.isinf(until) else until)

    def _leave_queue(self, availability: Availability) -> None:
        if availability.kind == "held":
            self._wait(availability.until)
            return
        self._set(state=PENDING, stage="provisioning")
        self._wait(self.now + self._timings.provision_s)
        self._log(
            "Vertex AI is provisioning job running framework. First time usage might take couple of minutes, and subsequent"
            " runs can be much faster."
        )
        self._log("Vertex AI is setting up this job.")

    def _provision(self, availability: Availability) -> None:
        if availability.kind != "stockout":
            self._set(stage="starting", due=None)
            self._log("Waiting for training program to start.")
            self._log("Job is preparing.")
            self._do("start")
            return
        self._set(stockouts=self.status.stockouts + 1)
        outcome = self._stockout_outcome()
        if not self._terms.flex and self.status.stockouts >= _STOCKOUTS:
            self._finish(outcome)
        else:
            self._wait(self.now + self._timings.stockout_s)
            self._log(outcome.message, "WARNING")

    def _replace_machine(self, replica: str) -> None:
        """Continue after the end of a replica on a preempted machine."""
        terms, outcome = self._terms, self._stockout_outcome()
        if not terms.spot:
            # Maintenance of a machine: the worker restarts on another one, and it does not count as a restart.
            if not terms.retries:
                self._stop(outcome=_INTERNAL_OUTCOME)
            elif terms.restart_job:
                self._stop(next_stage="provisioning")
            else:
                self._set(preempted=tuple(name for name in self.status.preempted if name != replica))
                self._do("start_one", replica)
            return
        self._set(preemptions=self.status.preemptions + 1)
        if not terms.retries or self.status.preemptions > _PREEMPTIONS:
            self._stop(outcome=outcome)
        else:
            self._log(f"{outcome.message} The job is restarted.", "WARNING")
            self._stop(next_stage="provisioning")

    def _restart(self, replica: str, code: int) -> None:
        """Restart by the rule for a replica's exit code, or fail."""
        status, terms = self.status, self._terms
        count = status.restarts.get(replica, 0) + 1
        is_transient = code in TRANSIENT and replica not in status.out_of_memory and terms.retries
        if not is_transient or (count > _WORKER_RESTARTS and status.retries >= _RETRIES):
            self._stop(outcome=self._exit_outcome(replica, code))
            return
        self._log(f"The replica {replica} exited with a non-zero status of {code} and is restarted.", "WARNING")
        if count > _WORKER_RESTARTS:
            self._set(retries=status.retries + 1, restarts={})
            self._stop(next_stage="provisioning")
            return
        self._set(restarts={**status.restarts, replica: count})
        if terms.restart_job:
            self._stop(next_stage="starting")
        else:
            self._do("start_one", replica)

    def _stockout_outcome(self) -> JobOutcome:
        text = (
            f"Resources are insufficient in region: {self._terms.region}. Try a different region or use a different"
            " accelerator."
        )
        return JobOutcome(state=FAILED, code=_EXHAUSTED, message=text)

    def _exit_outcome(self, replica: str, code: int) -> JobOutcome:
        if replica in self.status.out_of_memory:
            text = f"The replica {replica} ran out of memory and exited with a non-zero status of {code}."
        else:
            text = f"The replica {replica} exited with a non-zero status of {code}. Termination reason: Error."
        why = f"To find out more about why your job exited please check the logs: {self._terms.logs_url}"
        return JobOutcome(state=FAILED, code=_INVALID, message=f"{text} {why}")

    def _stop(self, *, outcome: JobOutcome | None = None, next_stage: RestartStage = "", state: str = "") -> None:
        state = state or self.status.state
        self._set(stage="stopping", state=state, outcome=outcome, next_stage=next_stage, due=None, preempted=())
        self._do("stop")

    def _finish(self, outcome: JobOutcome) -> None:
        self._set(state=outcome.state, stage="over", outcome=outcome, ended=self.now, due=None, next_stage="")
        if outcome.state == SUCCEEDED:
            self._log("Job completed successfully.")
        elif outcome.state == CANCELLED:
            self._log("Job was cancelled.")
        else:
            if outcome.state != EXPIRED:
                self._log("Job failed.", "ERROR")
            self._log(outcome.message, "ERROR")
        self._do("close")
