"""Merges the state of a Vertex AI job with the run's records, and derives the verdict. Pure.

The records tell what the program does, and the vendor tells whether there are machines. While a job waits for machines
there are no records, and a preempted machine cannot write one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ...process import exit_reasons
from ...records import verdicts
from ...records.events import Event, error_of, first_failure, is_collateral, message_of, reason_of
from ...status import EXIT_CHECKPOINTED, Failure, Reason, State, Status
from ...text import compact_duration
from . import diagnose, service
from .request import replica_names

PREFIX = "JOB_STATE_"
# Prefix of podlift's own output in a container.
PODLIFT_PREFIX = "podlift: "
# What ends a container whatever it did, also if podlift wrote its last line.
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
# JobState of google.cloud.aiplatform.v1 by number, which REST may transmit instead of the name.
NAMES = (
    "UNSPECIFIED", "QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED", "PAUSED", "EXPIRED",
    "UPDATING", "PARTIALLY_SUCCEEDED",
)  # fmt: skip
ENDED = frozenset(PREFIX + name for name in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"))
# The status of a run in each state of its job. None if only the records tell, as once the containers run.
_WAITING: dict[str, tuple[State, Reason] | None] = {
    "UNSPECIFIED": None,
    "QUEUED": (State.PENDING, Reason.QUEUED),
    "PENDING": (State.PENDING, Reason.PROVISIONING),
    "RUNNING": None,
    "CANCELLING": (State.RUNNING, Reason.STOPPING),
    "PAUSED": (State.PENDING, Reason.QUEUED),
    "UPDATING": None,
}
_CONSOLE = "https://console.cloud.google.com/agent-platform/locations/{region}/training/{id}?project={project}"


@dataclass(frozen=True, kw_only=True)
class VendorJob:
    name: str  # projects/P/locations/REGION/customJobs/ID
    state: str  # such as "JOB_STATE_RUNNING"; unknown states are possible
    message: str = ""  # of its error
    code: int = 0  # of its error, a google.rpc.Code; 0 if there is none
    labels: Mapping[str, str] | None = None
    args: Sequence[str] = ()  # of its first container
    created: float | None = None  # Unix time in seconds, like those below
    started: float | None = None
    ended: float | None = None

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def is_waiting(self) -> bool:
        """True before it has machines, so that no task can read a request."""
        return self.state.removeprefix(PREFIX) in ("QUEUED", "PENDING", "PAUSED")

    @property
    def id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def region(self) -> str:
        return self.name.split("/")[3]


def console(name: str, project: str = "") -> str:
    _, number, _, region, _, job = name.split("/")
    return _CONSOLE.format(region=region, id=job, project=project or number)


def state_name(value: object) -> str:
    text = str(value)
    if text.isdigit():
        number = int(text)
        return PREFIX + (NAMES[number] if number < len(NAMES) else text)
    return text


def merge(status: Status, job: VendorJob | None, *, project: str = "", emulator: str = "") -> Status:
    """Return the status from a run's records, merged with that of the vendor's job; `emulator` is the address of one."""
    status = replace(status, service=service.named(emulator))
    if job is None:
        return status
    # The console knows nothing of an emulator's jobs.
    page = "" if emulator else console(job.name, project)
    merged = replace(status, vendor=job.state, console=page)
    if status.state.terminal:
        return merged
    known = _WAITING.get(job.state.removeprefix(PREFIX))
    if known is not None:
        state, reason = known
        if reason is Reason.PROVISIONING and status.state is State.RUNNING:
            # The run has begun, but its machine was preempted and the job waits for another one.
            state, reason = State.RUNNING, Reason.RESTARTING
        return replace(merged, state=state, reason=reason, since=max(status.since, job.created or 0.0))
    if job.state in (PREFIX + "RUNNING", PREFIX + "UPDATING") and status.state is State.PENDING:
        return replace(merged, reason=Reason.PREPARING, since=job.started or status.since)
    return merged


@dataclass(frozen=True, kw_only=True)
class EndedJob:
    """The input of a verdict."""

    events: Sequence[Event]
    job: VendorJob
    tasks: Sequence[str]  # the first one decides about success
    cancel_requested_at: float | None = None  # Unix time in seconds
    provisioning: str = "standard"  # selects the advice
    timeout_s: float | None = None  # the job's time limit; None for that of Vertex AI
    emulator: str = ""  # the address of the one that ran the job
    last_output: str = ""  # of the replica named by `silent_replica`


def verdict(ended: EndedJob) -> dict[str, object]:
    """Return the data of the final record: state, reason, failure, and the vendor's state."""
    state, reason, failure = _decided(ended)
    over = verdicts.attempt_ended(ended.events)
    if failure is not None:
        failure = replace(failure, message=service.quoted(failure.message, ended.emulator))
    return {
        "state": state.value,
        "reason": reason.value,
        "failure": failure and asdict(failure),
        "vendor": ended.job.state,
        "job": ended.job.name,
        # The vendor forgets its jobs.
        "times": {"created": ended.job.created, "started": ended.job.started},
        "message": ended.job.message,
        "why": str(over.data.get("why") or "") if over and state is State.FAILED else "",
    }


def job_of(final: Event) -> VendorJob:
    """Return the job as the record of a verdict describes it."""
    times = final.data["times"]
    return VendorJob(
        name=str(final.data["job"]),
        state=str(final.data["vendor"]),
        message=str(final.data["message"]),
        created=times["created"],
        started=times["started"],
        ended=final.time,
    )


def _decided(ended: EndedJob) -> tuple[State, Reason, Failure | None]:
    first = ended.tasks[0]
    done = verdicts.done_at(ended.events, first)
    vendor = ended.job.state.removeprefix(PREFIX)
    diagnosis = diagnose.diagnose(ended.job.message, ended.job.code, provisioning=ended.provisioning)
    if vendor == "SUCCEEDED" or (vendor == "PARTIALLY_SUCCEEDED" and done is not None):
        # A program that stops on request may exit with 0, but it did less than it should have.
        if ended.cancel_requested_at is not None and (done is None or done > ended.cancel_requested_at):
            return State.CANCELLED, Reason.CANCELLED, None
        return State.SUCCEEDED, Reason.DONE, None
    if vendor == "CANCELLED" and not _timed_out(ended, diagnosis):
        return State.CANCELLED, Reason.CANCELLED, None
    if _timed_out(ended, diagnosis):
        limit = "" if ended.timeout_s is None else f" timeout={compact_duration(ended.timeout_s)!r}."
        return State.FAILED, Reason.TIMEOUT, Failure(task="", message=f"The job exceeded its time limit.{limit}")
    return _failed(ended, diagnose.EXPIRED if vendor == "EXPIRED" else diagnosis)


def _failed(ended: EndedJob, diagnosis: diagnose.Diagnosis) -> tuple[State, Reason, Failure | None]:
    attempt, events = verdicts.last_attempt(ended.events)
    exits = verdicts.failed_exits(events)
    record = first_failure(events, attempt)
    silent = verdicts.silent_exits(events)
    # A failure after a cancel request may be a consequence of it.
    before = ended.cancel_requested_at is None or (record is not None and record.time <= ended.cancel_requested_at)
    if not before and not diagnosis.certain:
        return State.CANCELLED, Reason.CANCELLED, None
    over = verdicts.attempt_ended(events)
    if over is not None and over.data.get("failure") and not diagnosis.certain:
        # No task knows of it, as of a hang.
        return State.FAILED, Reason(over.data["reason"]), Failure(**over.data["failure"])
    collateral = record is not None and is_collateral(record)
    if record is not None and not (collateral and (diagnosis.certain or silent)):
        succeeded = [event for event in events if event.kind == "exited" and event.data.get("code") == 0]
        exited = [str(event.data.get("task")) for event in succeeded if event.time <= record.time]
        message = _told(events, record.source) or message_of(record, exited)
        hint = diagnose.diagnose_program(error_of(record))
        message = f"{message} {hint.message}" if hint else message
        failure = Failure(task=record.source, message=message, traceback=str(record.data.get("traceback", "")))
        return State.FAILED, hint.reason if hint else reason_of(record, exited), failure
    if not diagnosis.certain and EXIT_CHECKPOINTED in [event.data["code"] for event in exits]:
        return State.CHECKPOINTED, Reason.CHECKPOINTED, None
    if not diagnosis.certain and silent:
        # Its container has seen how the process ended, and what the memory of its machine was then.
        task, code, seen = str(silent[0].data["task"]), int(silent[0].data["code"]), silent[0].data.get("reason")
        out_of_memory = (
            exit_reasons.OutOfMemory.YES if seen == Reason.OUT_OF_MEMORY.value else exit_reasons.OutOfMemory.UNKNOWN
        )
        reason, text = exit_reasons.describe(code, out_of_memory)
        message = _told(events, task) or f"{task} {text}"
        return State.FAILED, reason, Failure(task=task, message=message)
    task = replica_names(ended.tasks).get(diagnosis.replica, "")
    refused = ended.last_output.startswith(PODLIFT_PREFIX) and diagnosis.signal not in _FROM_OUTSIDE
    if not diagnosis.certain and refused:
        # podlift gave up before it started the program.
        message = ended.last_output.removeprefix(PODLIFT_PREFIX)
        hint = diagnose.diagnose_program(message)
        message = f"{message}\n{hint.message}" if hint else message
        return State.FAILED, Reason.REFUSED, Failure(task=task, message=message)
    if ended.provisioning == "spot" and ended.job.started is not None and diagnosis.reason is Reason.STOCKOUT:
        # Google reports a preemption as a stockout.
        diagnosis = replace(diagnose.TAKEN_AWAY, vendor_text=diagnosis.vendor_text)
    failure = Failure(task=task, message=diagnosis.message, traceback="" if diagnosis.certain else ended.last_output)
    return State.FAILED, diagnosis.reason, failure


def _told(events: Sequence[Event], task: str) -> str:
    """Return what a container found out about the failure of its task, for which it asked for a restart, or ""."""
    failures = [event.data.get("failure") for event in events if event.kind == "restarting"]
    return next((str(told["message"]) for told in failures if isinstance(told, dict) and told.get("task") == task), "")


def silent_replica(ended: EndedJob) -> str:
    _, events = verdicts.last_attempt(ended.events)
    diagnosis = diagnose.diagnose(ended.job.message, ended.job.code, provisioning=ended.provisioning)
    if (
        diagnosis.certain
        or ended.cancel_requested_at is not None
        or any(event.kind in ("failed", "exited") for event in events)
    ):
        return ""
    return diagnosis.replica


def _timed_out(ended: EndedJob, diagnosis: diagnose.Diagnosis) -> bool:
    """True if the vendor ended the job at its time limit, which it may report as cancelled or failed."""
    if diagnosis.reason is Reason.TIMEOUT and diagnosis.certain:
        return True
    job = ended.job
    ran_s = (job.ended or 0.0) - (job.started or job.ended or 0.0)
    return (
        ended.cancel_requested_at is None
        and job.state == PREFIX + "CANCELLED"
        and ended.timeout_s is not None
        and ran_s >= ended.timeout_s
    )


def is_explained(ended: EndedJob) -> bool:
    """True if waiting does not improve the verdict. The vendor's error text comes about a minute after the end of a job."""
    attempt, events = verdicts.last_attempt(ended.events)
    silent = ended.job.state == PREFIX + "FAILED" and not ended.job.message
    return not silent or first_failure(events, attempt) is not None


def lost(job: str, service_name: str = service.VERTEX_AI) -> Failure:
    message = service.sentence(f"{service_name} no longer has the job {job}, and no client saw its end.")
    return Failure(task="", message=message)
