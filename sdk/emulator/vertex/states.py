"""The values of the state machine of a job: its status, the terms of its specification, and the actions to take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
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


@dataclass(frozen=True, kw_only=True)
class JobTimings:
    """Durations that are minutes on Vertex AI, in seconds, and the states of jobs that exceed a limit.

    Args:
        queue_s: before the job leaves the queue.
        provision_s: before its machines are ready; also before each retry of the whole job.
        stockout_s: between two attempts to get machines.
        grace_s: between SIGTERM and SIGKILL when a job is ended; Google documents none.
        error_s: between the end of a job and the appearance of its `error`; about a minute on Vertex AI.
        timeout_state: the final state of a job that exceeds its timeout; Google documents none.
        wait_state: the final state of a job that exceeds `maxWaitDuration`.
    """

    queue_s: float = 0.05
    provision_s: float = 0.05
    stockout_s: float = 0.05
    grace_s: float = 1.0
    error_s: float = 0.0
    timeout_state: str = CANCELLED
    wait_state: str = EXPIRED


@dataclass(frozen=True, kw_only=True)
class SchedulingTerms:
    """The part of a job's specification that the state machine needs."""

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
        """Return the terms of a custom job."""
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
    """How a job ends."""

    state: str
    code: int = 0
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job. Times are Unix times in seconds.

    Args:
        state: as the API shows it.
        phase: what is going on.
        due: when time alone changes something; None for never.
        outcome: how it ends, or will end once all replicas are stopped.
        next_phase: what follows a stop that is not the end: "starting" in the same place, "provisioning" on new machines.
    """

    state: str
    phase: Phase
    created: float
    updated: float
    due: float | None = None
    started: float | None = None
    ended: float | None = None
    outcome: JobOutcome | None = None
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
