"""The times and the content of the requests of jobs, and the effect of their answers, by a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from served import WAIT_S
from support import serving
from timetable import ACCOUNT, DAY_S, WEEK_S, Timetable

from sdk.emulator.scheduler.post import send

BERLIN = ZoneInfo("Europe/Berlin")


def times(attempts: list[dict]) -> list[datetime]:
    return [datetime.fromisoformat(each["attempt_time"].replace("Z", "+00:00")) for each in attempts]


def gaps(attempts: list[dict]) -> list[float]:
    """The seconds between attempts."""
    found = times(attempts)
    return [(two - one).total_seconds() for one, two in pairwise(found)]


@pytest.fixture
def receiver() -> Iterator[SimpleNamespace]:
    """A server of this machine that keeps the requests and answers while its gate is open."""
    found = SimpleNamespace(got=[], gate=threading.Event())
    found.gate.set()

    def answer(request) -> tuple[int, bytes]:
        found.got.append((request.command, request.path, dict(request.headers.items()), request.body))
        found.gate.wait(WAIT_S)
        return 204, b""

    with serving(answer) as address:
        found.uri = f"http://{address}/hook?a=b"
        yield found
        found.gate.set()


def test_four_weeks_are_four_custom_jobs_each_created_at_its_slot(timetable: Timetable) -> None:
    timetable.add()
    attempts = timetable.advance(4 * WEEK_S)
    slots = [datetime.fromisoformat(each["schedule_time"]) for each in attempts]
    assert [(slot.astimezone(BERLIN).weekday(), slot.astimezone(BERLIN).hour) for slot in slots] == [(0, 3)] * 4
    assert [each.create_time for each in timetable.custom_jobs()] == slots == times(attempts)
    shown = timetable.look()
    assert shown.last_attempt_time == slots[-1]
    assert shown.status.code == 0 and (shown.schedule_time - slots[-1]).days == 7


def test_the_request_has_the_headers_of_the_service_and_of_the_job(timetable: Timetable, receiver) -> None:
    headers = {"Content-Type": "text/plain", "X-Mine": "1"}
    replaced = {"user-agent": "me", "X-CloudScheduler-JobName": "other", "Host": "example.com", "Content-Length": "1"}
    target = {"uri": receiver.uri, "headers": {**headers, **replaced}, "body": b"\x00text"}
    made = timetable.add("hook", target=target)
    assert dict(made.http_target.headers) == {**headers, "User-Agent": "Google-Cloud-Scheduler"}
    (attempt,) = timetable.advance(WEEK_S)
    ((method, path, got, body),) = receiver.got
    assert (method, path, body) == ("POST", "/hook?a=b", b"\x00text")
    assert {name: text for name, text in got.items() if name in headers or name.startswith(("X-", "User"))} == {
        **headers,
        "User-Agent": "Google-Cloud-Scheduler",
        "X-CloudScheduler-JobName": "hook",
        "X-CloudScheduler": "true",
        "X-CloudScheduler-ScheduleTime": attempt["schedule_time"],
    }
    assert got["Authorization"].startswith("Bearer ")
    # The token opens the emulator, and is for no other server.
    assert timetable.url.rpartition("/")[2] not in got["Authorization"]
    assert attempt["http_status"] == 204


def test_a_job_without_a_token_of_oauth_is_unauthenticated_at_google(timetable: Timetable) -> None:
    timetable.add(target={"oauth_token": None})
    timetable.add("oidc", target={"oauth_token": None, "oidc_token": {"service_account_email": ACCOUNT}})
    assert {each["code"] for each in timetable.advance(WEEK_S)} == {16}
    assert timetable.look().status.code == timetable.look("oidc").status.code == 16
    assert timetable.custom_jobs() == []


def test_a_refusal_by_the_target_is_the_status_of_the_job(timetable: Timetable) -> None:
    timetable.add("binary", target={"headers": {}})
    timetable.add("empty", target={"body": b"{}"})
    timetable.add("elsewhere", target={"uri": timetable.look("empty").http_target.uri.replace("//us-", "//europe-")})
    timetable.add("nobody", target={"uri": "http://localhost:1/"})
    found = {each["job"].rpartition("/")[2]: each for each in timetable.advance(WEEK_S)}
    assert {name: each["code"] for name, each in found.items()} == {
        "binary": 3, "empty": 3, "elsewhere": 3, "nobody": 14,
    }  # fmt: skip
    assert "application/octet-stream" in found["binary"]["text"]
    assert "display_name" in found["empty"]["text"]
    assert timetable.look("nobody").status.code == 14


@pytest.mark.parametrize(
    ("config", "waited"),
    [
        ({}, []),
        ({"retry_count": 3, "min_backoff_duration": "30s"}, [30, 60, 120]),
        ({"retry_count": 4, "min_backoff_duration": "10s", "max_doublings": 1}, [10, 20, 40, 60]),
        ({"retry_count": 5, "min_backoff_duration": "10s", "max_backoff_duration": "25s"}, [10, 20, 25, 25, 25]),
        ({"max_retry_duration": "100s", "min_backoff_duration": "20s"}, [20, 40]),
        ({"retry_count": 3, "max_retry_duration": "30s", "min_backoff_duration": "20s"}, [20, 40, 80]),
    ],
)
def test_failed_attempts_are_retried_by_the_rules_of_the_job(timetable, config: dict, waited: list[float]) -> None:
    timetable.faults({"kind": "status_before", "operation": "jobs.attempt", "status": 503, "times": len(waited) + 1})
    timetable.add(schedule="0 3 * * *", retry_config=config)
    attempts = timetable.advance(DAY_S)
    assert gaps(attempts) == waited
    assert [each["retry"] for each in attempts] == list(range(len(waited) + 1))
    assert {each["schedule_time"] for each in attempts} == {attempts[0]["schedule_time"]}
    assert timetable.look().status.code == 14
    (following,) = timetable.advance(DAY_S)
    assert following["code"] == 0 and timetable.look().status.code == 0


def test_a_lost_answer_makes_a_retry_create_a_second_custom_job(timetable: Timetable) -> None:
    timetable.faults({"kind": "status_after", "operation": "jobs.attempt", "status": 503, "nth": 1})
    timetable.add(retry_config={"retry_count": 1})
    assert [each["code"] for each in timetable.advance(WEEK_S)] == [14, 0]
    one, two = timetable.custom_jobs()
    assert (two.create_time - one.create_time).total_seconds() == 5


def test_a_server_that_says_nothing_exceeds_the_deadline(receiver) -> None:
    receiver.gate.clear()
    outcome = send({"uri": receiver.uri, "httpMethod": "POST"}, {}, "http://127.0.0.1:1/token", 0.05)
    assert (outcome.code, outcome.http_status) == (4, 0)


@pytest.mark.fidelity("deliveries", "emulator")
def test_a_duplicate_delivery_creates_two_custom_jobs(timetable: Timetable) -> None:
    timetable.faults({"kind": "duplicate", "job": "^weekly$", "nth": 2})
    timetable.add()
    attempts = timetable.advance(3 * WEEK_S)
    assert len(attempts) == 3
    made = [each.create_time for each in timetable.custom_jobs()]
    assert len(made) == 4 and made[1] == made[2]


@pytest.mark.fidelity("deliveries", "emulator")
def test_deliveries_may_be_early_and_late(timetable: Timetable) -> None:
    timetable.add()
    timetable.faults({"kind": "early", "nth": 1}, {"kind": "late", "nth": 2})
    attempts = timetable.advance(3 * WEEK_S)
    slots = [datetime.fromisoformat(each["schedule_time"]) for each in attempts]
    assert [(at - slot).total_seconds() for at, slot in zip(times(attempts), slots, strict=True)] == [-0.2, 3000, 0]
    assert [each.create_time for each in timetable.custom_jobs()] == times(attempts)


def test_a_forced_run_is_one_more_delivery_also_of_a_paused_job(timetable: Timetable) -> None:
    made = timetable.add()
    assert timetable.scheduler.run_job(name=made.name, timeout=WAIT_S).last_attempt_time == timetable.now()
    timetable.scheduler.pause_job(name=made.name, timeout=WAIT_S)
    timetable.scheduler.run_job(name=made.name, timeout=WAIT_S)
    timetable.advance(0)
    told = timetable.ask("GET", "/_attempts").json()["attempts"]
    assert [(each["forced"], each["code"]) for each in told] == [(True, 0), (True, 0)]
    assert len(timetable.custom_jobs()) == 2


def test_the_slots_across_both_clock_changes_are_cronsims(timetable: Timetable) -> None:
    start = timetable.now()
    spring = datetime(start.year + 1, 3, 20, tzinfo=timezone.utc)
    timetable.advance((spring - start).total_seconds())
    made = timetable.add("night", schedule="30 2 * * *")
    attempts = timetable.advance(15 * DAY_S)
    timetable.scheduler.pause_job(name=made.name, timeout=WAIT_S)
    timetable.advance(205 * DAY_S)
    timetable.scheduler.resume_job(name=made.name, timeout=WAIT_S)
    attempts += timetable.advance(10 * DAY_S)
    slots = [datetime.fromisoformat(each["schedule_time"]) for each in attempts]
    days = [slot.date() for slot in slots]
    assert len(days) == len(set(days)) >= 24
    odd = {(slot.month, slot.hour, slot.minute) for slot in slots if (slot.hour, slot.minute) != (2, 30)}
    assert odd == {(3, 3, 0)}
    assert [each.create_time for each in timetable.custom_jobs()] == times(attempts)


def test_jobs_and_the_clock_survive_the_server_and_a_reset_removes_both(serve) -> None:
    timetable = serve(frozen=True)
    timetable.add(schedule="0 3 * * *")
    timetable.advance(10 * DAY_S)
    before, now = timetable.look(), timetable.now()
    timetable.stop()
    timetable = serve(frozen=True)
    assert timetable.look() == before
    assert timedelta(0) <= timetable.now() - now < timedelta(minutes=10)
    assert len(timetable.advance(2 * DAY_S)) == 2
    assert timetable.ask("POST", "/_reset").status_code == 200
    assert timetable.advance(DAY_S) == [] and timetable.custom_jobs() == []
    timetable.ask("POST", "/_reset")
    assert timetable.now() < now


def test_a_slot_that_passed_while_the_server_was_down_is_delivered_late(serve) -> None:
    timetable = serve(frozen=True)
    made = timetable.add(schedule="0 3 * * *")
    timetable.stop()
    # As if the server had been down for a week.
    timetable.store("scheduler/jobs", "INSERT INTO moves VALUES (0.0, 604800.0)")
    timetable = serve(frozen=True)
    timetable.advance(0)
    late, *more = timetable.ask("GET", "/_attempts").json()["attempts"]
    assert datetime.fromisoformat(late["schedule_time"]) == made.schedule_time
    # And the latest of the others, so that the schedule goes on from now.
    assert len(more) == 1
    assert timetable.now() - datetime.fromisoformat(more[0]["schedule_time"]) < timedelta(days=1)


def test_a_clock_does_not_go_back(timetable: Timetable) -> None:
    for wrong in (
        {"advance_s": -1},
        {"advance_s": "x"},
        {},
        {"advance_s": 1e300},
        {"advance_s": 10**400},
        {"advance_s": True},
    ):
        assert timetable.ask("POST", "/_clock", wrong).status_code == 400, wrong
    assert timetable.ask("POST", "/_clock", {"advance_s": 1, "jobs": "yes"}).status_code == 400
    assert timetable.ask("DELETE", "/_clock").status_code == 404
