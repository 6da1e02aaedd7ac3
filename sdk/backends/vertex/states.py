"""What Vertex AI says of a job, and how it goes together with what the run's own records say. Pure.

The records know what the program does; the vendor knows whether there are machines. While a job waits for them there are no
records at all, and when a machine is taken away nobody is left to write one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...process import exit_reasons
from ...records.events import Event, error_of, first_failure, is_collateral, reason_of, since_resumed
from ...status import EXIT_CHECKPOINTED, Failure, Reason, State, Status
from ...text import compact_duration
from . import diagnose

PREFIX = "JOB_STATE_"
# Before what podlift itself says in a container.
OURS = "podlift: "
# JobState of google.cloud.aiplatform.v1, by its number: over REST the numbers travel.
NAMES = (
    "UNSPECIFIED", "QUEUED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED", "PAUSED", "EXPIRED",
    "UPDATING", "PARTIALLY_SUCCEEDED",
)  # fmt: skip
ENDED = frozenset(PREFIX + name for name in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"))
# What each means for a run that goes on; None for what says nothing about it. A job whose containers run says less than the
# records do.
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
    """One custom job, as Vertex AI tells of it.

    Args:
        name: projects/P/locations/REGION/customJobs/ID.
        state: "JOB_STATE_RUNNING"; whatever comes is kept, known or not.
        message: of its error, "" for none.
        code: of its error, as google.rpc.Code; 0 for none.
        labels: of the job.
        created: unix time in seconds; None where it does not say.
        started: likewise.
        ended: likewise.
    """

    name: str
    state: str
    message: str = ""
    code: int = 0
    labels: Mapping[str, str] | None = None
    created: float | None = None
    started: float | None = None
    ended: float | None = None

    @property
    def over(self) -> bool:
        """True when nothing more will happen to it."""
        return self.state in ENDED

    @property
    def id(self) -> str:
        """Its number."""
        return self.name.rpartition("/")[2]

    @property
    def region(self) -> str:
        """Where it runs."""
        return self.name.split("/")[3]


def console(name: str, project: str = "") -> str:
    """Return the address at which a browser shows a job.

    Args:
        name: of the job: it holds the project's number.
        project: its id.
    """
    _, number, _, region, _, job = name.split("/")
    return _CONSOLE.format(region=region, id=job, project=project or number)


def state_name(value: object) -> str:
    """Return the name of a state that came as a number or as a name; one that is not known keeps what it has."""
    text = str(getattr(value, "name", value))
    if text.isdigit():
        number = int(text)
        return PREFIX + (NAMES[number] if number < len(NAMES) else text)
    return text


def merge(status: Status, job: VendorJob | None, *, project: str = "") -> Status:
    """Return what a run's records and its vendor's job say together.

    Args:
        status: what the records say.
        job: the newest job of the run; None where there is none yet.
        project: its project's id.
    """
    if job is None:
        return status
    told = replace(status, vendor=job.state, console=console(job.name, project))
    if status.state.terminal:
        return told
    known = _WAITING.get(job.state.removeprefix(PREFIX))
    if known is not None:
        state, reason = known
        if reason is Reason.PROVISIONING and status.state is State.RUNNING:
            # Its machine was taken away: the job waits for another one, and the run has begun.
            state, reason = State.RUNNING, Reason.RESTARTING
        return replace(told, state=state, reason=reason, since=_since(status, job))
    if job.state in (PREFIX + "RUNNING", PREFIX + "UPDATING") and status.state is State.PENDING:
        return replace(told, reason=Reason.PREPARING, since=job.started or status.since)
    return told


def _since(status: Status, job: VendorJob) -> float:
    return max(status.since, job.created or 0.0)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a verdict follows from.

    Args:
        events: the run's records.
        job: the job, which is over.
        tasks: names of all tasks; the first one decides about success.
        asked: unix time at which somebody has asked for the end of the run, in seconds; None for nobody.
        provisioning: what kind of machines were asked for: it decides which advice helps.
        timeout_s: how long the job might run, in seconds; None for Vertex AI's own limit.
        words: what the replica that `speechless` names has printed last.
    """

    events: Sequence[Event]
    job: VendorJob
    tasks: Sequence[str]
    asked: float | None = None
    provisioning: str = "standard"
    timeout_s: float | None = None
    words: str = ""


def verdict(ended: Ended) -> dict[str, Any]:
    """Return the data of a run's final record, once its job is over: state, reason, failure, and what the vendor said."""
    state, reason, failure = _decided(ended)
    return {
        "state": state.value,
        "reason": reason.value,
        "failure": failure,
        "vendor": ended.job.state,
        "job": ended.job.name,
        "why": "",
    }


def _decided(ended: Ended) -> tuple[State, Reason, dict[str, Any] | None]:
    attempt, events = _last_attempt(ended.events)
    first = ended.tasks[0]
    done = min((event.time for event in events if event.kind == "done" and event.source == first), default=None)
    exits = [event for event in events if event.kind == "exited" and event.data.get("code")]
    vendor = ended.job.state.removeprefix(PREFIX)
    said = diagnose.diagnose(ended.job.message, ended.job.code, provisioning=ended.provisioning)
    if vendor == "SUCCEEDED" or (vendor == "PARTIALLY_SUCCEEDED" and done is not None):
        # A program that is asked to end may do so in good order: it has done less than it was to do all the same.
        if ended.asked is not None and (done is None or done > ended.asked):
            return State.CANCELLED, Reason.CANCELLED, None
        return State.SUCCEEDED, Reason.DONE, None
    if vendor == "CANCELLED" and not _timed_out(ended, said):
        return State.CANCELLED, Reason.CANCELLED, None
    if _timed_out(ended, said):
        limit = "" if ended.timeout_s is None else f" timeout={compact_duration(ended.timeout_s)!r}."
        return State.FAILED, Reason.TIMEOUT, _failure("", f"The job took longer than it may.{limit}", "")
    if vendor == "EXPIRED":
        said = diagnose.EXPIRED
    record = first_failure(events, attempt)
    silent = _silent(events, exits)
    # What fails behind the wish may fail because of it.
    before = ended.asked is None or (record is not None and record.time <= ended.asked)
    if not before and not said.certain:
        return State.CANCELLED, Reason.CANCELLED, None
    echo = record is not None and is_collateral(record)
    if record is not None and not (echo and (said.certain or silent)):
        message = f"{record.source} failed: {error_of(record)}"
        ended_well = [event for event in events if event.kind == "exited" and event.data.get("code") == 0]
        left = [str(event.data.get("task")) for event in ended_well if event.time <= record.time]
        return (
            State.FAILED,
            reason_of(record, left),
            _failure(record.source, message, str(record.data.get("traceback", ""))),
        )
    if not said.certain and EXIT_CHECKPOINTED in [event.data["code"] for event in exits]:
        return State.CHECKPOINTED, Reason.CHECKPOINTED, None
    if not said.certain and silent:
        task, code = str(silent[0].data["task"]), int(silent[0].data["code"])
        reason, words = exit_reasons.describe(code, exit_reasons.OutOfMemory.UNKNOWN)
        return State.FAILED, reason, _failure(task, f"{task} {words}", "")
    task = _task(said.replica, ended.tasks)
    if not said.certain and ended.words.startswith(OURS):
        # The program was not reached.
        return State.FAILED, Reason.REFUSED, _failure(task, ended.words.removeprefix(OURS), "")
    return State.FAILED, said.reason, _failure(task, said.message, "" if said.certain else ended.words)


def speechless(ended: Ended) -> str:
    """Return the replica whose end nobody has recorded a word about, so that its log has to say why; "" for none."""
    _, events = _last_attempt(ended.events)
    said = diagnose.diagnose(ended.job.message, ended.job.code, provisioning=ended.provisioning)
    if said.certain or ended.asked is not None or any(event.kind in ("failed", "exited") for event in events):
        return ""
    return said.replica


def _silent(events: Sequence[Event], exits: Sequence[Event]) -> list[Event]:
    """Return how tasks have ended that left no word of why, and not because of another one; the earliest first."""
    told = {event.source for event in events if event.kind == "failed"}
    found = [event for event in exits if not event.data.get("collateral") and event.data.get("task") not in told]
    return sorted(found, key=lambda event: event.time)


def _timed_out(ended: Ended, said: diagnose.Diagnosis) -> bool:
    """True where the vendor has ended a job at its time limit, which it may call cancelled or failed."""
    if said.reason is Reason.TIMEOUT and said.certain:
        return True
    job = ended.job
    ran_s = (job.ended or 0.0) - (job.started or job.ended or 0.0)
    return (
        ended.asked is None
        and job.state == PREFIX + "CANCELLED"
        and ended.timeout_s is not None
        and ran_s >= ended.timeout_s
    )


def is_explained(ended: Ended) -> bool:
    """True where the verdict will not get better: the vendor's own words come about a minute behind the end of a job."""
    attempt, events = _last_attempt(ended.events)
    silent = ended.job.state == PREFIX + "FAILED" and not ended.job.message
    return not silent or first_failure(events, attempt) is not None


def _last_attempt(events: Sequence[Event]) -> tuple[int, list[Event]]:
    """Return the number of the last attempt since the run was resumed last, and its records; 0 where there was none."""
    ordered = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
    current, resumed = since_resumed(ordered)
    before = int(resumed.data["attempts"]) if resumed else 0
    attempt = max((event.attempt for event in current if event.attempt > before), default=0)
    return attempt, [event for event in current if attempt and event.attempt == attempt]


def _task(replica: str, tasks: Sequence[str]) -> str:
    """Return our name of what Vertex AI calls workerpool1-0; "" for none of ours."""
    return replica_names(tasks).get(replica, "")


def replica_names(tasks: Sequence[str]) -> dict[str, str]:
    """Return our name of each replica: the first task stands alone in pool 0, the others by their role."""
    pools = {"ps": 2, "evaluator": 3}
    counts = {1: 0, 2: 0, 3: 0}
    found = {"workerpool0-0": tasks[0]}
    for task in tasks[1:]:
        pool = pools.get(task.rpartition("-")[0], 1)
        found[f"workerpool{pool}-{counts[pool]}"] = task
        counts[pool] += 1
    return found


def _failure(task: str, message: str, traceback: str) -> dict[str, Any]:
    return {"task": task, "message": message, "traceback": traceback, "log": ""}


def lost(job: str) -> Failure:
    """Return what there is to say of a run whose job is gone: somebody has deleted it."""
    return Failure(
        task="", message=f"Vertex AI knows nothing of the job {job} any more, and no client had seen its end."
    )
