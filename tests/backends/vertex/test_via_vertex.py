"""Schedules by Vertex AI's own schedules, end to end: a pipeline job of one task serves each slot. Both services, one slot."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, needs, until

import sdk
from sdk import InputError, backends
from sdk.backends.deliveries import Delivery
from sdk.cli import app
from sdk.planning.settings.merge import Destination
from sdk.schedules.creation import Created, create, draft, prepare
from sdk.schedules.handle import Schedule
from sdk.schedules.records import SlotRecord
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1", "google.cloud.aiplatform_v1")
ACCOUNT = "keeper@podlift.iam.gserviceaccount.com"
WEEK_S = 7 * 86400.0
Create = Callable[..., Created]


@pytest.fixture
def make(podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Create:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", podlift_vertex.bucket)
    Path("train.py").write_text("import sys\nprint(sys.argv[1:])\n")

    def made(cron: str = "0 3 * * 1", via: str = "vertex", **rules: Any) -> Created:
        rules = {"name": "weekly", "cron": cron, "time_zone": "Europe/Berlin", "via": via, **rules}
        job = sdk.Job(rules.pop("program", "train.py"), args=["{slot:%Y-%m-%d}"])
        target = podlift_vertex.backend(service_account=ACCOUNT)
        return create(prepare(draft(**rules), job, {}, Destination(backend=target)))

    return made


def pipelines(cloud: Cloud) -> list[Any]:
    """Return the pipeline jobs, the first one first."""
    return list(cloud.pipelines().list_pipeline_jobs(parent=cloud.parent, timeout=30))[::-1]


def settle(cloud: Cloud) -> None:
    """Wait until the keepers have ended."""
    running = ("PIPELINE_STATE_QUEUED", "PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING")
    until(lambda: not [job for job in pipelines(cloud) if job.state.name in running])
    until(lambda: not [job for job in custom_jobs(cloud) if "ended" not in job and "endTime" not in job])


def custom_jobs(cloud: Cloud) -> list[dict[str, Any]]:
    found = cloud.ask("GET", f"/v1/{cloud.parent}/customJobs").get("customJobs", [])
    return list(found)


def triggers(cloud: Cloud) -> tuple[int, int]:
    """Return how many jobs of Cloud Scheduler and how many schedules of Vertex AI there are."""
    jobs = list(cloud.scheduler().list_jobs(parent=cloud.parent, timeout=30))
    return len(jobs), len(list(cloud.schedules().list_schedules(parent=cloud.parent, timeout=30)))


def history(made: Created) -> list[SlotRecord]:
    """Return the records of the slots, the first one first."""
    return Schedule("weekly", root=made.plan.root).history(None)[::-1]


def test_a_slot_by_a_schedule_of_vertex_ai_runs_the_keeper_as_a_pipeline_job(
    podlift_vertex: Cloud, make: Create
) -> None:
    made = make()
    (schedule,) = podlift_vertex.schedules().list_schedules(parent=podlift_vertex.parent, timeout=30)
    assert (schedule.cron, schedule.display_name) == ("TZ=Europe/Berlin 0 3 * * 1", "podlift-project-weekly")
    assert not schedule.catch_up and triggers(podlift_vertex) == (0, 1)
    # Delivered 50 minutes late: the slot is the time of the schedule, not of the pipeline job's creation.
    podlift_vertex.faults({"api": "scheduler", "kind": "late"})
    assert podlift_vertex.advance(WEEK_S + 3005)
    settle(podlift_vertex)
    (record,) = history(made)
    assert record.state == "SUCCEEDED", (
        record,
        [podlift_vertex.entries(each["name"]) for each in custom_jobs(podlift_vertex)],
    )
    assert record.moment.strftime("%A %H:%M") == "Monday 03:00"
    assert record.notes == ("delivered 50 min after its slot: late, or by hand",)
    (pipeline,) = pipelines(podlift_vertex)
    assert record.keeper == pipeline.name and pipeline.schedule_name == schedule.name
    run = sdk.attach(f"{made.plan.root}/runs/{record.run}")
    assert run.plan.code.argv == [record.slot[:10]]
    # By hand: a slot of its own.
    each = Schedule("weekly", root=made.plan.root)
    keeper = each.run().keeper
    settle(podlift_vertex)
    by_hand = history(made)[-1]
    assert (by_hand.state, by_hand.cause, by_hand.keeper) == ("SUCCEEDED", "manual", keeper)
    assert each.problems() == []


def test_two_triggers_of_one_slot_start_one_run_and_create_again_leaves_one_trigger(
    podlift_vertex: Cloud, make: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make(via="scheduler")
    assert triggers(podlift_vertex) == (1, 0)
    # The new trigger comes first: an interruption leaves two, never none.
    podlift_vertex.faults({"api": "scheduler", "kind": "deny", "operation": "jobs.delete"})
    with pytest.raises(sdk.PodliftError):
        make()
    assert triggers(podlift_vertex) == (1, 1)
    each = Schedule("weekly", root=first.plan.root)
    assert f"its former trigger {first.record.trigger} was not removed yet" in " ".join(each.problems())
    podlift_vertex.faults()
    assert len(podlift_vertex.advance(WEEK_S)) == 2
    settle(podlift_vertex)
    (record,) = history(first)
    assert record.state == "SUCCEEDED" and len(record.notes) == 1
    assert record.notes[0].startswith("delivered again at ")
    assert len(sdk.runs(root=first.plan.root)) == 1
    again = make()
    assert again.outcome == "changed" and again.changes == [f"- trigger: {first.record.trigger}, which is replaced"]
    assert triggers(podlift_vertex) == (0, 1)
    assert make().outcome == "unchanged" and each.problems() == []
    capsys.readouterr()
    assert app.run(["schedule", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["trigger"]["service"], listed["trigger"]["sync"]) == ("Vertex AI", "in sync")


def test_another_service_takes_over_also_while_paused_and_delete_removes_what_is_left(
    podlift_vertex: Cloud, make: Create
) -> None:
    made = make()
    Schedule("weekly", root=made.plan.root).pause()
    back = make(via="scheduler")
    assert back.outcome == "changed" and "~ via: 'vertex' -> 'auto'" in back.changes
    assert triggers(podlift_vertex) == (1, 0)
    (job,) = podlift_vertex.scheduler().list_jobs(parent=podlift_vertex.parent, timeout=30)
    assert job.state.name == "PAUSED" and make(via="auto").outcome == "unchanged"
    podlift_vertex.faults({"api": "scheduler", "kind": "deny", "operation": "jobs.delete"})
    with pytest.raises(sdk.PodliftError):
        make()
    # Another change before that one is finished: both former triggers are known.
    with pytest.raises(sdk.PodliftError):
        make(trigger="serve", via="auto")
    assert len(Schedule("weekly", root=made.plan.root).record.former) == 2
    podlift_vertex.faults()
    Schedule("weekly", root=made.plan.root).delete()
    assert triggers(podlift_vertex) == (0, 0)


def test_what_someone_changed_or_removed_at_vertex_ai_is_listed_and_mended(podlift_vertex: Cloud, make: Create) -> None:
    from google.cloud.aiplatform_v1.types import Schedule as VertexSchedule

    made = make()
    each = Schedule("weekly", root=made.plan.root)
    client = podlift_vertex.schedules()
    (there,) = client.list_schedules(parent=podlift_vertex.parent, timeout=30)
    changed = VertexSchedule(name=there.name, cron="TZ=Europe/Berlin 0 5 * * *")
    client.update_schedule(schedule=changed, update_mask="cron", timeout=30)
    assert "the cron expression is '0 5 * * *' there and '0 3 * * 1' here" in " ".join(each.problems())
    assert make().changes == ['trigger: ~ cron: "TZ=Europe/Berlin 0 5 * * *" -> "TZ=Europe/Berlin 0 3 * * 1"']
    client.delete_schedule(name=there.name, timeout=30).result()
    each = Schedule("weekly", root=made.plan.root)
    assert "Vertex AI has no trigger for it" in " ".join(each.problems()) and each.next() == []
    assert make().outcome == "changed" and triggers(podlift_vertex) == (0, 1)
    assert Schedule("weekly", root=made.plan.root).problems() == []


def test_a_schedule_whose_records_are_gone_is_an_orphan_which_delete_removes(
    podlift_vertex: Cloud, make: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    from sdk.storage.registry import open_store

    made = make()
    store = open_store(f"{made.plan.root}/schedules")
    for stat in store.list("specs/"):
        store.delete(stat.key)
    capsys.readouterr()
    assert app.run(["schedule", "list", "--json"]) == 0
    (orphan,) = json.loads(capsys.readouterr().out)
    assert (orphan["name"], orphan["trigger"]["sync"]) == ("weekly", "orphan")
    assert app.run(["schedule", "delete", "weekly"]) == 0 and triggers(podlift_vertex) == (0, 0)


@pytest.mark.full
def test_a_schedule_that_fails_is_paused_by_its_keeper_at_vertex_ai(podlift_vertex: Cloud, make: Create) -> None:
    Path("fails.py").write_text("raise SystemExit(1)\n")
    made = make(program="fails.py", pause_after_failures=1)
    assert podlift_vertex.advance(WEEK_S)
    settle(podlift_vertex)
    assert [each.state for each in history(made)] == ["FAILED"]
    (schedule,) = podlift_vertex.schedules().list_schedules(parent=podlift_vertex.parent, timeout=30)
    assert schedule.state.name == "PAUSED"


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ({"via": "vertax"}, "via: unknown value. Received: 'vertax'. Did you mean 'vertex'?"),
        ({"trigger": "serve"}, "via: podlift schedule serve starts this schedule. Received: 'vertex'. Next: omit it."),
        ({"location": "europe-west1"}, "location: with via='vertex' a schedule is in the region of its keeper, us-central1."),
        ({"cron": "0 3 L * *"}, "Vertex AI knows no last day (L)"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_before_anything_is_written(
    podlift_vertex: Cloud, make: Create, rules: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        make(**rules)
    assert sentence in str(caught.value) and triggers(podlift_vertex) == (0, 0)


def test_via_is_for_backends_with_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)")
    with pytest.raises(InputError, match=r"via: podlift schedule serve starts this schedule\. Received: 'vertex'"):
        prepare(draft(name="n", cron="0 3 * * 1", via="vertex"), "train.py", {}, Destination(root=tmp_path / "root"))


TOLD = {
    "PODLIFT_DELIVERY_CAUSE": "cron",
    "PODLIFT_DELIVERY_SLOT": "2027-01-04T02:00:00Z",
    "PODLIFT_DELIVERY_CREATED": "2027-01-04T02:50:00.123456789Z",
    "PODLIFT_DELIVERY_JOB": "projects/1/locations/us-central1/pipelineJobs/p-1",
}


def test_the_pipeline_tells_its_container_the_slot_and_never_its_creation_instead() -> None:
    deliveries = backends.delivery_service("vertex")
    assert deliveries is not None

    def told(**more: str) -> Delivery:
        environ = {**TOLD, **{f"PODLIFT_DELIVERY_{name}": value for name, value in more.items()}}
        return deliveries.delivery(None, environ, FakeClock())  # type: ignore[arg-type]

    slot = datetime(2027, 1, 4, 2, tzinfo=timezone.utc).timestamp()
    for form in ("2027-01-04T02:00:00Z", "2027-01-04T01:59:59.900000Z", "2027-01-04T02:00:00+00:00"):
        found = told(SLOT=form)
        assert (found.slot, found.by_hand, found.id) == (slot, False, "p-1")
        assert 3000 < found.created - slot < 3001
    assert told(CAUSE="manual").by_hand and told(CAUSE="manual").slot is None
    earlier = told(CAUSE="20261228t020000z")
    assert (earlier.slot, earlier.by_hand) == (slot - WEEK_S, False)
    for wrong in ({"SLOT": "{{$.pipeline_job_schedule_time_utc}}"}, {"SLOT": ""}, {"CREATED": "now"}, {"JOB": "p-1"}):
        with pytest.raises(InputError, match=r"did not say for which slot.+Next: podlift schedule run"):
            told(**wrong)


def test_a_dry_run_shows_the_request_the_rights_and_the_price(
    podlift_vertex: Cloud, make: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "schedule",
        "create",
        "weekly",
        "train.py",
        "--cron",
        "0 3 * * 1",
        "--via",
        "vertex",
        "--backend",
        "vertex",
    ]
    words += ["--vertex-project", "podlift", "--vertex-image", "podlift/emulated", "--vertex-service-account", ACCOUNT]
    assert app.run([*words, "--dry-run", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    request = found["trigger"]["request"]
    assert request["createPipelineJobRequest"]["pipelineJob"]["runtimeConfig"]["gcsOutputDirectory"].endswith(
        "/schedules/pipelines/weekly"
    )
    text = json.dumps(found["trigger"]["lines"])
    assert "aiplatform.schedules.create, get, list, update and delete" in text and "roles/aiplatform.user" in text
    assert triggers(podlift_vertex) == (0, 0)
