"""Schedules with a job of Cloud Scheduler: created once, compared with the existing one, changed, removed; lost replies."""

import json
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, made, needs
from weekly_schedules import ACCOUNT, WEEK_S, prepared

from sdk import InputError, PodliftError
from sdk.backends.vertex.schedule import scheduler_calls
from sdk.cli import app
from sdk.schedules import creation
from sdk.schedules.handle import Schedule
from sdk.storage.gcs.store import GcsStore
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1")
NAME = "podlift-project-weekly"


@pytest.fixture
def create(cloud, project) -> Callable[..., creation.Created]:
    Path("train.py").write_text("print('here')")

    return lambda *words, **more: creation.create(
        prepared(partial(cloud.backend, service_account=ACCOUNT), *words, **more)
    )


@pytest.fixture
def shown(cloud, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command of `podlift schedule` with this root, and return its code, its output and its messages."""
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", cloud.bucket)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return (app.run(["schedule", *words]), *capsys.readouterr())

    return run


@pytest.fixture
def listed(shown) -> Callable[[], list[Any]]:
    """Return the schedules that `list` shows."""

    def run() -> list[Any]:
        code, output, errors = shown("list", "--json")
        assert code == 0, errors
        return json.loads(output)

    return run


def jobs(cloud: Cloud) -> list[Any]:
    return list(cloud.scheduler().list_jobs(parent=cloud.parent, timeout=30))


def objects(cloud: Cloud) -> dict[str, str]:
    """Return the objects below the root, with their generations."""
    found = cloud.ask("GET", f"/storage/v1/b/{cloud.bucket}/o?prefix=podlift/")
    return {each["name"]: each["generation"] for each in found.get("items", ())}


def test_a_schedule_is_one_job_and_creating_it_again_writes_nothing(cloud, create, project) -> None:
    made = create()
    assert made.outcome == "created" and made.record.backend == "vertex"
    (job,) = jobs(cloud)
    assert job.name == made.record.trigger == f"{cloud.parent}/jobs/{NAME}"
    assert (job.schedule, job.time_zone, job.state.name) == ("0 3 * * 1", "Europe/Berlin", "ENABLED")
    assert job.http_target.oauth_token.service_account_email == ACCOUNT
    container = json.loads(job.http_target.body)["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    bucket, entrypoint, digest, key, spec_digest = container["args"]
    assert {entrypoint, key} <= set(objects(cloud)) and key.endswith(f"/{spec_digest}.json")
    spec = cloud.ask("GET", f"/storage/v1/b/{bucket}/o/{key.replace('/', '%2F')}?alt=media")
    assert (spec["main"], spec["schedule"], spec["id"]) == ("sdk.backends.keeper_main", "weekly", made.record.id)
    assert spec["runtime"]["key"] in objects(cloud) and digest in entrypoint
    assert "gcloud alpha monitoring policies create" in made.alert and NAME in made.alert
    before = objects(cloud)
    # Another checkout: this folder stays the current one.
    project.rename(project.with_name("workspace"))
    cloud.forget_requests()
    again = create()
    assert (again.outcome, again.changes, again.record) == ("unchanged", (), made.record)
    assert objects(cloud) == before
    recent = cloud.ask("GET", "/_requests")["recent"]
    assert recent and {each["method"] for each in recent if not each["path"].startswith("/_")} == {"GET"}


def test_a_changed_schedule_shows_the_differences_and_keeps_its_job(cloud, create) -> None:
    first = create()
    Schedule("weekly", root=first.plan.root).pause()
    Path("train.py").write_text("print('there')")
    changed = create("0 4 * * 1", overlap="queue")
    assert changed.outcome == "changed" and changed.record.id == first.record.id
    # The body of the job follows from these.
    assert changed.changes == ["~ cron: '0 3 * * 1' -> '0 4 * * 1'", "~ overlap: 'skip' -> 'queue'", "code: ~ train.py"]
    (job,) = jobs(cloud)
    assert (job.schedule, job.state.name) == ("0 4 * * 1", "PAUSED")
    assert Schedule("weekly", root=first.plan.root).trigger().sync == "in sync"


def test_changes_made_at_cloud_scheduler_are_listed_and_repaired(cloud, create, shown, listed) -> None:
    from google.cloud.scheduler_v1 import Job

    made = create()
    (found,) = listed()
    assert (found["state"], found["trigger"]["sync"], found["backend"]) == ("active", "in sync", "vertex")
    client = cloud.scheduler()
    client.update_job(job=Job(name=made.record.trigger, schedule="0 5 * * *"), update_mask="schedule", timeout=30)
    (found,) = listed()
    assert (found["state"], found["trigger"]["sync"]) == ("attention", "changed there")
    assert found["trigger"]["why"] == "the cron expression is '0 5 * * *' there and '0 3 * * 1' here"
    code, output, _ = shown("list", "weekly", "--check")
    assert code == 1 and "was changed in Cloud Scheduler" in output
    assert create().changes == ['trigger: ~ schedule: "0 5 * * *" -> "0 3 * * 1"']
    client.delete_job(name=made.record.trigger, timeout=30)
    (found,) = listed()
    assert (found["trigger"]["sync"], found["next"]) == ("missing", [])
    assert shown("list", "weekly", "--check")[0] == 1
    assert create().outcome == "changed" and len(jobs(cloud)) == 1
    assert shown("list", "weekly", "--check")[0] == 0
    client.pause_job(name=made.record.trigger, timeout=30)
    (found,) = listed()
    assert (found["state"], found["paused"], found["trigger"]["sync"]) == ("paused", "at the service", "in sync")
    code, _, errors = shown("unpause", "weekly")
    assert code == 0 and "fires next at" in errors
    assert jobs(cloud)[0].state.name == "ENABLED"


def test_a_job_of_another_root_is_left_alone_and_one_without_records_is_removed(cloud, create, shown, listed) -> None:
    create()
    (before,) = jobs(cloud)
    with pytest.raises(InputError, match=r"belongs to the schedule 'weekly' \(id .+\) of gs://podlift-runs/podlift\."):
        create(bucket=f"{cloud.bucket}/other")
    assert jobs(cloud) == [before]
    assert not [name for name in objects(cloud) if name.startswith("other/")]
    for name in objects(cloud):
        if "/schedules/" in name and "/triggers/" not in name:
            GcsStore(cloud.bucket).delete(name)
    (orphan,) = listed()
    assert (orphan["name"], orphan["trigger"]["sync"]) == ("weekly", "orphan")
    with pytest.raises(InputError, match=f"has a trigger '{NAME}' already, which belongs to the schedule"):
        create()
    assert shown("remove", "weekly")[0] == 0
    assert jobs(cloud) == [] and listed() == []


@pytest.mark.parametrize("kind", ["drop_before", "silent_after"])
def test_a_lost_reply_leaves_one_job(cloud, create, monkeypatch, kind) -> None:
    monkeypatch.setattr(scheduler_calls, "_LIMIT_S", 0.5)
    lost = {"api": "scheduler", "kind": kind, "times": 1}
    cloud.faults({**lost, "operation": "jobs.create"})
    made = create()
    assert len(jobs(cloud)) == 1
    cloud.faults({**lost, "operation": "jobs.patch"})
    assert create("0 4 * * 1").outcome == "changed"
    assert jobs(cloud)[0].schedule == "0 4 * * 1"
    each = Schedule("weekly", root=made.plan.root)
    cloud.faults({**lost, "operation": "jobs.pause"}, {**lost, "operation": "jobs.resume"})
    each.pause()
    assert jobs(cloud)[0].state.name == "PAUSED" and each.next() == []
    each.unpause()
    assert jobs(cloud)[0].state.name == "ENABLED" and len(each.next()) == 5
    cloud.faults({**lost, "operation": "jobs.delete"})
    each.remove()
    assert jobs(cloud) == []


def test_a_rejected_create_leaves_nothing_and_an_interrupted_one_is_finished(cloud, create, shown, listed) -> None:
    cloud.faults({"api": "scheduler", "kind": "deny", "operation": "jobs.create"})
    with pytest.raises(InputError, match=r"cloudscheduler\.jobs\.create.+roles/cloudscheduler\.admin"):
        create()
    assert not [name for name in objects(cloud) if "/schedules/specs/" in name]
    cloud.faults({"api": "scheduler", "kind": "status_before", "status": 503, "operation": "jobs.create"})
    with pytest.MonkeyPatch.context() as patched, pytest.raises(PodliftError):
        patched.setattr("sdk.backends.vertex.client._RETRY_S", 0.2)
        create()
    (found,) = listed()
    assert found["trigger"]["sync"] == "missing"
    cloud.faults()
    assert create().outcome == "changed" and len(jobs(cloud)) == 1
    cloud.faults({"kind": "deny", "operation": "objects.delete"})
    assert shown("remove", "weekly")[0] != 0
    assert jobs(cloud) == []
    (found,) = listed()
    assert found["problems"] == ["its removal was interrupted. Next: podlift schedule remove weekly"]
    cloud.faults()
    assert shown("remove", "weekly")[0] == 0
    assert listed() == []


def test_run_creates_one_keeper_labelled_as_by_hand_also_if_the_reply_is_lost(cloud, create, shown) -> None:
    create()
    cloud.faults({"api": "vertex", "kind": "drop_after", "times": 1, "operation": "customJobs.create"})
    code, output, errors = shown("run", "weekly")
    assert code == 0 and "takes the slot once it has a machine" in errors
    (job,) = made(cloud)
    assert job.name == output.strip()
    assert (job.labels["podlift-schedule"], job.labels["podlift-slot"]) == ("weekly", "manual")


def test_a_slot_without_a_record_is_overdue_and_a_schedule_without_a_trigger_says_so(cloud, create) -> None:
    made = create()
    slot = made.record.spec.slots.next(1, datetime.now(timezone.utc))[0].timestamp()
    clock = FakeClock()
    each = Schedule("weekly", root=made.plan.root, clock=clock)
    clock.time = slot + 1200
    assert each.problems() == []
    clock.time = slot + 2000
    (problem,) = each.problems()
    assert "is overdue: Cloud Scheduler has not delivered yet" in problem
    cloud.scheduler().delete_job(name=made.record.trigger, timeout=30)
    each = Schedule("weekly", root=made.plan.root)
    for act in (each.run, each.unpause):
        with pytest.raises(InputError, match=r"Cloud Scheduler has no trigger for the schedule 'weekly'.+create again"):
            act()
    each.pause()
    assert each.record.paused == "by hand"
    each.remove()
    assert not [name for name in objects(cloud) if "/schedules/specs/" in name]


def test_a_schedule_moved_to_another_location_stays_paused_and_leaves_no_job(cloud, create) -> None:
    first = create()
    each = Schedule("weekly", root=first.plan.root)
    each.pause()
    # The new trigger comes first: an interruption leaves two, never none.
    cloud.faults({"api": "scheduler", "kind": "deny", "operation": "jobs.delete"})
    with pytest.raises(PodliftError):
        create(location="europe-west1")
    assert len(jobs(cloud)) == 1
    assert f"its former trigger {first.record.trigger} was not removed yet" in " ".join(each.problems())
    cloud.faults()
    made = create(location="europe-west1")
    assert made.outcome == "changed" and "/locations/europe-west1/" in made.record.trigger
    assert made.changes == [f"- trigger: {first.record.trigger}, which is replaced"]
    assert jobs(cloud) == []
    assert cloud.scheduler().get_job(name=made.record.trigger, timeout=30).state.name == "PAUSED"
    assert create(trigger="serve").record.trigger == ""
    moved = cloud.scheduler().list_jobs(parent=made.record.trigger.rpartition("/jobs/")[0], timeout=30)
    assert list(moved) == []


def test_a_job_that_cloud_scheduler_has_disabled_is_made_anew(cloud, create) -> None:
    made = create()
    cloud.faults({"api": "scheduler", "kind": "disable"})
    cloud.advance(WEEK_S)
    cloud.faults()
    assert jobs(cloud)[0].state.name == "DISABLED"
    each = Schedule("weekly", root=made.plan.root)
    assert any("its state is DISABLED" in problem for problem in each.problems()) and each.next() == []
    with pytest.raises(InputError, match=r"does not fire the schedule 'weekly'.+its state is DISABLED.+create again"):
        each.unpause()
    assert create().outcome == "changed"
    assert jobs(cloud)[0].state.name == "ENABLED"
