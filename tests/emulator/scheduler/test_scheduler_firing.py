"""Cloud Scheduler by Google's own client: answers and refusals; and the requests of jobs, by a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from google.api_core import exceptions
from google.cloud.scheduler_v1.types import Job
from google.protobuf.field_mask_pb2 import FieldMask
from served import PARENT, WAIT_S
from support import serving
from timetable import ACCOUNT, DAY_S, JOBS, WEEK_S, Timetable, full

from sdk.emulator.scheduler.post import send

BERLIN = ZoneInfo("Europe/Berlin")


def times(attempts: list[dict]) -> list[datetime]:
    return [datetime.fromisoformat(each["attempt_time"].replace("Z", "+00:00")) for each in attempts]


def gaps(attempts: list[dict]) -> list[float]:
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
    codes = {name: each["code"] for name, each in found.items()}
    assert codes == {"binary": 3, "empty": 3, "elsewhere": 3, "nobody": 14}
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
    wrong = [{"advance_s": seconds} for seconds in (-1, "x", 1e300, 10**400, True)]
    for body in ({}, *wrong, {"advance_s": 1, "jobs": "yes"}):
        assert timetable.ask("POST", "/_clock", body).status_code == 400, body
    assert timetable.ask("DELETE", "/_clock").status_code == 404


def test_a_job_is_shown_as_google_completes_it(timetable: Timetable) -> None:
    made = timetable.add(description="d" * 500)
    assert made == timetable.look()
    assert (made.name, made.state, made.time_zone) == (full("weekly"), Job.State.ENABLED, "Europe/Berlin")
    headers = {"Content-Type": "application/json", "User-Agent": "Google-Cloud-Scheduler"}
    assert dict(made.http_target.headers) == headers
    assert made.http_target.oauth_token.scope == "https://www.googleapis.com/auth/cloud-platform"
    assert made.attempt_deadline.total_seconds() == 180
    retries = made.retry_config
    assert (retries.retry_count, retries.max_doublings, retries.max_retry_duration.total_seconds()) == (0, 5, 0)
    assert (retries.min_backoff_duration.total_seconds(), retries.max_backoff_duration.total_seconds()) == (5, 3600)
    assert made.user_update_time == timetable.now()
    assert made.schedule_time > timetable.now()
    assert made.schedule_time.astimezone(timezone.utc).weekday() == 0
    assert not made.last_attempt_time


def test_jobs_are_listed_in_pages(timetable: Timetable) -> None:
    for name in ("c", "a", "b"):
        timetable.add(name)
    timetable.add("d")
    listed = timetable.scheduler.list_jobs(request={"parent": PARENT, "page_size": 2}, timeout=WAIT_S)
    pages = [[each.name.rpartition("/")[2] for each in page.jobs] for page in listed.pages]
    assert pages == [["a", "b"], ["c", "d"]]
    other = timetable.ask("GET", "/v1/projects/acme/locations/europe-west4/jobs")
    assert other.json() == {}
    wrong = timetable.ask("GET", f"/v1/{PARENT}/jobs?pageToken=abc")
    assert wrong.status_code == 400 and "page token" in wrong.json()["error"]["message"]


def test_a_patch_changes_the_fields_of_its_mask_and_no_others(timetable: Timetable) -> None:
    before = timetable.add(description="first", retry_config={"retry_count": 3})
    timetable.advance(60)
    changed = {"http_target": {"uri": JOBS, "body": b"{}"}, "retry_config": {"retry_count": 1}}
    change = Job(name=before.name, description="second", schedule="30 4 * * *", **changed)
    mask = FieldMask(paths=["schedule", "http_target.body", "retry_config.retry_count"])
    after = timetable.scheduler.update_job(job=change, update_mask=mask, timeout=WAIT_S)
    assert (after.description, after.schedule, after.http_target.body) == ("first", "30 4 * * *", b"{}")
    assert after.retry_config.retry_count == 1
    assert after.http_target.oauth_token.service_account_email == ACCOUNT
    assert after.schedule_time != before.schedule_time
    assert (after.user_update_time - before.user_update_time).total_seconds() == 60
    mask = FieldMask(paths=["description", "retry_config"])
    cleared = timetable.scheduler.update_job(job=Job(name=before.name), update_mask=mask, timeout=WAIT_S)
    assert cleared.description == "" and cleared.retry_config.retry_count == 0
    unknown = timetable.ask("PATCH", f"/v1/{before.name}?updateMask=httpTarget.boddy", {})
    assert unknown.status_code == 400 and "'httpTarget.boddy'" in unknown.json()["error"]["message"]


def test_a_paused_job_has_no_next_time_and_a_resumed_one_waits_for_its_next_slot(timetable: Timetable) -> None:
    made = timetable.add(schedule="0 3 * * *")
    paused = timetable.scheduler.pause_job(name=made.name, timeout=WAIT_S)
    assert paused.state == Job.State.PAUSED and not paused.schedule_time
    with pytest.raises(exceptions.BadRequest, match="in state PAUSED"):
        timetable.scheduler.pause_job(name=made.name, timeout=WAIT_S)
    change = Job(name=made.name, description="changed")
    still = timetable.scheduler.update_job(job=change, update_mask=FieldMask(paths=["description"]), timeout=WAIT_S)
    assert still.state == Job.State.PAUSED and timetable.advance(3 * DAY_S) == []
    resumed = timetable.scheduler.resume_job(name=made.name, timeout=WAIT_S)
    assert resumed.state == Job.State.ENABLED
    assert 0 < (resumed.schedule_time - timetable.now()).total_seconds() <= DAY_S
    assert timetable.advance(0) == []
    with pytest.raises(exceptions.BadRequest, match="in state ENABLED"):
        timetable.scheduler.resume_job(name=made.name, timeout=WAIT_S)


def test_locations_are_listed_and_shown(timetable: Timetable) -> None:
    listed = timetable.ask("GET", "/v1/projects/acme/locations").json()["locations"]
    assert "us-central1" in {each["locationId"] for each in listed}
    (one,) = [each for each in listed if each["locationId"] == "us-central1"]
    assert timetable.ask("GET", f"/v1/{PARENT}").json() == one
    assert one["labels"] == {"cloud.googleapis.com/region": "us-central1"}


def test_an_update_that_fails_leaves_a_job_that_does_nothing_until_one_succeeds(timetable: Timetable) -> None:
    made = timetable.add(schedule="0 * * * *")
    timetable.faults({"kind": "status_after", "operation": "jobs.patch", "nth": 1, "status": 500})
    change, mask = Job(name=made.name, description="new"), FieldMask(paths=["description"])
    with pytest.raises(exceptions.InternalServerError):
        timetable.scheduler.update_job(job=change, update_mask=mask, timeout=WAIT_S)
    assert timetable.look().state == Job.State.UPDATE_FAILED
    assert timetable.advance(DAY_S) == []
    again = timetable.scheduler.update_job(job=change, update_mask=mask, timeout=WAIT_S)
    assert again.state == Job.State.ENABLED and len(timetable.advance(3600)) == 1


def test_a_missing_job_is_not_found_and_an_existing_one_conflicts(timetable: Timetable) -> None:
    made = timetable.add()
    with pytest.raises(exceptions.Conflict, match=f"Job {made.name} already exists."):
        timetable.add()
    timetable.scheduler.delete_job(name=made.name, timeout=WAIT_S)
    client = timetable.scheduler
    for call in (client.get_job, client.delete_job, client.pause_job, client.resume_job, client.run_job):
        with pytest.raises(exceptions.NotFound, match="Job not found"):
            call(name=made.name, timeout=WAIT_S)
    with pytest.raises(exceptions.NotFound):
        client.update_job(job=made, timeout=WAIT_S)
