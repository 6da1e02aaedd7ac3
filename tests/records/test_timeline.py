"""One timeline: causes before their consequences, true counts, at most 80 columns, and short for the longest run."""

from __future__ import annotations

from datetime import timezone

from hypothesis import given
from hypothesis import strategies as st

from sdk.records.events import Event
from sdk.records.timeline import NOW, Moment, lines, moments


def event(kind: str, time: float, source: str = "supervisor", attempt: int = 1, **data: object) -> Event:
    return Event(attempt=attempt, source=source, sequence=int(time), kind=kind, time=time, data=data)


def failed(time: float, source: str, kind: str = "KeyError", message: str = "'label'", attempt: int = 1) -> Event:
    return event("failed", time, source, attempt, type=kind, message=message)


def shown(events: list[Event], service: tuple[Moment, ...] = (), last: int = 1, told: str = "") -> list[str]:
    return [" ".join(line.split()) for line in lines(moments(events, service, last, told), timezone.utc)]


def preempted(number: int) -> list[Event]:
    begin = 100.0 * number
    again = {"reason": "preempted", "failure": {"task": "chief-0", "message": "SIGTERM."}, "why": "Again."}
    return [
        event("attempt_started", begin, attempt=number),
        event("entry", begin + 1, "chief-0", number),
        event("continued", begin + 2, "chief-0", number, step=10 * number),
        event("stopping", begin + 50, attempt=number, reason="preempted"),
        event("restarting", begin + 51, attempt=number, **again),
    ]


def test_among_tasks_that_fail_together_the_cause_comes_before_its_consequences() -> None:
    ends: dict[str, dict[str, int]] = {"worker-0": {"code": -6}, "worker-4": {}, "worker-1": {"code": 1}}
    events = [
        event("attempt_started", 1.0),
        failed(9.0, "chief-0", "UnavailableError", "Socket closed"),
        *(failed(10.0, "worker-1"), failed(11.5, "worker-2")),
        *(event("exited", 11.0, task=task, **more) for task, more in ends.items()),
        event("stopping", 12.0, reason="user_error"),
        event("exited", 13.0, task="worker-3", code=-9),
    ]
    assert shown(events) == [
        "00:00:01 attempt 1 started",
        "00:00:10 worker-1 failed: KeyError: 'label'",
        "the same in worker-2",
        "as a consequence: chief-0 (UnavailableError), worker-0",
        "(SIGABRT)",
        "00:00:12 attempt 1 ended (user_error)",
    ]


def test_a_task_restart_is_shown_with_its_sequel_and_is_no_failure_of_the_attempt() -> None:
    killed = {"task": "worker-0", "message": "worker-0 was killed by SIGKILL: why."}
    raised = {"task": "worker-0", "message": "worker-0 failed: KeyError: 'label'"}
    events = [
        event("attempt_started", 1.0),
        event("entry", 2.0, "worker-0"),
        event("task_restarting", 5.0, task="worker-0", code=-9, failure=killed, why="Restarting worker-0 alone."),
        event("entry", 7.0, "worker-0"),
        failed(9.0, "worker-0"),
        event("task_restarting", 9.5, task="worker-0", code=1, failure=raised, why="Restarting worker-0 alone."),
        event("task_restarting", 9.7, task="worker-1", code=75, failure=None, why="Restarting worker-1 alone."),
    ]
    restarted = [
        "00:00:01 attempt 1 started",
        "00:00:02 worker-0 reached the program",
        "00:00:05 worker-0 was killed by SIGKILL: why.",
        "Restarting worker-0 alone.",
        "00:00:09 worker-0 failed: KeyError: 'label'",
        "Restarting worker-0 alone.",
        "00:00:09 worker-1 saved its state and left (75)",
        "Restarting worker-1 alone.",
    ]
    assert shown(events) == restarted
    # Its later failures count again.
    again = [failed(20.0, "worker-0", "ValueError", "x"), event("stopping", 21.0, reason="user_error")]
    ended = ["00:00:20 worker-0 failed: ValueError: x", "00:00:21 attempt 1 ended (user_error)"]
    assert shown([*events, *again]) == [*restarted, *ended]


def test_acts_of_the_service_are_in_the_order_of_time_and_its_present_state_is_last() -> None:
    created = Moment(time=5.0, source="service", text="created job 7")
    service = (created, Moment(time=NOW, source="service", text="the job is QUEUED", causes=("quota",)))
    submitted = event("submitted", 4.0, "client", 0)
    acts = ["00:00:04 client submitted the run", "00:00:05 service created job 7", "00:01:30 attempt 1 started"]
    found = shown([submitted, event("attempt_started", 90.0)], service)
    assert found == [*acts, "now service the job is QUEUED", "quota"]


def test_a_cause_that_was_told_above_is_not_repeated() -> None:
    final = event("final", 9.0, attempt=0, state="FAILED", reason="quota", failure={"message": "No quota."})
    ended = Moment(time=9.0, source="service", text="the job ended")
    assert shown([final], (ended,))[0] == "00:00:09 service the job ended", "the verdict follows from it"
    assert shown([final]) == ["00:00:09 run FAILED (quota)", "No quota."]
    assert shown([final], told='It says: "No quota."') == ["00:00:09 run FAILED (quota)"]


def test_earlier_attempts_have_no_details_and_days_appear_once_there_are_several() -> None:
    second = [event("attempt_started", 90_000.0, attempt=2), event("entry", 90_001.0, "chief-0", 2)]
    assert shown([*preempted(1), *second], last=2) == [
        "01-01 00:01:40 attempt 1 started, continues at step 10",
        "01-01 00:02:30 attempt 1 ended: the machine of chief-0 was taken away",
        "(preempted)",
        "SIGTERM.",
        "Again.",
        "01-02 01:00:00 attempt 2 started",
        "01-02 01:00:01 chief-0 reached the program",
    ]
    anew = [event("attempt_started", 200.0, attempt=2), event("continued", 201.0, "chief-0", 2, step=0)]
    assert shown([*preempted(1), *anew], last=2)[-1] == "00:03:20 attempt 2 started, from the beginning"


def test_an_attempt_without_an_end_is_shown_until_its_last_record() -> None:
    began = [event("attempt_started", 100.0), event("entry", 150.0, "chief-0")]
    again = event("attempt_started", 200.0, attempt=2)
    started = ["00:01:40 attempt 1 started", "00:02:30 attempt 1 wrote its last record"]
    assert shown([*began, again], last=2)[:2] == started
    ended = event("exited", 160.0, "agent-0", task="chief-0", code=-15)
    expected = ["00:02:40 chief-0 ended: SIGTERM", "00:03:20 attempt 2 started"]
    assert shown([*began, ended, again], last=2)[1:] == expected


def test_a_restart_that_was_asked_for_and_did_not_come_is_not_told() -> None:
    asked = event("restarting", 50.0, reason="preempted", why="Restarting after a preemption (preempted).")
    final = event("final", 60.0, attempt=0, state="FAILED", reason="out_of_memory")
    ended = "00:00:50 attempt 1 ended: a machine was taken away (preempted)"
    assert shown([event("attempt_started", 10.0), asked])[1:] == [ended, "Restarting after a preemption (preempted)."]
    assert shown([event("attempt_started", 10.0), asked, final])[1:] == ["00:01:00 run FAILED (out_of_memory)"]


def test_a_hundred_attempts_lose_their_middle_and_are_counted_by_how_they_ended() -> None:
    events = [each for number in range(1, 100) for each in preempted(number)]
    events += [event("stopping", 10_050.0, attempt=100, reason="user_error"), failed(10_049.0, "chief-0", attempt=100)]
    service = [Moment(time=100.0 * number + 60, source="service", text="restarted") for number in range(1, 100)]
    service.append(Moment(time=5_070.0, source="checkpoint", text="saved step 500"))
    events.append(event("resumed", 5_080.0, "client-1", attempt=0, attempts=50))
    found = shown(events, tuple(service), last=100)
    kept = [line.split(" ", 1)[1] for line in found if "saved step" in line or "resumed" in line]
    assert kept == ["checkpoint saved step 500", "client resumed the run"]
    gaps = [line for line in found if "left out" in line]
    assert gaps == ["... 95 attempts left out: 95 preempted"] and len(found) < 45
    begun = [line.split()[2] for line in found if "attempt" in line and "started" in line]
    assert begun == ["1", "2", "98", "99"] and "attempt 100 ended (user_error)" in found[-1]
    assert sum("restarted" in line for line in found) == 4, "acts of the service meanwhile are left out, too"
    service = tuple(Moment(time=float(number), source="service", text=f"line {number}") for number in range(1000))
    found = shown([], service)
    assert (len(found), "... 960 lines left out" in found, found[-1].endswith("line 999")) == (41, True, True)
    assert [each.attempt for each in moments([], service, 1) if each.time is None] == [0], "they are of no attempt"


words = st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=400)
times = st.one_of(st.floats(0, 4e9), st.just(NOW))
sources = st.sampled_from(["client", "service", "evaluator-0", "attempt 1000"])
causes = st.lists(words, max_size=2).map(tuple)
any_moment = st.builds(Moment, time=times, source=sources, text=words, causes=causes)


@given(st.lists(any_moment, max_size=5))
def test_whatever_is_told_fits_into_eighty_columns(found: list[Moment]) -> None:
    assert all(len(line) <= 80 for line in lines(found, timezone.utc))
