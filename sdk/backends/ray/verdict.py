"""The verdict on a run whose job has ended: from its records, and from what its driver knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ...job.layout import RunPaths
from ...process import exit_reasons
from ...records import verdicts
from ...records.events import Event, message_of, reason_of, source_of
from ...status import EXIT_CANCELLED, EXIT_CHECKPOINTED, Failure, Reason, State
from ...storage.store import Store, create

_KEYS = RunPaths("")


@dataclass(frozen=True, kw_only=True)
class RayJobEnd:
    """The input of a verdict.

    Args:
        events: the records of the run.
        tasks: their names; the first one decides about success.
        code: the exit code of the first task's agent, or that of the agent that ended the job; None if it is not known.
        cancelled_at: unix time of the first cancel request; None if there is none.
        problem: why the job ended if no task is to blame, and how that counts.
        last_output: the last lines of the container that ended the job.
        job: the job's name.
        status: the cluster's own state of it, "" if it is not known.
    """

    events: Sequence[Event]
    tasks: Sequence[str]
    code: int | None = None
    cancelled_at: float | None = None
    problem: tuple[Reason, str] | None = None
    last_output: str = ""
    job: str = ""
    status: str = ""


def verdict(ended: RayJobEnd) -> dict[str, object]:
    """Return the data of the final record."""
    state, reason, failure = _decided(ended)
    over = verdicts.attempt_ended(ended.events)
    return {
        "state": state.value,
        "reason": reason.value,
        "failure": failure and asdict(failure),
        "vendor": ended.status,
        "job": ended.job,
        "why": str(over.data.get("why") or "") if over and state is State.FAILED else "",
    }


def write(store: Store, number: int, time: float, data: Mapping[str, object]) -> bool:
    """Create the final record of this job; False if another process was faster."""
    source = source_of("supervisor", number - 1)
    event = Event(attempt=0, source=source, sequence=1, kind="final", time=time, data=dict(data))
    return create(store, _KEYS.event(0, source, 1, "final"), event.to_json())


def exit_code(data: Mapping[str, object]) -> int:
    """Return the exit code of the driver, which becomes the state of Ray's job."""
    state = State(str(data["state"]))
    codes = {State.SUCCEEDED: 0, State.CANCELLED: EXIT_CANCELLED, State.CHECKPOINTED: EXIT_CHECKPOINTED}
    return codes.get(state, 1)


def _decided(ended: RayJobEnd) -> tuple[State, Reason, Failure | None]:
    first, asked = ended.tasks[0], ended.cancelled_at
    done = verdicts.done_at(ended.events, first)
    if ended.code == 0 or (ended.code is None and ended.status == "SUCCEEDED"):
        # A program that stops on request may exit with 0, but it did less than it should have.
        if asked is not None and (done is None or done > asked):
            return State.CANCELLED, Reason.CANCELLED, None
        return State.SUCCEEDED, Reason.DONE, None
    record = verdicts.recorded_failure(ended.events)
    if asked is not None and (record is None or record.time > asked):
        return State.CANCELLED, Reason.CANCELLED, None
    if ended.status == "STOPPED" and record is None:
        # On the cluster, not by podlift cancel.
        return State.CANCELLED, Reason.CANCELLED, None
    if ended.problem is not None:
        reason, message = ended.problem
        return State.FAILED, reason, Failure(task="", message=message, traceback=ended.last_output)
    return _failed(ended, record)


def _failed(ended: RayJobEnd, record: Event | None) -> tuple[State, Reason, Failure | None]:
    _, last = verdicts.last_attempt(ended.events)
    over, exits, silent = verdicts.attempt_ended(last), verdicts.failed_exits(last), verdicts.silent_exits(last)
    if over is not None and over.data.get("failure"):
        # No task knows of it, as of a hang.
        return State.FAILED, Reason(over.data["reason"]), Failure(**over.data["failure"])
    if record is not None:
        exited = [str(each.data.get("task")) for each in last if each.kind == "exited" and each.data.get("code") == 0]
        failure = Failure(
            task=record.source,
            message=message_of(record, exited),
            traceback=str(record.data.get("traceback", "")),
        )
        return State.FAILED, reason_of(record, exited), failure
    if EXIT_CHECKPOINTED in [each.data["code"] for each in exits]:
        return State.CHECKPOINTED, Reason.CHECKPOINTED, None
    if silent:
        task, code = str(silent[0].data["task"]), int(silent[0].data["code"])
        reason, text = exit_reasons.describe(code, exit_reasons.OutOfMemory.UNKNOWN)
        return State.FAILED, reason, Failure(task=task, message=f"{task} {text}")
    said = [line for line in ended.last_output.splitlines() if line.startswith("podlift: ")]
    if said:
        # podlift gave up before it started the program.
        return State.FAILED, Reason.REFUSED, Failure(task="", message=said[-1].removeprefix("podlift: "))
    how = "" if ended.code is None else f" with exit code {ended.code}"
    message = f"The job {ended.job} ended{how}, and no task says why."
    return State.FAILED, Reason.INFRASTRUCTURE, Failure(task="", message=message, traceback=ended.last_output)
