"""The end of an attempt and of a run: the agreement of a run's agents, and the final record that follows. Pure.

Each process that notices the end of a run calls `verdict`: its supervisor, the driver of its job, a client or a keeper. All of
them get the same verdict, from the records, from the end that the agents have agreed on, and from the service's answer about
its job.
An agreed end holds against any answer of the service, even after the service has forgotten the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..job.wire import decode, parsed
from ..status import EXIT_CHECKPOINTED, Failure, Reason, State
from . import exits
from .events import (
    REGISTERED,
    TRAINED,
    Event,
    first_failure,
    is_collateral,
    message_of,
    reason_of,
    since_resumed,
    unsettled,
)
from .restarts import EndedAttempt


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended, and whether another one follows."""

    state: State
    reason: Reason
    failure: Failure | None = None  # the failure to show, if no task has recorded one
    not_restarted: str = ""  # the task whose restart alone the budgets do not allow, although the others could go on
    task: str = ""  # whose container wrote it
    nonce: str = ""
    restart: bool = False
    why: str = ""  # one sentence about the decision, or ""
    delay_s: float = 0.0  # before the next attempt
    step: int | None = None  # the last training step
    exit_code: int = 0  # of the containers, if no attempt follows

    @property
    def ended(self) -> EndedAttempt:
        state = self.state if self.state is State.SUCCEEDED else State.FAILED
        return EndedAttempt(state=state, reason=self.reason, step=self.step, task=self.not_restarted)


# A task that received a request to stop does not know its sender: the service may know, or there is a cancel request.
_LEFT = (Reason.PREEMPTED, Reason.CHECKPOINTED)
SUCCEEDED = AttemptEnd(state=State.SUCCEEDED, reason=Reason.DONE)
CANCELLED = AttemptEnd(state=State.CANCELLED, reason=Reason.CANCELLED)
CHECKPOINTED = AttemptEnd(state=State.CHECKPOINTED, reason=Reason.CHECKPOINTED)


def failed(reason: Reason, failure: Failure) -> AttemptEnd:
    return AttemptEnd(state=State.FAILED, reason=reason, failure=failure)


def parse_end(text: bytes) -> AttemptEnd:
    """Return the end that an agent has written. Raises ValueError, LookupError or TypeError if it is not an end."""
    data = parsed(text)
    return decode(AttemptEnd, {**data, "state": State(data["state"]), "reason": Reason(data["reason"])})


@dataclass(frozen=True, kw_only=True)
class ServiceAnswer:
    """The answer of the service that runs the tasks about its job. A supervisor has no service, and no job: "forgotten".

    Args:
        job: "unknown" while the service does not answer.
        end: the end of a job according to the service.
        time: its Unix time; None if unknown.
        knows: "decision" if the service itself has ended the job, at a limit or on request, which explains all that tasks did
            then; "cause" if it knows why the job ended; "exit" if it only reports that the containers ended.
    """

    job: Literal["running", "ended", "forgotten", "unknown"]
    end: AttemptEnd | None = None
    time: float | None = None
    knows: Literal["decision", "cause", "exit"] = "exit"


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """All that a verdict follows from.

    Args:
        events: the records of the run.
        tasks: their names; the first one decides about success.
        service: the answer of the service.
        agreed: the end of the last attempt that the agents have agreed on.
        kept: kinds of records that an agreed success needs: without them it may still lose its results.
        cancelled_at: Unix time of the first cancel request; None without one, and for agents that have obeyed it.
    """

    events: Sequence[Event]
    tasks: Sequence[str]
    service: ServiceAnswer
    agreed: AttemptEnd | None = None
    kept: Sequence[str] = ()
    cancelled_at: float | None = None


def verdict(run: RunEnd) -> AttemptEnd | None:
    """Return the end of the run; None while it is active, or if its end is unknown."""
    current, _ = since_resumed(_ordered(run.events))
    final = next((event for event in current if event.kind == "final"), None)
    if final is not None:
        return _recorded_end(final, State(final.data["state"]))
    if run.service.job in ("running", "unknown"):
        return None
    attempt, last = last_attempt(run.events)
    agreed, cancelled_at, decides = _agreed(run, last), run.cancelled_at, run.service.knows == "decision"
    if decides and agreed is not None and agreed.reason in _LEFT:
        agreed = None
    end = agreed or run.service.end
    if end is None:
        return None if cancelled_at is None else CANCELLED
    if end.state is State.SUCCEEDED:
        # A program that stops on request may exit with 0, but it did less than it should have.
        done = done_at(run.events, run.tasks[0])
        return end if cancelled_at is None or (done is not None and done <= cancelled_at) else CANCELLED
    if end.state is State.CANCELLED:
        return end
    time = run.service.time
    if agreed is not None or not decides:
        end, time = _failed(run, agreed, attempt, last)
        end = replace(end, why=agreed.why if agreed else "")
    goes_on = agreed is None and ((run.agreed is not None and run.agreed.restart) or bool(_of(last, "restarting")))
    # A failure after that request is no failure of the run.
    is_after = cancelled_at is not None and (goes_on or time is None or time > cancelled_at)
    return CANCELLED if is_after else end


def final(end: AttemptEnd, **about: object) -> dict[str, object]:
    """Return the data of the final record. `about` are the backend's own fields."""
    failure = end.failure
    if end.why:
        base = failure or Failure(task="", message="")
        failure = replace(base, message=f"{base.message} {end.why}".strip())
    return {"state": end.state.value, "reason": end.reason.value, "failure": failure and asdict(failure), **about}


def last_attempt(events: Sequence[Event]) -> tuple[int, list[Event]]:
    """Return the last attempt since the latest resume and its records, or 0 if there was none.

    A job that repeats only the last phase has no attempt: a model that it registers belongs to the previous attempt.
    """
    current, resumed = since_resumed(_ordered(events))
    before = int(resumed.data["attempts"]) if resumed else 0
    own = (event.attempt for event in current if event.attempt > before or event.kind == REGISTERED)
    attempt = max(own, default=0)
    return attempt, unsettled([event for event in current if attempt and event.attempt == attempt])


def done_at(events: Sequence[Event], task: str) -> float | None:
    """Return when a task was done in the last attempt, by its own clock; None if it was not."""
    _, last = last_attempt(events)
    return min((event.time for event in last if event.kind == "done" and event.source == task), default=None)


def _ordered(events: Sequence[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))


def _of(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


def _recorded_end(event: Event, state: State) -> AttemptEnd:
    """Return the end that a record describes."""
    failure, why = event.data.get("failure"), str(event.data.get("why") or "")
    reason = Reason(event.data["reason"])
    return AttemptEnd(state=state, reason=reason, failure=Failure(**failure) if failure else None, why=why)


def _agreed(run: RunEnd, last: Sequence[Event]) -> AttemptEnd | None:
    """Return the end of the run as its agents have agreed on it, once all that follows a success is done."""
    agreed, kinds = run.agreed, {event.kind for event in last}
    if TRAINED in kinds if agreed is None else agreed.state is State.SUCCEEDED:
        # The last phase is repeated if it fails.
        return SUCCEEDED if kinds.issuperset(run.kept) else None
    if over := _of(last, "attempt_ended"):
        return _recorded_end(over[0], State.FAILED)
    return None if agreed is None or agreed.restart else agreed


def _failed(
    run: RunEnd, agreed: AttemptEnd | None, attempt: int, last: Sequence[Event]
) -> tuple[AttemptEnd, float | None]:
    """Return why the run has failed, and since when that was clear; None if that is not known."""
    service, over = run.service, _of(last, "attempt_ended")
    at, knows = (over[0].time if over else None), service.knows == "cause"
    recorded_end = agreed or (_recorded_end(over[0], State.FAILED) if over and not knows else None)
    record, exited = first_failure(last, attempt), [event for event in _of(last, "exited") if event.data.get("code")]
    silent, saved = _silent(last, exited), [event.time for event in exited if event.data["code"] == EXIT_CHECKPOINTED]
    if agreed is not None and agreed.reason is Reason.CHECKPOINTED:
        return CHECKPOINTED, min(saved, default=at)
    if recorded_end is not None and recorded_end.failure is not None:
        # No task has recorded this failure: for example, a hang.
        return recorded_end, at
    if record is not None and not (is_collateral(record) and (knows or silent)):
        return _of_record(record, last), record.time
    if saved and not knows:
        return CHECKPOINTED, min(saved)
    if silent and not knows:
        return _of_exit(silent[0], last), silent[0].time
    service_end = None if service.end is None or service.knows == "decision" else service.end
    if service_end is not None and (agreed is None or (knows and service_end.state is State.FAILED)):
        # The observations of the agents are a consequence.
        return service_end, service.time
    reason, task = (agreed.reason, agreed.task) if agreed else (Reason.INFRASTRUCTURE, "")
    message = f"The last attempt ended ({reason.value}), and no record gives the cause."
    failure = (service_end and service_end.failure) or Failure(task=task, message=message)
    return failed(reason, failure), at


def _of_record(record: Event, last: Sequence[Event]) -> AttemptEnd:
    exits_before = [event for event in _of(last, "exited") if event.time <= record.time]
    exited = [str(event.data.get("task")) for event in exits_before if event.data.get("code") == 0]
    message = _diagnosis(last, record.source) or message_of(record, exited)
    failure = Failure(task=record.source, message=message, traceback=str(record.data.get("traceback", "")))
    return failed(reason_of(record, exited), failure)


def _silent(last: Sequence[Event], exited: Sequence[Event]) -> list[Event]:
    """Return the exits of tasks without a failure record that are not a consequence of another's, earliest first."""
    explained = {event.source for event in _of(last, "failed")}
    silent = [event for event in exited if not event.data.get("collateral") and event.data.get("task") not in explained]
    return sorted(silent, key=lambda event: event.time)


def _of_exit(event: Event, last: Sequence[Event]) -> AttemptEnd:
    # Its agent has recorded the exit of the process and the memory of its machine at that time.
    out_of_memory = event.data.get("reason") == Reason.OUT_OF_MEMORY.value
    memory = exits.OutOfMemory.YES if out_of_memory else exits.OutOfMemory.UNKNOWN
    task, (reason, text) = str(event.data["task"]), exits.describe(int(event.data["code"]), memory)
    message = _diagnosis(last, task) or f"{task} {text}"
    return failed(reason, Failure(task=task, message=message, traceback=str(event.data.get("output", ""))))


def _diagnosis(last: Sequence[Event], task: str) -> str:
    """Return the diagnosis of an agent that requested a restart for its failed task, or ""."""
    failures: list[Any] = [event.data.get("failure") for event in _of(last, "restarting")]
    return next(
        (str(failure["message"]) for failure in failures if isinstance(failure, dict) and failure.get("task") == task),
        "",
    )
