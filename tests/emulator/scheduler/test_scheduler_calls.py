"""The calls of Cloud Scheduler's API, by Google's own client: their answers, and their refusals."""

from __future__ import annotations

from datetime import timezone

import pytest
from google.api_core import exceptions
from google.cloud.scheduler_v1.types import Job
from google.protobuf.field_mask_pb2 import FieldMask
from served import PARENT, WAIT_S
from timetable import ACCOUNT, DAY_S, JOBS, Timetable, full


def test_a_job_is_shown_as_google_completes_it(timetable: Timetable) -> None:
    made = timetable.add(description="d" * 500)
    assert made == timetable.look()
    assert (made.name, made.state, made.time_zone) == (full("weekly"), Job.State.ENABLED, "Europe/Berlin")
    assert dict(made.http_target.headers) == {
        "Content-Type": "application/json",
        "User-Agent": "Google-Cloud-Scheduler",
    }
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
    change = Job(
        name=before.name,
        description="second",
        schedule="30 4 * * *",
        http_target={"uri": JOBS, "body": b"{}"},
        retry_config={"retry_count": 1},
    )
    mask = FieldMask(paths=["schedule", "http_target.body", "retry_config.retry_count"])
    after = timetable.scheduler.update_job(job=change, update_mask=mask, timeout=WAIT_S)
    assert (after.description, after.schedule, after.http_target.body) == ("first", "30 4 * * *", b"{}")
    assert after.retry_config.retry_count == 1
    assert after.http_target.oauth_token.service_account_email == ACCOUNT
    assert after.schedule_time != before.schedule_time
    assert (after.user_update_time - before.user_update_time).total_seconds() == 60
    cleared = timetable.scheduler.update_job(
        job=Job(name=before.name), update_mask=FieldMask(paths=["description", "retry_config"]), timeout=WAIT_S
    )
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
