"""Schedules with a job of Cloud Scheduler: created once, compared with the existing one, changed, removed; lost replies."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, made, needs

import sdk
from sdk import InputError, PodliftError
from sdk.backends.vertex.schedule import scheduler_calls
from sdk.cli import app
from sdk.planning.settings.merge import Destination
from sdk.schedules import creation
from sdk.schedules.creation import Created
from sdk.schedules.handle import Schedule
from sdk.storage.gcs.store import GcsStore
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1")
ACCOUNT = "keeper@podlift.iam.gserviceaccount.com"
NAME = "podlift-project-weekly"
WEEK_S = 7 * 86400.0
Create = Callable[..., Created]


@pytest.fixture
def create(cloud, project) -> Create:
    Path("train.py").write_text("print('here')")

    def make(cron: str = "0 3 * * 1", job: dict[str, object] | None = None, **more: Any) -> Created:
        rules = {name: more.pop(name) for name in list(more) if name in creation.ScheduleSpec.__dataclass_fields__}
        spec = creation.draft(**{"name": "weekly", "cron": cron, "time_zone": "Europe/Berlin", **rules})
        target = cloud.backend(service_account=ACCOUNT, **more)
        return creation.create(creation.prepare(spec, "train.py", job or {}, Destination(backend=target)))

    return make


@pytest.fixture
def root(cloud, monkeypatch) -> str:
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", cloud.bucket)
    return f"gs://{cloud.bucket}/podlift"


def jobs(cloud: Cloud) -> list[Any]:
    return list(cloud.scheduler().list_jobs(parent=cloud.parent, timeout=30))


def objects(cloud: Cloud) -> dict[str, str]:
    """Return the objects below the root, with their generations."""
    found = cloud.ask("GET", f"/storage/v1/b/{cloud.bucket}/o?prefix=podlift/")
    return {each["name"]: each["generation"] for each in found.get("items", ())}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = app.run(["schedule", *words])
    return (code, *capsys.readouterr())


def the_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, output, errors = shown(capsys, *words, "--json")
    assert code == 0, errors
    return json.loads(output)


def test_a_schedule_is_one_job_with_a_body_that_starts_the_keeper(cloud, create) -> None:
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


def test_creating_a_schedule_again_writes_nothing_also_from_another_checkout(
    cloud, create, tmp_path, monkeypatch
) -> None:
    first = create()
    before = objects(cloud)
    Path(tmp_path / "project").rename(tmp_path / "workspace")
    monkeypatch.chdir(tmp_path / "workspace")
    cloud.forget_requests()
    again = create()
    assert (again.outcome, again.changes, again.record) == ("unchanged", (), first.record)
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
    seen = Schedule("weekly", root=first.plan.root).trigger()
    assert seen is not None and seen.sync == "in sync"


def test_changes_made_at_cloud_scheduler_are_listed_and_a_second_create_repairs_them(
    cloud, create, root, capsys
) -> None:
    from google.cloud.scheduler_v1 import Job

    made = create()
    (listed,) = the_json(capsys, "list")
    assert (listed["state"], listed["trigger"]["sync"], listed["backend"]) == ("active", "in sync", "vertex")
    client = cloud.scheduler()
    client.update_job(job=Job(name=made.record.trigger, schedule="0 5 * * *"), update_mask="schedule", timeout=30)
    (listed,) = the_json(capsys, "list")
    assert (listed["state"], listed["trigger"]["sync"]) == ("attention", "changed there")
    assert listed["trigger"]["why"] == "the cron expression is '0 5 * * *' there and '0 3 * * 1' here"
    code, output, _ = shown(capsys, "list", "weekly", "--check")
    assert code == 1 and "was changed in Cloud Scheduler" in output
    assert create().changes == ['trigger: ~ schedule: "0 5 * * *" -> "0 3 * * 1"']
    client.delete_job(name=made.record.trigger, timeout=30)
    (listed,) = the_json(capsys, "list")
    assert (listed["trigger"]["sync"], listed["next"]) == ("missing", [])
    assert shown(capsys, "list", "weekly", "--check")[0] == 1
    assert create().outcome == "changed" and len(jobs(cloud)) == 1
    assert shown(capsys, "list", "weekly", "--check")[0] == 0


def test_a_job_without_records_is_an_orphan_which_delete_removes(cloud, create, root, capsys) -> None:
    create()
    for name in objects(cloud):
        if "/schedules/" in name and "/triggers/" not in name:
            GcsStore(cloud.bucket).delete(name)
    (orphan,) = the_json(capsys, "list")
    assert (orphan["name"], orphan["trigger"]["sync"]) == ("weekly", "orphan")
    with pytest.raises(
        InputError, match="has a trigger 'podlift-project-weekly' already, which belongs to the schedule"
    ):
        create()
    assert shown(capsys, "remove", "weekly")[0] == 0
    assert jobs(cloud) == [] and the_json(capsys, "list") == []


def test_another_roots_job_of_the_same_name_is_left_alone(cloud, create, tmp_path) -> None:
    create()
    (before,) = jobs(cloud)
    with pytest.raises(InputError, match=r"belongs to the schedule 'weekly' \(id .+\) of gs://podlift-runs/podlift\."):
        create(bucket=f"{cloud.bucket}/other")
    assert jobs(cloud) == [before]
    assert not [name for name in objects(cloud) if name.startswith("other/")]


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


def test_a_rejected_job_leaves_nothing_and_names_the_right_that_is_missing(cloud, create) -> None:
    cloud.faults({"api": "scheduler", "kind": "deny", "operation": "jobs.create"})
    with pytest.raises(InputError, match=r"cloudscheduler\.jobs\.create.+roles/cloudscheduler\.admin"):
        create()
    assert not [name for name in objects(cloud) if "/schedules/specs/" in name]
    cloud.faults()
    assert create().outcome == "created"


def test_an_interrupted_create_or_delete_is_listed_and_finished_by_the_next_one(cloud, create, root, capsys) -> None:
    cloud.faults({"api": "scheduler", "kind": "status_before", "status": 503, "operation": "jobs.create"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sdk.backends.vertex.client._RETRY_S", 0.2)
        with pytest.raises(sdk.PodliftError):
            create()
    (listed,) = the_json(capsys, "list")
    assert listed["trigger"]["sync"] == "missing"
    cloud.faults()
    assert create().outcome == "changed" and len(jobs(cloud)) == 1
    cloud.faults({"kind": "deny", "operation": "objects.delete"})
    assert shown(capsys, "remove", "weekly")[0] != 0
    assert jobs(cloud) == []
    (listed,) = the_json(capsys, "list")
    assert listed["problems"] == ["its removal was interrupted. Next: podlift schedule remove weekly"]
    cloud.faults()
    assert shown(capsys, "remove", "weekly")[0] == 0
    assert the_json(capsys, "list") == []


def test_a_pause_in_the_console_is_shown_and_ended_by_unpause(cloud, create, root, capsys) -> None:
    made = create()
    cloud.scheduler().pause_job(name=made.record.trigger, timeout=30)
    (listed,) = the_json(capsys, "list")
    assert (listed["state"], listed["paused"], listed["trigger"]["sync"]) == ("paused", "at the service", "in sync")
    code, _, errors = shown(capsys, "unpause", "weekly")
    assert code == 0 and "fires next at" in errors
    assert jobs(cloud)[0].state.name == "ENABLED"


def test_run_creates_one_keeper_labelled_as_by_hand_also_if_the_reply_is_lost(cloud, create, root, capsys) -> None:
    create()
    cloud.faults({"api": "vertex", "kind": "drop_after", "times": 1, "operation": "customJobs.create"})
    code, output, errors = shown(capsys, "run", "weekly")
    assert code == 0 and "takes the slot once it has a machine" in errors
    (job,) = made(cloud)
    assert job.name == output.strip()
    assert (job.labels["podlift-schedule"], job.labels["podlift-slot"]) == ("weekly", "manual")


def test_a_slot_without_a_record_is_overdue_after_the_retries_and_a_start(cloud, create) -> None:
    made = create()
    slot = made.record.spec.slots.next(1, datetime.now(timezone.utc))[0].timestamp()
    clock = FakeClock()
    each = Schedule("weekly", root=made.plan.root, clock=clock)
    clock.time = slot + 1200
    assert each.problems() == []
    clock.time = slot + 2000
    (problem,) = each.problems()
    assert "is overdue: Cloud Scheduler has not delivered yet" in problem


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


def test_without_a_trigger_a_schedule_says_so_and_creating_it_again_mends_it(cloud, create) -> None:
    made = create()
    each = Schedule("weekly", root=made.plan.root)
    cloud.scheduler().delete_job(name=made.record.trigger, timeout=30)
    for act in (each.run, each.unpause):
        with pytest.raises(InputError, match=r"Cloud Scheduler has no trigger for the schedule 'weekly'.+create again"):
            act()
    each.pause()
    assert each.record.paused == "by hand"
    each.remove()
    assert not [name for name in objects(cloud) if "/schedules/specs/" in name]


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
