"""Merges the state of a Vertex AI job with the run's records, and derives how it ended, for `records.verdicts`. Pure.

The records show the progress of the program, and the vendor reports whether there are machines. While a job waits for machines
there are no records, and a preempted machine cannot write one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ....records.events import Event
from ....records.verdicts import CANCELLED, SUCCEEDED, AttemptEnd, ServiceAnswer, failed
from ....status import Failure, Reason, State, Status
from ....text import compact_duration
from .. import service
from . import diagnose
from .request import replica_names

PREFIX = "JOB_STATE_"
# Prefix of podlift's own output in a container.
PODLIFT_PREFIX = "podlift: "
# Signals from outside end a container even if podlift wrote its last line.
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")
# JobState of google.cloud.aiplatform.v1 by number, which REST may transmit instead of the name.
NAMES = (
    "UNSPECIFIED", "QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED", "PAUSED", "EXPIRED",
    "UPDATING", "PARTIALLY_SUCCEEDED",
)  # fmt: skip
ENDED = frozenset(PREFIX + name for name in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"))
# The status of a run in each state of its job. None where only the records show it, as once the containers run.
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
    created: float | None = None  # Unix time in seconds, like the next two
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


def merge(status: Status, job: VendorJob | None, *, project: str = "", stand_in: str = "") -> Status:
    """Return the status from a run's records, merged with the state of its job; `stand_in` is an emulator's address."""
    status = replace(status, service=service.named(stand_in))
    if job is None:
        return status
    # The console does not show an emulator's jobs.
    page = "" if stand_in else console(job.name, project)
    merged = replace(status, vendor=job.state, console=page)
    if status.state.terminal:
        return merged
    waiting = _WAITING.get(job.state.removeprefix(PREFIX))
    if waiting is not None:
        state, reason = waiting
        if reason is Reason.PROVISIONING and status.state is State.RUNNING:
            # The run has begun, but its machine was preempted and the job waits for another one.
            state, reason = State.RUNNING, Reason.RESTARTING
        return replace(merged, state=state, reason=reason, since=max(status.since, job.created or 0.0))
    if job.state in (PREFIX + "RUNNING", PREFIX + "UPDATING") and status.state is State.PENDING:
        return replace(merged, reason=Reason.PREPARING, since=job.started or status.since)
    return merged


def answer(
    job: VendorJob,
    tasks: Sequence[str],
    *,
    is_done: bool = False,
    provisioning: str = "standard",
    timeout_s: float | None = None,
    last_output: str = "",
) -> ServiceAnswer:
    """Return the answer of Vertex AI about a job that has ended.

    Args:
        job: the job.
        tasks: the tasks of the run.
        is_done: whether the first task is done, which turns a partial success into a success.
        provisioning: selects the advice.
        timeout_s: the job's time limit; None for the limit of Vertex AI.
        last_output: the last output of the replica that the message names.
    """
    vendor, diagnosis = job.state.removeprefix(PREFIX), diagnosed(job, provisioning)
    reply = partial(ServiceAnswer, job="ended", time=job.ended)
    if vendor == "SUCCEEDED" or (vendor == "PARTIALLY_SUCCEEDED" and is_done):
        return reply(end=SUCCEEDED)
    if _timed_out(job, diagnosis, timeout_s):
        limit = "" if timeout_s is None else f" timeout={compact_duration(timeout_s)!r}."
        failure = Failure(task="", message=f"The job exceeded its time limit.{limit}")
        return reply(end=failed(Reason.TIMEOUT, failure), knows="decision")
    if vendor == "CANCELLED":
        return reply(end=CANCELLED, knows="decision")
    task = replica_names(tasks).get(diagnosis.replica, "")
    refused = last_output.startswith(PODLIFT_PREFIX) and diagnosis.signal not in _FROM_OUTSIDE
    if not diagnosis.certain and refused:
        # podlift gave up before it started the program.
        message = last_output.removeprefix(PODLIFT_PREFIX)
        hint = diagnose.diagnose_program(message)
        message = f"{message}\n{hint.message}" if hint else message
        return reply(end=failed(Reason.REFUSED, Failure(task=task, message=message)))
    failure = Failure(task=task, message=diagnosis.message, traceback="" if diagnosis.certain else last_output)
    return reply(end=failed(diagnosis.reason, failure), knows="cause" if diagnosis.certain else "exit")


def diagnosed(job: VendorJob, provisioning: str) -> diagnose.Diagnosis:
    """Explain the message of Vertex AI about the end of a job."""
    if job.state == f"{PREFIX}EXPIRED":
        return diagnose.EXPIRED
    diagnosis = diagnose.diagnose(job.message, job.code, provisioning=provisioning)
    if provisioning == "spot" and job.started is not None and diagnosis.reason is Reason.STOCKOUT:
        # Google reports a preemption as a stockout.
        diagnosis = replace(diagnose.TAKEN_AWAY, vendor_text=diagnosis.vendor_text)
    return diagnosis


def _timed_out(job: VendorJob, diagnosis: diagnose.Diagnosis, timeout_s: float | None) -> bool:
    """True if the vendor ended the job at its time limit, which it may report as cancelled or failed."""
    ran_s = (job.ended or 0.0) - (job.started or job.ended or 0.0)
    at_limit = job.state == f"{PREFIX}CANCELLED" and timeout_s is not None and ran_s >= timeout_s
    return at_limit or (diagnosis.reason is Reason.TIMEOUT and diagnosis.certain)


def advised(end: AttemptEnd) -> AttemptEnd:
    """Return an end with advice about an error that one of Google's services returned to the program."""
    failure = end.failure
    hint = diagnose.diagnose_program(failure.message) if failure else None
    if failure is None or hint is None:
        return end
    return replace(end, reason=hint.reason, failure=replace(failure, message=f"{failure.message} {hint.message}"))


def about(job: VendorJob) -> dict[str, object]:
    """Return the data of a job for the final record: the vendor deletes its jobs after a time."""
    times = {"created": job.created, "started": job.started}
    return {"vendor": job.state, "job": job.name, "times": times, "message": job.message}


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


def loss_message(job: str, service_name: str = service.VERTEX_AI) -> str:
    return service.sentence(f"{service_name} no longer has the job {job}, and no client saw its end.")
