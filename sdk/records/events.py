"""The records of a run, and the pure function that derives its status from them.

Each record is a small JSON file that is created once and never changed. It has one writer (the client, the supervisor or a
task), which numbers its records; attempt, source, number and kind are in the file's name. The state of a run is the set of its
records, in any order.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..job.wire import decode, parsed
from ..status import Failure, Reason, Registered, State, Status
from ..tracebacks import one_line
from . import spending

VERSION = 1
_NAME = re.compile(r"(\d{4})\.([a-z]+(?:-\d+)?)\.(\d{6})\.([a-z_]+)\.json")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
# The last second of the year 9999: no calendar of Python's goes further.
_LATEST = 253402300799
# Without a supervisor, a run has started when its first attempt has.
_TIMED = {
    "started": "started",
    "attempt_started": "started",
    "entry": "entry",
    "first_step": "first_step",
    "final": "finished",
}
_STATES, _REASONS = ({each.value for each in kind} for kind in (State, Reason))
_NAMES_SUPERVISOR = ("launched", "started")
# A task is about to be restarted alone, while the attempt continues; the data are the same as in the record of an exit.
TASK_RESTARTING = "task_restarting"
# The program has succeeded, and only the last phase of the run remains.
TRAINED = "trained"
# The interval of the checkpoints, if podlift chooses it while the run trains.
PACED = "paced"
# A task writes these records once it trains, or continues a training.
TRAINS = ("first_step", "restored")
# The source of the records of a last phase.
PHASE = "phase"
REGISTERED, PHASE_FAILED = "registered", "phase_failed"
# Records of a task's process; they no longer count once the task is restarted alone.
_OF_PROCESS = ("failed", "left", "done", "exited")
# Stands in the place of a damaged record.
REMARK, DAMAGE = "damaged", "This record is damaged:"
# Raised by the surviving peers of a dead task. Never the cause if another task failed for a reason of its own.
_COLLATERAL = {"UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "ConnectionResetError"}
# TensorFlow raises these for many reasons. With the words below they are about a peer.
_GENERAL = {"InternalError", "UnknownError", "FailedPreconditionError"}
_ABOUT_A_PEER = re.compile(
    r"connection reset|socket closed|broken pipe|connection refused|failed to connect to all addresses"
    r"|collective ops (is|are) aborted|collective \w+ (timed out|aborted)|peer (is )?(down|restarted)|coordination service"
    r"|heartbeat|are unhealthy|already-in-error task|incarnation|barrier (timed out|failed|has failed)"
    r"|RPC: /tensorflow\.|CoordinationService",
    re.IGNORECASE,
)
# Tasks that train together met in one collective operation with different ones.
_OTHER_CALLS = re.compile(r"Shape mismatch in the collective instance|Collective instance \d+ expected")
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# Methods of a model in which all tasks wait for each other, and which a program may call in the chief alone by mistake.
_TOGETHER = ("evaluate", "predict")
VALIDATION = "the validation of fit"  # the `evaluate` that `fit` itself calls
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One record."""

    attempt: int  # 0 before the first attempt
    source: str  # the writer: "client", "supervisor" or a task's name
    sequence: int  # number of the record, per source and attempt
    kind: str
    time: float  # Unix time in seconds, by the writer's clock
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps({"version": VERSION, "time": self.time, "data": self.data}, sort_keys=True).encode()


def parse(name: str, text: bytes) -> Event:
    """Parse one record from its file's name and bytes. Raises ValueError if it is not a record of this version."""
    match = _NAME.fullmatch(name)
    if not match:
        raise ValueError("this is not the name of a record")
    record = parsed(text.decode())
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ValueError(f"it is no record of version {VERSION}")
    data = record.get("data")
    time = record.get("time")
    if not isinstance(time, (int, float)) or not 0 <= time < _LATEST or not isinstance(data, dict):
        raise ValueError("it has no time or no data")
    if match[4] in _NAMES_SUPERVISOR and not isinstance(data.get("supervisor"), str):
        raise ValueError("it names no supervisor")
    if match[4] == "final" and not _ends(data):
        raise ValueError("it has no verdict")
    if match[4] == "resumed" and not _resumes(data):
        raise ValueError("it does not say what is resumed")
    return Event(
        attempt=int(match[1]),
        source=match[2],
        sequence=int(match[3]),
        kind=match[4],
        time=time,
        data=data,
    )


def remark(name: str, text: str) -> Event | None:
    """Return the stand-in for a damaged record of an attempt, or for another file; None for a record about the whole run."""
    match = _NAME.fullmatch(name)
    if match is None:
        return Event(attempt=0, source="", sequence=0, kind=REMARK, time=0.0, data={"text": text})
    attempt, about = int(match[1]), {"text": text}
    if not attempt:
        return None
    return Event(attempt=attempt, source=match[2], sequence=int(match[3]), kind=REMARK, time=0.0, data=about)


def _ends(data: Mapping[str, Any]) -> bool:
    return str(data.get("state")) in _STATES and str(data.get("reason")) in _REASONS


def _resumes(data: Mapping[str, Any]) -> bool:
    plan = data.get("plan", "1")
    return isinstance(data.get("attempts"), int) and isinstance(plan, str) and _REVISION.fullmatch(plan) is not None


# Records that prove that a checkpoint existed.
SAVED = ("saved", "restored")


def saved_step(events: Sequence[Event], *, warm: bool) -> int | None:
    """Return the last saved step according to the records. A `warm` run may have restored another run's checkpoint."""
    kinds = SAVED[:1] if warm else SAVED
    return max((int(event.data["step"]) for event in events if event.kind in kinds), default=None)


def fold(events: Sequence[Event], *, supervisor_alive: bool) -> Status:
    """Return the status that the records describe, in any order.

    `supervisor_alive` is False if no process can still add a verdict.
    """
    ordered = sorted(events, key=lambda event: (event.time, event.attempt, event.source, event.sequence))
    created = next((event.time for event in ordered if event.kind == "submitted"), 0.0)
    attempts = max((event.attempt for event in ordered), default=0)
    common: dict[str, Any] = {
        "attempts": attempts,
        "created": created,
        "timings": _timings(ordered, created),
        "continued_step": _continued(ordered, attempts),
        "saved_every_s": next((e.data.get("every_s") for e in reversed(ordered) if e.kind == PACED), None),
        "restarted_alone": dict(
            Counter(str(e.data.get("task")) for e in ordered if e.kind == TASK_RESTARTING and e.attempt == attempts)
        ),
        "registered": _registered(ordered),
        "findings": tuple(str(e.data.get("text", "")) for e in _findings(ordered, attempts)),
    }
    used = spending.total(event.data for event in ordered if event.kind == "final")
    if used is not None:
        common |= {"spent_s": used.seconds, "spent_usd": used.usd, "spent_at_least": used.at_least}
    current, resumed = since_resumed(ordered)
    final = next((event for event in current if event.kind == "final"), None)
    if final is not None:
        failure = final.data.get("failure")
        return Status(
            state=State(final.data["state"]),
            reason=Reason(final.data["reason"]),
            failure=Failure(**failure) if failure else None,
            value=_value(ordered, attempts),
            since=final.time,
            **common,
        )
    if not supervisor_alive:
        cause = Failure(task="", message="The supervisor of this run is gone and left no verdict.")
        last_time = ordered[-1].time if ordered else 0.0
        return Status(state=State.LOST, reason=Reason.SUPERVISOR_LOST, failure=cause, since=last_time, **common)
    if resumed is not None and resumed.data["attempts"] == attempts:
        if continues(resumed):
            return Status(state=State.RUNNING, reason=Reason.RESTARTING, since=resumed.time, **common)
        return Status(state=State.PENDING, reason=Reason.SUBMITTED, since=resumed.time, **common)
    state, reason, since = _unfinished(current, attempts, created)
    return Status(state=state, reason=reason, since=since, **common)


def untrained(events: Sequence[Event], error: str) -> str:
    """Return the finding about a program that succeeded, if it printed an error and none of these events; else ""."""
    if not error or any(event.kind in TRAINS for event in events):
        return ""
    return f"No training step was seen; last error line: {error}"


def _findings(ordered: Sequence[Event], attempts: int) -> list[Event]:
    """Return the findings about the last attempt, of the keeper of the present jobs, and about damaged records."""
    resumes = last_resume(ordered)
    findings = [event for event in ordered if event.kind in ("finding", REMARK)]
    return [
        event
        for event in findings
        if event.kind == REMARK
        or (event.attempt and event.attempt == attempts)
        or (not event.attempt and int(event.source.partition("-")[2] or 0) >= resumes)
    ]


def status_records(names: Sequence[str]) -> list[str]:
    """Return the names of the records that `fold` needs. Earlier attempts contribute only the first record of each timing."""
    unknown: list[str] = []
    record_names: list[tuple[str, int, str]] = []
    first: dict[str, int] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            unknown.append(name)
            continue
        attempt, kind = int(match[1]), match[4]
        record_names.append((name, attempt, kind))
        first[kind] = min(attempt, first.get(kind, attempt))
    needed = (0, max((attempt for _, attempt, _ in record_names), default=0))
    return unknown + [
        name for name, attempt, kind in record_names if attempt in needed or (kind in _TIMED and attempt == first[kind])
    ]


def continues(event: Event) -> bool:
    """True for the final record of a cloud's job that another job follows, instead of a verdict on the run."""
    return event.kind == "final" and "continues" in event.data


def resume_count(events: Sequence[Event]) -> int:
    """Return how many supervisors or jobs of a cloud the run had before the present one, which writes its own final record.

    A resume begins a new one, and so does a final record that continues. Together, for the same job, they begin only one.
    """
    return max((_resume_number(event) for event in events), default=0)


def last_resume(events: Sequence[Event]) -> int:
    """Return how many supervisors or jobs the run had before its last resume by a user; 0 if there was none."""
    return max((_resume_number(event) for event in events if event.kind == "resumed"), default=0)


def _resume_number(event: Event) -> int:
    number = int(event.source.partition("-")[2] or 0)
    return number if event.kind == "resumed" else number + 1 if continues(event) else 0


def source_of(name: str, resumes: int) -> str:
    """Return the source name of a supervisor or launcher (`name`) after this many resumes."""
    return f"{name}-{resumes}" if resumes else name


def since_resumed(ordered: Sequence[Event]) -> tuple[Sequence[Event], Event | None]:
    """Return the records without earlier supervisors' records about the whole run, and the record that began the last one.

    That is the record of a resume, or the final record of a job that continues.
    """
    count = resume_count(ordered)
    if not count:
        return ordered, None
    ending = f"-{count}"
    current = [
        event for event in ordered if event.attempt or event.kind == "submitted" or event.source.endswith(ending)
    ]
    return current, next(event for event in reversed(ordered) if _resume_number(event) == count)


def _unfinished(ordered: Sequence[Event], attempt: int, created: float) -> tuple[State, Reason, float]:
    """Return the state of a run without a verdict, and since when."""
    # Records of earlier attempts do not count.
    latest = {event.kind: event.time for event in reversed(ordered) if event.attempt in (0, attempt)}
    if TRAINED in latest:
        return State.RUNNING, Reason.EVALUATING, latest[TRAINED]
    for kind in ("restarting", "stopping", "cancelling"):
        if kind in latest:
            reason = Reason.RESTARTING if kind == "restarting" else Reason.STOPPING
            return State.RUNNING, reason, latest[kind]
    if "preparing" in latest and not attempt:
        return State.PENDING, Reason.PREPARING, latest["preparing"]
    start_time = latest.get("attempt_started", latest.get("started"))
    if start_time is not None:
        return State.RUNNING, Reason.TRAINING, start_time
    return State.PENDING, Reason.SUBMITTED, created


def first_failure(events: Sequence[Event], attempt: int) -> Event | None:
    """Return the task record that explains a failed attempt: the earliest that is not a consequence of a peer's death."""
    failed = [event for event in unsettled(events) if event.kind == "failed" and event.attempt == attempt]
    failed.sort(key=lambda event: (is_collateral(event), event.time, event.source))
    return failed[0] if failed else None


def unsettled(events: Sequence[Event]) -> list[Event]:
    """Return the records, except for processes of tasks that were restarted alone afterwards."""
    restarted: dict[tuple[int, str], float] = {}
    for event in events:
        if event.kind == TASK_RESTARTING:
            key = event.attempt, str(event.data.get("task"))
            restarted[key] = max(event.time, restarted.get(key, event.time))
    return [event for event in events if event.kind not in _OF_PROCESS or not _is_settled(event, restarted)]


def _is_settled(event: Event, restarted: Mapping[tuple[int, str], float]) -> bool:
    task = str(event.data.get("task")) if event.kind == "exited" else event.source
    return event.time <= restarted.get((event.attempt, task), -math.inf)


def is_collateral(event: Event) -> bool:
    kind, message = event.data.get("type"), str(event.data.get("message"))
    about_a_peer = bool(_ABOUT_A_PEER.search(message)) and not _OTHER_CALLS.search(message)
    return kind in _COLLATERAL or (kind in _GENERAL and about_a_peer)


def error_of(event: Event) -> str:
    message = one_line(str(event.data.get("message", "")))
    return f"{event.data.get('type')}: {message}" if message else str(event.data.get("type"))


def message_of(event: Event, exited: Sequence[str] = ()) -> str:
    """Return the sentences about the failure of a task. `exited` are peers that had ended before with exit code 0."""
    failed, call = f"{event.source} failed: {error_of(event)}", event.data.get("call")
    if _OTHER_CALLS.search(str(event.data.get("message"))):
        where = f" ({event.source} was in {call})" if call else ""
        return (
            f"Tasks that train together did different things at the same time{where}. Next: call fit, evaluate and predict in "
            "every task, in the same order, with equally many batches; only printing and saving is for the chief alone. "
            f"{failed}"
        )
    if not exited or not is_lost_peer(event):
        return failed
    lead = f"The tasks lost contact with each other. {', '.join(exited)} had ended before with exit code 0, but"
    if call in _TOGETHER:
        return (
            f"{lead} {event.source} was in {call}, which every task has to call. Next: call {call} in every task, and let the "
            f"chief alone print or save the result. {failed}"
        )
    if call == VALIDATION:
        return f"{lead} {event.source} was in {call}, which needs equally many batches in every task. {failed}"
    return f"{lead} tasks that train together need equally many steps. {failed}"


def is_lost_peer(event: Event) -> bool:
    """True if the tasks lost contact with each other: one of them is gone, was paused, or is cut off."""
    return names_a_lost_peer(event.data)


def names_a_lost_peer(failed: Mapping[str, object]) -> bool:
    """The same test for the data of a failure record."""
    kind, text = failed.get("type"), f"{failed.get('message')}\n{failed.get('traceback')}"
    return kind in _COLLATERAL | _GENERAL and bool(_ABOUT_A_PEER.search(text)) and not _OTHER_CALLS.search(text)


def is_disk_full(event: Event) -> bool:
    return bool(_DISK_FULL.search(str(event.data.get("message"))))


def reason_of(event: Event, exited: Sequence[str] = ()) -> Reason:
    """Return the reason that follows from the record of the first failure.

    `exited` are peers that had exited before without an error.
    """
    reason = event.data.get("reason")
    if reason is not None:
        return Reason(reason)
    if is_disk_full(event) or (is_lost_peer(event) and not exited):
        return Reason.INFRASTRUCTURE
    kind = event.data.get("type")
    # Tracebacks hold the program's frames only. Without any, the program was never entered.
    if kind in {*_IMPORT_ERRORS, "AttributeError", "TypeError"} and '  File "' not in str(event.data.get("traceback")):
        return Reason.WRONG_ENTRY
    return Reason.IMPORT_ERROR if kind in _IMPORT_ERRORS else Reason.USER_ERROR


def _timings(ordered: Sequence[Event], created: float) -> dict[str, float]:
    timings: dict[str, float] = {}
    current, _ = since_resumed(ordered)
    for event in ordered:
        # The verdict before a resume is not the end of the run.
        if event.kind == "final" and event not in current:
            continue
        if event.kind in _TIMED and _TIMED[event.kind] not in timings:
            timings[_TIMED[event.kind]] = round(event.time - created, 3)
    return timings


def _continued(ordered: Sequence[Event], attempt: int) -> int | None:
    return next((int(e.data["step"]) for e in ordered if e.kind == "continued" and e.attempt == attempt), None)


def _registered(ordered: Sequence[Event]) -> Registered | None:
    registered = [event.data for event in ordered if event.kind == REGISTERED]
    return decode(Registered, registered[-1]) if registered else None


def _value(ordered: Sequence[Event], attempt: int) -> Any:
    return next((e.data.get("value") for e in ordered if e.kind == "result" and e.attempt == attempt), None)
