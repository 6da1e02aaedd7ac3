"""The state machine of a custom job. Pure: every function takes a `JobStatus` and the time and returns what follows.

Documented numbers are Google's: five restarts of a worker, three retries of a job, six after a spot preemption, three
attempts after a stockout or an internal error. The durations of phases are `JobTimings`, because waiting teaches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from .bodies import duration_s
from .environment import replicas

QUEUED, PENDING, RUNNING = "JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING"
SUCCEEDED, FAILED, CANCELLED = "JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"
CANCELLING, EXPIRED = "JOB_STATE_CANCELLING", "JOB_STATE_EXPIRED"
TERMINAL = frozenset((SUCCEEDED, FAILED, CANCELLED, EXPIRED))
_TIMEOUT_S, _MAX_WAIT_S = 7 * 86400.0, 86400.0

Phase = Literal["queued", "provisioning", "starting", "running", "stopping", "over"]
RestartPhase = Literal["", "starting", "provisioning"]
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
    """Durations that are minutes on Vertex AI, in seconds, and the states of jobs that exceed a limit."""

    queue_s: float = 0.05  # Before the job leaves the queue
    provision_s: float = 0.05  # Before its machines are ready; also before each retry of the whole job
    stockout_s: float = 0.05  # Between two attempts to get machines
    grace_s: float = 1.0  # Between SIGTERM and SIGKILL when a job is ended; Google documents none
    error_s: float = 0.0  # Between the end of a job and the appearance of its `error`; about a minute on Vertex AI
    timeout_state: str = CANCELLED  # The final state of a job that exceeds its timeout; Google documents none
    wait_state: str = EXPIRED  # The final state of a job that exceeds `maxWaitDuration`


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
        given = job.get("jobSpec", {}).get("scheduling", {})
        strategy, disabled = given.get("strategy"), given.get("disableRetries", False)
        wait = duration_s(given["maxWaitDuration"]) if "maxWaitDuration" in given else _MAX_WAIT_S
        return cls(
            replicas=tuple(replica.name for replica in replicas(job)),
            region=region,
            logs_url=logs_url,
            timeout_s=duration_s(given["timeout"]) if "timeout" in given else _TIMEOUT_S,
            # Zero means no limit.
            max_wait_s=wait or None if strategy == "FLEX_START" else None,
            spot=strategy == "SPOT",
            flex=strategy == "FLEX_START",
            restart_job=given.get("restartJobOnWorkerRestart", False) and not disabled,
            retries=not disabled,
        )


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    state: str
    code: int = 0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job. Times are Unix times in seconds."""

    state: str  # As the API shows it
    phase: Phase
    created: float
    updated: float
    due: float | None = None  # When time alone changes something; None for never
    started: float | None = None
    ended: float | None = None
    outcome: JobOutcome | None = None  # How it ends, or will end once all replicas are stopped
    # What follows a stop that is not the end: "starting" in the same place, "provisioning" on new machines
    next_phase: RestartPhase = ""
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
    def from_dict(cls, found: Mapping[str, Any]) -> JobStatus:
        values = {each.name: found[each.name] for each in fields(cls)}
        values["outcome"] = JobOutcome(**values["outcome"]) if values["outcome"] else None
        for name in ("preempted", "out_of_memory"):
            values[name] = tuple(values[name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class JobAction:
    """What to do: `log` a line, `start` all replicas, `start_one`, `stop` all, `preempt` one, or `close` for good."""

    kind: Literal["log", "start", "start_one", "stop", "preempt", "close"]
    replica: str = ""
    text: str = ""
    severity: str = "INFO"


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether there are machines: `room`, none yet (`held`, until a known time or not) or none at all (`stockout`)."""

    kind: Literal["room", "held", "stockout"] = "room"
    until: float | None = None


Transition = tuple[JobStatus, list[JobAction]]


_CANCELLED_OUTCOME = JobOutcome(state=CANCELLED, code=_CANCELLED, message="CANCELED")
_INTERNAL_OUTCOME = JobOutcome(state=FAILED, code=_INTERNAL_CODE, message=f"{INTERNAL}.")


def new_status(now: float) -> JobStatus:
    return JobStatus(state=QUEUED, phase="queued", created=now, updated=now)


def enqueue(terms: SchedulingTerms, now: float, timings: JobTimings) -> Transition:
    status = new_status(now)
    return _waiting(status, terms, now + timings.queue_s), [_log("Waiting for job to be provisioned.")]


def tick(
    status: JobStatus, terms: SchedulingTerms, now: float, timings: JobTimings, availability: Availability
) -> Transition:
    """Return what follows from the time alone; called when `due` has come, or when the availability has changed."""
    if status.state == CANCELLING and status.phase in ("queued", "provisioning"):
        return _finish(status, now, status.outcome or _CANCELLED_OUTCOME)
    is_waiting = status.phase in ("queued", "provisioning") and status.started is None
    if is_waiting and terms.max_wait_s is not None and now >= status.created + terms.max_wait_s:
        text = "The requested resources were not available within the maximum wait duration."
        return _finish(status, now, JobOutcome(state=timings.wait_state, code=_DEADLINE, message=text))
    if status.phase == "queued":
        return _leave_queue(status, terms, now, timings, availability)
    if status.phase == "provisioning":
        return _provision(status, terms, now, timings, availability)
    if status.phase == "running" and status.started is not None and now >= status.started + terms.timeout_s:
        text = f"The job was cancelled because it exceeded its timeout of {terms.timeout_s:g} seconds."
        code = _DEADLINE if timings.timeout_state == FAILED else _CANCELLED
        state = CANCELLING if timings.timeout_state == CANCELLED else status.state
        return _stop(status, now, outcome=JobOutcome(state=timings.timeout_state, code=code, message=text), state=state)
    return status, []


def replicas_started(status: JobStatus, terms: SchedulingTerms, now: float) -> Transition:
    if status.phase != "starting":
        return status, []
    started = now if status.started is None else status.started
    status = replace(
        status, state=RUNNING, phase="running", started=started, updated=now, due=started + terms.timeout_s, stockouts=0
    )
    return status, [_log("Job is running.")]


def replicas_exited(
    status: JobStatus, terms: SchedulingTerms, codes: Mapping[str, int], now: float, killed: Set[str] = frozenset()
) -> Transition:
    """Return what follows from replicas that have exited, perhaps several at the same time."""
    if status.phase != "running":
        return status, []
    status = replace(status, out_of_memory=tuple({*status.out_of_memory, *killed}))
    if codes.get(CHIEF) == 0:
        return _stop(status, now, outcome=JobOutcome(state=SUCCEEDED))
    gone = [name for name in codes if name in status.preempted]
    if gone:
        return _preempted(status, terms, gone[0], now)
    bad = sorted((name for name, code in codes.items() if code), key=terms.replicas.index)
    final = [name for name in bad if codes[name] not in TRANSIENT or name in status.out_of_memory or not terms.retries]
    if final:
        return _stop(status, now, outcome=_exit_outcome(status, terms, final[0], codes[final[0]]))
    actions: list[JobAction] = []
    for name in bad:
        status, more = _restart(status, terms, name, codes[name], now)
        actions += more
        if status.phase != "running":
            break
    return status, actions


def replicas_stopped(status: JobStatus, terms: SchedulingTerms, now: float, timings: JobTimings) -> Transition:
    """Return what follows once no process of the job runs any more."""
    if status.phase != "stopping":
        return status, []
    status = replace(status, preempted=(), out_of_memory=())
    if status.outcome is not None:
        return _finish(status, now, status.outcome)
    if status.next_phase == "starting":
        return replace(status, phase="starting", next_phase="", updated=now), [JobAction(kind="start")]
    status = replace(
        status, state=PENDING, phase="provisioning", next_phase="", updated=now, due=now + timings.provision_s
    )
    return status, [_log("Waiting for job to be provisioned.")]


def cancel(status: JobStatus, now: float) -> Transition:
    if status.phase == "over" or status.state == CANCELLING:
        return status, []
    if status.phase in ("queued", "provisioning"):
        return replace(status, state=CANCELLING, updated=now, due=now), []
    outcome = status.outcome or _CANCELLED_OUTCOME
    if status.phase == "stopping":
        return replace(status, state=CANCELLING, updated=now, outcome=outcome, next_phase=""), []
    return _stop(status, now, outcome=outcome, state=CANCELLING)


def preempt(status: JobStatus, terms: SchedulingTerms, replica: str, now: float) -> Transition:
    if status.phase not in ACTIVE or replica not in terms.replicas or replica in status.preempted:
        return status, []
    status = replace(status, preempted=(*status.preempted, replica), updated=now)
    return status, [
        _log(f"The machine of {replica} is being taken away.", "WARNING"),
        JobAction(kind="preempt", replica=replica),
    ]


def out_of_memory(status: JobStatus, terms: SchedulingTerms, replica: str, now: float) -> Transition:
    if status.phase not in ACTIVE or replica not in terms.replicas:
        return status, []
    status = replace(status, out_of_memory=(*status.out_of_memory, replica))
    return _stop(status, now, outcome=_exit_outcome(status, terms, replica, 137))


def internal_error(status: JobStatus, terms: SchedulingTerms, now: float) -> Transition:
    if status.phase not in ACTIVE:
        return status, []
    status = replace(status, internal=status.internal + 1)
    if not terms.retries or status.internal > _INTERNAL:
        return _stop(status, now, outcome=_INTERNAL_OUTCOME)
    stopping, actions = _stop(status, now, next_phase="provisioning")
    return stopping, [_log(f"{INTERNAL}; the job is restarted.", "WARNING"), *actions]


def emulator_error(status: JobStatus, now: float, why: str) -> Transition:
    """Return what follows if the emulator itself cannot continue with a job."""
    if status.phase == "over":
        return status, []
    return _finish(status, now, replace(_INTERNAL_OUTCOME, message=f"{INTERNAL}: {why}"))


def recover(status: JobStatus, now: float) -> Transition:
    """Return the status of a job after a restart of the emulator, whose processes have all ended."""
    if status.phase in ("queued", "provisioning", "over"):
        return status, []
    if status.state == CANCELLING:
        return _finish(status, now, status.outcome or _CANCELLED_OUTCOME)
    return emulator_error(status, now, "the emulator was restarted while the job was running.")


def _log(text: str, severity: str = "INFO") -> JobAction:
    return JobAction(kind="log", text=text, severity=severity)


def _waiting(status: JobStatus, terms: SchedulingTerms, due: float | None) -> JobStatus:
    """Return the status with the next deadline: the next check of the availability, or the end of the maximum wait."""
    limit = None if terms.max_wait_s is None or status.started is not None else status.created + terms.max_wait_s
    times = [each for each in (due, limit) if each is not None]
    return replace(status, due=min(times) if times else None)


def _leave_queue(
    status: JobStatus, terms: SchedulingTerms, now: float, timings: JobTimings, availability: Availability
) -> Transition:
    if availability.kind == "held":
        return _waiting(status, terms, availability.until), []
    status = replace(status, state=PENDING, phase="provisioning", updated=now)
    return _waiting(status, terms, now + timings.provision_s), [
        _log(
            "Vertex AI is provisioning job running framework. First time usage might take couple of minutes, and subsequent"
            " runs can be much faster."
        ),
        _log("Vertex AI is setting up this job."),
    ]


def _provision(
    status: JobStatus, terms: SchedulingTerms, now: float, timings: JobTimings, availability: Availability
) -> Transition:
    if availability.kind != "stockout":
        status = replace(status, phase="starting", due=None, updated=now)
        return status, [
            _log("Waiting for training program to start."),
            _log("Job is preparing."),
            JobAction(kind="start"),
        ]
    status = replace(status, stockouts=status.stockouts + 1, updated=now)
    if not terms.flex and status.stockouts >= _STOCKOUTS:
        return _finish(status, now, _stockout_outcome(terms))
    return _waiting(status, terms, now + timings.stockout_s), [_log(_stockout_outcome(terms).message, "WARNING")]


def _stockout_outcome(terms: SchedulingTerms) -> JobOutcome:
    text = (
        f"Resources are insufficient in region: {terms.region}. Try a different region or use a different accelerator."
    )
    return JobOutcome(state=FAILED, code=_EXHAUSTED, message=text)


def _preempted(status: JobStatus, terms: SchedulingTerms, replica: str, now: float) -> Transition:
    if not terms.spot:
        # Maintenance of a machine: the worker restarts on another one, and it does not count as a restart.
        if not terms.retries:
            return _stop(status, now, outcome=_INTERNAL_OUTCOME)
        if terms.restart_job:
            return _stop(status, now, next_phase="provisioning")
        left = tuple(name for name in status.preempted if name != replica)
        return replace(status, preempted=left, updated=now), [JobAction(kind="start_one", replica=replica)]
    status = replace(status, preemptions=status.preemptions + 1)
    if not terms.retries or status.preemptions > _PREEMPTIONS:
        return _stop(status, now, outcome=_stockout_outcome(terms))
    stopping, actions = _stop(status, now, next_phase="provisioning")
    return stopping, [_log(f"{_stockout_outcome(terms).message} The job is restarted.", "WARNING"), *actions]


def _restart(status: JobStatus, terms: SchedulingTerms, replica: str, code: int, now: float) -> Transition:
    count = status.restarts.get(replica, 0) + 1
    log = _log(f"The replica {replica} exited with a non-zero status of {code} and is restarted.", "WARNING")
    if count <= _WORKER_RESTARTS:
        status = replace(status, restarts={**status.restarts, replica: count}, updated=now)
        if not terms.restart_job:
            return status, [log, JobAction(kind="start_one", replica=replica)]
        stopping, actions = _stop(status, now, next_phase="starting")
        return stopping, [log, *actions]
    if status.retries >= _RETRIES:
        return _stop(status, now, outcome=_exit_outcome(status, terms, replica, code))
    stopping, actions = _stop(replace(status, retries=status.retries + 1, restarts={}), now, next_phase="provisioning")
    return stopping, [log, *actions]


def _exit_outcome(status: JobStatus, terms: SchedulingTerms, replica: str, code: int) -> JobOutcome:
    if replica in status.out_of_memory:
        text = f"The replica {replica} ran out of memory and exited with a non-zero status of {code}."
    else:
        text = f"The replica {replica} exited with a non-zero status of {code}. Termination reason: Error."
    why = f"To find out more about why your job exited please check the logs: {terms.logs_url}"
    return JobOutcome(state=FAILED, code=_INVALID, message=f"{text} {why}")


def _stop(
    status: JobStatus, now: float, *, outcome: JobOutcome | None = None, next_phase: RestartPhase = "", state: str = ""
) -> Transition:
    status = replace(
        status,
        phase="stopping",
        state=state or status.state,
        outcome=outcome,
        next_phase=next_phase,
        due=None,
        updated=now,
        preempted=(),
    )
    return status, [JobAction(kind="stop")]


def _finish(status: JobStatus, now: float, outcome: JobOutcome) -> Transition:
    status = replace(
        status, state=outcome.state, phase="over", outcome=outcome, ended=now, updated=now, due=None, next_phase=""
    )
    actions = {
        SUCCEEDED: [_log("Job completed successfully.")],
        CANCELLED: [_log("Job was cancelled.")],
        EXPIRED: [_log(outcome.message, "ERROR")],
    }.get(outcome.state, [_log("Job failed.", "ERROR"), _log(outcome.message, "ERROR")])
    return status, [*actions, JobAction(kind="close")]
