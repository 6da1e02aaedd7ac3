"""One verdict for all backends: it follows from the end that agents have agreed on, the records, and the service's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.errors import CorruptRunError
from sdk.job.layout import RunPaths
from sdk.records.events import Event
from sdk.records.sync.index import end_of
from sdk.records.verdicts import CANCELLED, SUCCEEDED, AttemptEnd, RunEnd, ServiceAnswer, failed, final, verdict
from sdk.status import Failure, Reason, State
from sdk.storage.registry import open_store

TASKS = ["chief-0", "worker-0"]


def event(kind: str, time: float, attempt: int = 1, source: str = "chief-0", **data: Any) -> Event:
    return Event(attempt=attempt, source=source, sequence=int(time), kind=kind, time=time, data=data)


def exited(task: str, time: float, code: int, reason: str) -> Event:
    return event("exited", time, source="agent", task=task, code=code, reason=reason, collateral=False)


def fails(reason: str, message: str = "The service's words.") -> AttemptEnd:
    return failed(Reason(reason), Failure(task="", message=message))


def ends(reason: str, *, restart: bool = False, why: str = "") -> AttemptEnd:
    return AttemptEnd(state=State.FAILED, reason=Reason(reason), task="worker-0", restart=restart, why=why)


def agree(reason: str, **more: Any) -> dict[str, Any]:
    return {"agreed": ends(reason, **more)}


def says(end: AttemptEnd, knows: Any = "exit", time: float | None = 60.0) -> ServiceAnswer:
    return ServiceAnswer(job="ended", end=end, knows=knows, time=time)


FORGOTTEN = ServiceAnswer(job="forgotten")
EXITED = says(fails("user_error"))
STOCKOUT = says(fails("stockout"), "cause")
TOO_LONG = says(fails("timeout", "The job exceeded its time limit."), "decision")
STOPPED = says(CANCELLED, "decision")
TOO_DEAR = says(fails("budget", "It could exceed max_cost_usd."), "decision")
REPLICA = says(fails("out_of_memory"), "cause")
WON = says(SUCCEEDED)

BEGUN, DONE, KEPT = event("attempt_started", 10.0), event("done", 30.0), event("collected", 31.0)
LATER = event("attempt_started", 40.0, attempt=2)
RESUMED = Event(attempt=0, source="client-1", sequence=1, kind="resumed", time=35.0, data={"attempts": 1})
ERROR = event("failed", 20.0, type="KeyError", message="'column'", traceback='Traceback\n  File "t.py", line 1\n')
ECHO = event("failed", 21.0, source="worker-0", type="UnavailableError", message="Socket closed", traceback="")
KILLED = exited("worker-0", 20.0, -9, "killed")
OUT_OF_MEMORY = exited("worker-0", 20.0, -9, "out_of_memory")
SAVED = exited("chief-0", 20.0, 75, "checkpointed")
CHIEF_KILLED, CHIEF_DONE = exited("chief-0", 20.0, -9, "killed"), exited("chief-0", 20.0, 0, "done")
FULL = {"task": "chief-0", "message": "chief-0 failed: the file system of /tmp is full.", "traceback": "", "log": ""}
RESTARTING = event("restarting", 21.0, source="agent", reason="infrastructure", failure=FULL, why="", delay_s=0.0)
HANG = {"task": "worker-0", "message": "The run hangs.", "traceback": "", "log": ""}
USED_UP = "Not restarted: 1 of 1 are used up."
HUNG = event("attempt_ended", 25.0, source="agent", reason="hung", failure=HANG, why=USED_UP)
OVER = event("attempt_ended", 22.0, source="agent", reason="killed", failure=None, why="Not restarted: 0 are left.")
TRAINED = event("trained", 32.0, source="agent")
REGISTERED = event("registered", 33.0, source="phase", model="m")
UNREGISTERED = event("attempt_ended", 33.0, source="agent", reason="infrastructure", failure=FULL, why="")
# The end of a job that another one follows.
NEXT = {"state": "FAILED", "reason": "preempted", "failure": None, "number": 1, "attempts": 1, "continues": {}}
FOLLOWED = Event(attempt=0, source="supervisor", sequence=1, kind="final", time=31.5, data=NEXT)
UNUSED = {"task": "", "message": "No GPU was used.", "traceback": "", "log": ""}
IDLE = replace(HUNG, data={"reason": "accelerator_idle", "failure": UNUSED})

AGREED = {"agreed": SUCCEEDED}
REGISTERS = {"kept": ("registered",)}
MODEL = {**AGREED, **REGISTERS}

# The event; the records, the service's answer and other facts; the state, the reason and words of the failure.
ROWS: dict[str, tuple[Sequence[Event], ServiceAnswer, dict[str, Any], str, str]] = {
    "success": ([BEGUN, DONE], WON, {}, "SUCCEEDED done", ""),
    "success that no record tells of": ([BEGUN], WON, {}, "SUCCEEDED done", ""),
    "success, and a container lost at its end": ([BEGUN, DONE, KEPT], STOCKOUT, AGREED, "SUCCEEDED done", ""),
    "success, and its outputs were not kept": ([BEGUN, DONE], EXITED, AGREED, "FAILED user_error", "service's words"),
    "success, and the service forgot the job": ([BEGUN, DONE, KEPT], FORGOTTEN, AGREED, "SUCCEEDED done", ""),
    "success of a laptop": ([BEGUN, DONE], FORGOTTEN, {"agreed": SUCCEEDED, "kept": ()}, "SUCCEEDED done", ""),
    "a registered model": ([BEGUN, TRAINED, UNREGISTERED, REGISTERED], FORGOTTEN, REGISTERS, "SUCCEEDED done", ""),
    "a model that a job without an attempt registered, and the service lost a container at its end": (
        [BEGUN, DONE, KEPT, FOLLOWED, TRAINED, REGISTERED], STOCKOUT, MODEL,
        "SUCCEEDED done", "",
    ),
    "a model that a job without an attempt registered, and a later cancel": (
        [BEGUN, DONE, KEPT, FOLLOWED, TRAINED, REGISTERED], STOPPED,
        {"agreed": SUCCEEDED, "kept": ("registered",), "cancelled_at": 50.0}, "SUCCEEDED done", "",
    ),
    "a model that a job without an attempt did not register": (
        [BEGUN, DONE, KEPT, UNREGISTERED, FOLLOWED, TRAINED], STOCKOUT, REGISTERS, "FAILED stockout", "words",
    ),
    "a model that is not registered": (
        [BEGUN, KEPT, TRAINED, UNREGISTERED], EXITED, MODEL,
        "FAILED infrastructure", "the file system of /tmp is full.",
    ),
    "a model that is not registered, as two agents say": (
        [BEGUN, KEPT, TRAINED, UNREGISTERED, event("attempt_ended", 34.0, source="agent-1", reason="hung", failure=HANG)],
        EXITED, MODEL, "FAILED infrastructure", "the file system of /tmp is full.",
    ),
    "a laptop's model that is not registered": (
        [BEGUN, TRAINED], FORGOTTEN, {"agreed": fails("infrastructure", "no model"), "kept": ()},
        "FAILED infrastructure", "no model",
    ),
    "user error": ([BEGUN, ERROR, ECHO], EXITED, {}, "FAILED user_error", "chief-0 failed: KeyError: 'column'"),
    "user error, whatever the service knows": ([BEGUN, ERROR], STOCKOUT, {}, "FAILED user_error", "KeyError"),
    "user error, a success by the service": ([BEGUN, ERROR], WON, agree("user_error"), "FAILED user_error", "KeyError"),
    "user error without a record": ([BEGUN], EXITED, agree("import_error"), "FAILED import_error", "service's words"),
    "user error of which only the end is left": (
        [BEGUN], FORGOTTEN, agree("user_error"), "FAILED user_error", "no record gives the cause",
    ),
    "lost peer": ([BEGUN, ECHO], EXITED, {}, "FAILED infrastructure", "worker-0 failed: UnavailableError"),
    "lost peer that was killed": ([BEGUN, ECHO, CHIEF_KILLED], EXITED, {}, "FAILED killed", "chief-0 was killed"),
    "lost peer whose machine is gone": ([BEGUN, ECHO], STOCKOUT, {}, "FAILED stockout", "service's words"),
    "lost peer whose machine is gone, and no attempt follows": (
        [BEGUN, ECHO], STOCKOUT, agree("infrastructure"), "FAILED stockout", "service's words",
    ),
    "lost peer had ended": ([BEGUN, CHIEF_DONE, ECHO], EXITED, {}, "FAILED user_error", "chief-0 had ended before"),
    "killed": ([BEGUN, KILLED, OVER], EXITED, {}, "FAILED killed", "worker-0 was killed by SIGKILL"),
    "out of memory": ([BEGUN, OUT_OF_MEMORY], EXITED, {}, "FAILED out_of_memory", "its control group was out of memory."),
    "a replica out of memory": ([BEGUN, KILLED], REPLICA, {}, "FAILED out_of_memory", "service's words"),
    "a full disk, and no restart": (
        [BEGUN, ERROR, RESTARTING], EXITED, {}, "FAILED user_error", "the file system of /tmp is full.",
    ),
    "hang": ([BEGUN, HUNG], EXITED, {}, "FAILED hung", "The run hangs."),
    "hang, whatever the service knows": ([BEGUN, HUNG], STOCKOUT, {}, "FAILED hung", "The run hangs."),
    "hang, and the service forgot the job": ([BEGUN, HUNG], FORGOTTEN, {}, "FAILED hung", "The run hangs."),
    "hang whose record is lost": ([BEGUN], FORGOTTEN, {"agreed": fails("hung", "It hangs.")}, "FAILED hung", "It hangs."),
    "idle": ([BEGUN, IDLE], EXITED, {}, "FAILED accelerator_idle", "No GPU"),
    "checkpointed": ([BEGUN, SAVED], EXITED, {}, "CHECKPOINTED checkpointed", ""),
    "checkpointed, and the service knows why": ([BEGUN, SAVED], STOCKOUT, {}, "FAILED stockout", "service's words"),
    "checkpointed, as is agreed on": (
        [BEGUN, SAVED], STOCKOUT, agree("checkpointed", why="Not restarted: retry_preemptions is 0."),
        "CHECKPOINTED checkpointed", "retry_preemptions is 0",
    ),
    "cancel before the first attempt": ([], FORGOTTEN, {"cancelled_at": 5.0}, "CANCELLED cancelled", ""),
    "cancel before the end": ([BEGUN, SAVED], EXITED, {"cancelled_at": 15.0}, "CANCELLED cancelled", ""),
    "cancel before an error": ([BEGUN, ERROR], EXITED, {"cancelled_at": 15.0}, "CANCELLED cancelled", ""),
    "cancel before a machine is lost": ([BEGUN], STOCKOUT, {"cancelled_at": 55.0}, "CANCELLED cancelled", ""),
    "cancel before a success": ([BEGUN, DONE], WON, {"cancelled_at": 25.0}, "CANCELLED cancelled", ""),
    "cancel before a success that is not recorded": ([BEGUN], WON, {"cancelled_at": 25.0}, "CANCELLED cancelled", ""),
    "cancel before the time limit": ([BEGUN], TOO_LONG, {"cancelled_at": 59.0}, "CANCELLED cancelled", ""),
    "cancel while it ends": ([BEGUN, KILLED, RESTARTING], EXITED, {"cancelled_at": 22.0}, "CANCELLED cancelled", ""),
    "cancel while it restarts": (
        [BEGUN, ERROR], EXITED, {"agreed": ends("user_error", restart=True), "cancelled_at": 50.0}, "CANCELLED cancelled", "",
    ),
    "cancel after an error": ([BEGUN, ERROR], EXITED, {"cancelled_at": 25.0}, "FAILED user_error", "KeyError"),
    "cancel after a kill": ([BEGUN, KILLED, OVER], STOPPED, {"cancelled_at": 25.0}, "FAILED killed", "worker-0 was killed"),
    "cancel after a success": ([BEGUN, DONE], WON, {"cancelled_at": 40.0}, "SUCCEEDED done", ""),
    "cancel after a machine is lost": ([BEGUN], STOCKOUT, {"cancelled_at": 65.0}, "FAILED stockout", "service's words"),
    "cancel in a laptop's last step": ([BEGUN], FORGOTTEN, {"agreed": CANCELLED}, "CANCELLED cancelled", ""),
    "stopped at the service": ([BEGUN], STOPPED, {}, "CANCELLED cancelled", ""),
    "stopped there after an error": ([BEGUN, ERROR], STOPPED, agree("user_error"), "FAILED user_error", "KeyError"),
    "stopped at the service, saved": ([BEGUN, SAVED], STOPPED, agree("checkpointed"), "CANCELLED cancelled", ""),
    "time limit": ([BEGUN], TOO_LONG, {}, "FAILED timeout", "exceeded its time limit"),
    "time limit while tasks save": ([BEGUN, SAVED], TOO_LONG, agree("checkpointed"), "FAILED timeout", "time limit"),
    "time limit of a laptop": ([BEGUN], FORGOTTEN, {"agreed": fails("timeout", "too long")}, "FAILED timeout", "too long"),
    "cost limit": ([], TOO_DEAR, {}, "FAILED budget", "max_cost_usd"),
    "preempted": ([BEGUN], says(fails("preempted"), "cause"), {}, "FAILED preempted", "service's words"),
    "preempted, without another attempt": (
        [BEGUN], EXITED, agree("preempted", why="Not restarted: retry_preemptions is 0."),
        "FAILED preempted", "retry_preemptions is 0",
    ),
    "preempted, and another attempt was to follow": (
        [BEGUN], STOCKOUT, agree("preempted", restart=True), "FAILED stockout", "words",
    ),
    "an error of an earlier attempt": ([BEGUN, ERROR, LATER], EXITED, {}, "FAILED user_error", "service's words"),
    "an error before a resume": ([BEGUN, ERROR, RESUMED], EXITED, {}, "FAILED user_error", "service's words"),
    "no record": ([], EXITED, {}, "FAILED user_error", "service's words"),
}  # fmt: skip


def run_of(events: Sequence[Event], service: ServiceAnswer, **more: Any) -> RunEnd:
    return RunEnd(**{"events": events, "tasks": TASKS, "service": service, "kept": ("collected",), **more})


@pytest.mark.parametrize("name", ROWS)
def test_one_table_says_how_a_run_has_ended_also_to_readers_of_the_final_record(name: str) -> None:
    events, service, more, expected, words = ROWS[name]
    end = verdict(run_of(events, service, **more))
    assert end is not None
    data: Any = final(end)
    assert f"{data['state']} {data['reason']}" == expected
    assert words in data["failure"]["message"] if words else data["failure"] is None

    source = "supervisor-1" if RESUMED in events or FOLLOWED in events else "supervisor"
    record = Event(attempt=0, source=source, sequence=1, kind="final", time=70.0, data=final(end))
    later = verdict(run_of([*events, record], ServiceAnswer(job="unknown")))
    assert later is not None and final(later) == final(end)


@pytest.mark.parametrize(
    ("events", "service", "more"),
    [
        ([BEGUN, HUNG], ServiceAnswer(job="running"), {}),
        ([BEGUN, HUNG], ServiceAnswer(job="unknown"), {}),
        ([BEGUN], FORGOTTEN, {}),
        ([BEGUN, DONE], FORGOTTEN, {"agreed": SUCCEEDED}),
        ([BEGUN, KEPT], FORGOTTEN, {"agreed": SUCCEEDED, "kept": ("registered",)}),
        ([BEGUN, KILLED], FORGOTTEN, {"agreed": ends("killed", restart=True)}),
    ],
    ids=["it runs", "the service does not answer", "no end", "outputs not kept", "model not registered", "it goes on"],
)
def test_there_is_no_verdict_while_a_run_goes_on_or_its_end_is_unknown(events, service, more) -> None:
    assert verdict(run_of(events, service, **more)) is None


def test_a_record_that_cannot_be_read_is_an_error_and_no_verdict() -> None:
    with pytest.raises(ValueError, match="of another version"):
        verdict(run_of([BEGUN, replace(OVER, data={"reason": "of another version"})], EXITED))


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b'{"state": "NEW", "reason": "killed"}'])
def test_an_agreed_end_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, text: bytes) -> None:
    store = open_store(str(tmp_path))
    key = RunPaths("").end(1)
    store.put_new(key, [text])
    with pytest.raises(CorruptRunError, match=f"{key} is damaged"):
        end_of(store, 1)


def test_a_failure_has_the_last_lines_of_a_silent_task_and_says_why_nothing_follows() -> None:
    silent = replace(KILLED, data={**KILLED.data, "output": "last words"})
    end = verdict(run_of([BEGUN, silent], EXITED))
    assert end is not None and end.failure is not None and end.failure.traceback == "last words"
    end = verdict(run_of([BEGUN, HUNG], EXITED))
    failure = {**HANG, "message": f"The run hangs. {USED_UP}"}
    assert end is not None
    assert final(end, job="7") == {"state": "FAILED", "reason": "hung", "failure": failure, "job": "7"}


TIMES = st.floats(5.0, 70.0)
EVENTS = st.sampled_from([BEGUN, DONE, KEPT, ERROR, ECHO, KILLED, OUT_OF_MEMORY, SAVED, RESTARTING, OVER, HUNG, LATER])
RECORDS = st.lists(EVENTS, unique_by=lambda each: (each.attempt, each.source, each.sequence))
ENDS = st.sampled_from([SUCCEEDED, *(ends(reason) for reason in ("user_error", "killed", "infrastructure"))])
SAID = st.sampled_from([SUCCEEDED, CANCELLED, fails("stockout"), fails("timeout")])
KNOWN = st.sampled_from(["decision", "cause", "exit"])
ANSWERS = st.just(FORGOTTEN) | st.builds(says, SAID, KNOWN, st.none() | TIMES)


@given(events=RECORDS, answer=ANSWERS, agreed=st.none() | ENDS, asked=st.none() | TIMES)
def test_a_verdict_is_the_same_whoever_looks_and_in_whatever_order_records_come(events, answer, agreed, asked) -> None:
    run = run_of(events, answer, agreed=agreed, cancelled_at=asked)
    end = verdict(run)
    assert verdict(replace(run, events=events[::-1])) == end
    if end is not None:
        record = Event(attempt=0, source="supervisor", sequence=1, kind="final", time=80.0, data=final(end))
        again = verdict(replace(run, events=[*events, record]))
        assert again is not None and final(again) == final(end)


@given(events=RECORDS, one=ANSWERS, other=ANSWERS, agreed=ENDS)
def test_an_end_that_is_agreed_on_is_never_contradicted_by_the_service(events, one, other, agreed) -> None:
    events = [BEGUN, DONE, KEPT, *(event for event in events if event not in (OVER, HUNG, LATER, RESTARTING, SAVED))]
    first, second = (verdict(run_of(events, answer, agreed=agreed)) for answer in (one, other))
    assert first is not None and second is not None
    assert first.state is second.state is agreed.state
