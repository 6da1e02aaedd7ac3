"""Vertex AI's schedules and pipeline jobs of one container, asked by Google's clients, on a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1 import PipelineServiceClient, ScheduleServiceClient
from google.cloud.aiplatform_v1.types import PipelineJob, PipelineState, Schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from served import PARENT, WAIT_S
from support import until
from timetable import DAY_S, WEEK_S, Timetable

from sdk.emulator.vertex import pipeline_specs
from sdk.emulator.vertex.errors import VertexApiError

BERLIN = ZoneInfo("Europe/Berlin")
SLOT = "{{$.pipeline_job_schedule_time_utc}}"


def spec(**changes: Any) -> dict[str, Any]:
    """A pipeline of one task; its container prints the slot and the pipeline's own parameter."""
    inputs = {"who": {"componentInputParameter": "who"}, "slot": {"runtimeValue": {"constant": SLOT}}}
    task = {
        "componentRef": {"name": "comp"},
        "cachingOptions": {"enableCache": False},
        "inputs": {"parameters": inputs},
    }
    text = {"parameterType": "STRING"}
    args = ["{{$.inputs.parameters['slot']}}", "for {{$.inputs.parameters['who']}}", "{{$.pipeline_job_resource_name}}"]
    return {
        "schemaVersion": "2.1.0",
        "pipelineInfo": {"name": "print-slots"},
        "deploymentSpec": {
            "executors": {"exec": {"container": {"image": "podlift/emulated", "command": ["echo"], "args": args}}}
        },
        "components": {
            "comp": {"executorLabel": "exec", "inputDefinitions": {"parameters": {"who": text, "slot": text}}}
        },
        "root": {"dag": {"tasks": {"task": task}}, "inputDefinitions": {"parameters": {"who": text}}},
        **changes,
    }


def pipeline(who: str = "me", **changes: Any) -> dict[str, Any]:
    config = {"gcsOutputDirectory": "gs://bucket/pipelines", "parameterValues": {"who": who}}
    return {"displayName": "slots", "pipelineSpec": spec(), "runtimeConfig": config, "labels": {"a": "b"}, **changes}


def schedule(**changes: Any) -> Schedule:
    request = {"parent": PARENT, "pipelineJob": pipeline()}
    return Schedule.from_json(
        json.dumps(
            {
                "displayName": "weekly",
                "cron": "TZ=Europe/Berlin 0 3 * * 1",
                "maxConcurrentRunCount": "3",
                "createPipelineJobRequest": request,
                **changes,
            }
        )
    )


@pytest.fixture
def schedules(timetable: Timetable) -> Iterator[ScheduleServiceClient]:
    options = {"api_endpoint": timetable.url}
    client = ScheduleServiceClient(transport="rest", credentials=AnonymousCredentials(), client_options=options)
    yield client
    client.transport.close()


@pytest.fixture
def pipelines(timetable: Timetable) -> Iterator[PipelineServiceClient]:
    options = {"api_endpoint": timetable.url}
    client = PipelineServiceClient(transport="rest", credentials=AnonymousCredentials(), client_options=options)
    yield client
    client.transport.close()


def found(pipelines: PipelineServiceClient) -> list[PipelineJob]:
    """The pipeline jobs, the oldest first."""
    return list(pipelines.list_pipeline_jobs(parent=PARENT, timeout=WAIT_S))[::-1]


def args(job: Any) -> list[str]:
    return list(job.job_spec.worker_pool_specs[0].container_spec.args)


def test_each_slot_creates_a_pipeline_job_that_is_told_the_time_of_the_slot(
    timetable: Timetable, schedules: ScheduleServiceClient, pipelines: PipelineServiceClient
) -> None:
    made = schedules.create_schedule(parent=PARENT, schedule=schedule(), timeout=WAIT_S)
    assert (
        made.state is Schedule.State.ACTIVE
        and made.next_run_time.astimezone(BERLIN).strftime("%A %H:%M") == "Monday 03:00"
    )
    slots = [made.next_run_time, made.next_run_time + timedelta(days=7)]
    timetable.rules({"kind": "late", "seconds": 600.0, "nth": 1})
    attempts = timetable.advance(2 * WEEK_S)
    assert [each["job"] for each in attempts] == [made.name] * 2
    jobs = found(pipelines)
    assert [job.schedule_name for job in jobs] == [made.name] * 2
    told = [args(each) for each in timetable.custom_jobs()]
    shown = [datetime.fromisoformat(first.replace("Z", "+00:00")).timestamp() for first, _, _ in told]
    assert shown == [slot.timestamp() for slot in slots]
    assert [each[1:] for each in told] == [["for me", job.name] for job in jobs]
    until(lambda: all(job.state is PipelineState.PIPELINE_STATE_SUCCEEDED for job in found(pipelines)))
    now = schedules.get_schedule(name=made.name, timeout=WAIT_S)
    assert now.started_run_count == 2 and now.last_scheduled_run_response.run_response == "OK"
    assert now.last_scheduled_run_response.scheduled_run_time.timestamp() == slots[1].timestamp()


def test_a_paused_schedule_starts_nothing_and_goes_on_with_the_next_slot(
    timetable: Timetable, schedules: ScheduleServiceClient, pipelines: PipelineServiceClient
) -> None:
    name = schedules.create_schedule(parent=PARENT, schedule=schedule(), timeout=WAIT_S).name
    schedules.pause_schedule(name=name, timeout=WAIT_S)
    with pytest.raises(exceptions.BadRequest):
        schedules.pause_schedule(name=name, timeout=WAIT_S)
    assert timetable.advance(WEEK_S) == []
    schedules.resume_schedule(name=name, timeout=WAIT_S)
    assert found(pipelines) == [] and len(timetable.advance(WEEK_S)) == 1
    paused = schedules.get_schedule(name=name, timeout=WAIT_S)
    assert paused.last_pause_time < paused.last_resume_time


def test_the_fields_of_a_mask_are_changed_and_lists_are_filtered(
    timetable: Timetable, schedules: ScheduleServiceClient
) -> None:
    first, second = (
        schedules.create_schedule(parent=PARENT, schedule=schedule(displayName=name), timeout=WAIT_S)
        for name in ("weekly", "other")
    )
    changed = Schedule(name=first.name, cron="0 4 * * *", max_concurrent_run_count=9)
    schedules.update_schedule(schedule=changed, update_mask="cron", timeout=WAIT_S)
    now = schedules.get_schedule(name=first.name, timeout=WAIT_S)
    assert (now.cron, now.max_concurrent_run_count, now.next_run_time.hour) == ("0 4 * * *", 3, 4)
    query = {"parent": PARENT, "filter": 'display_name="other" AND state="ACTIVE"'}
    assert [each.name for each in schedules.list_schedules(request=query, timeout=WAIT_S)] == [second.name]
    # Cloud Scheduler does not know them.
    assert list(timetable.scheduler.list_jobs(parent=PARENT, timeout=WAIT_S)) == []
    schedules.delete_schedule(name=second.name, timeout=WAIT_S).result(timeout=WAIT_S)
    with pytest.raises(exceptions.NotFound):
        schedules.get_schedule(name=second.name, timeout=WAIT_S)


def test_schedules_and_their_pipeline_jobs_outlive_the_emulator(serve: Callable[..., Timetable]) -> None:
    first = serve()
    options = {"api_endpoint": first.url}
    client = ScheduleServiceClient(transport="rest", credentials=AnonymousCredentials(), client_options=options)
    name = client.create_schedule(parent=PARENT, schedule=schedule(), timeout=WAIT_S).name
    first.advance(WEEK_S)
    first.stop()
    second = serve()
    assert second.ask("GET", f"/v1/{name}").json()["state"] == "ACTIVE"
    assert len(second.ask("GET", f"/v1/{PARENT}/pipelineJobs").json()["pipelineJobs"]) == 1
    assert len(second.advance(WEEK_S)) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "TZ=Europe/Nowhere 0 3 * * 1"}, "schedule.cron"),
        ({"cron": "0 3 L * *"}, "schedule.cron"),
        ({"maxConcurrentRunCount": 0}, "schedule.max_concurrent_run_count"),
        ({"displayName": ""}, "schedule.display_name"),
        ({"createPipelineJobRequest": None}, "schedule"),
        ({"createPipelineJobRequest": {"parent": "projects/acme/locations/europe-west1"}}, "request.parent"),
        ({"createPipelineJobRequest": {"parent": PARENT, "pipelineJobId": "one"}}, "pipeline_job_id"),
        ({"createPipelineJobRequest": {"parent": PARENT, "pipelineJob": {}}}, "gcs_output_directory"),
        ({"colour": "red"}, "schedule"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_field(timetable: Timetable, changes: dict[str, Any], field: str) -> None:
    body = {**json.loads(Schedule.to_json(schedule())), **changes}
    answer = timetable.ask("POST", f"/v1/{PARENT}/schedules", body)
    violations = answer.json()["error"]["details"][0]["fieldViolations"]
    assert answer.status_code == 400 and any(field in each["field"] for each in violations), violations


@pytest.mark.parametrize("field", [{"startTime": "2030-01-01T00:00:00Z"}, {"maxRunCount": 3}])
def test_what_of_a_schedule_is_not_served_is_said(timetable: Timetable, field: dict[str, Any]) -> None:
    body = {**json.loads(Schedule.to_json(schedule())), **field}
    answer = timetable.ask("POST", f"/v1/{PARENT}/schedules", body)
    assert answer.status_code == 405 and next(iter(field)) in answer.json()["error"]["message"]


def test_a_pipeline_job_shows_the_end_of_its_container_and_is_named_only_once(
    timetable: Timetable, pipelines: PipelineServiceClient
) -> None:
    timetable.launcher.script = lambda group: group.codes.update({"workerpool0-0": 1})
    job = PipelineJob.from_json(json.dumps(pipeline()))
    made = pipelines.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id="by-hand", timeout=WAIT_S)
    with pytest.raises(exceptions.Conflict):
        pipelines.create_pipeline_job(parent=PARENT, pipeline_job=job, pipeline_job_id="by-hand", timeout=WAIT_S)
    assert made.name.endswith("/pipelineJobs/by-hand") and made.labels == {"a": "b"} and not made.schedule_name

    def now() -> PipelineJob:
        return pipelines.get_pipeline_job(name=made.name, timeout=WAIT_S)

    until(lambda: now().state is PipelineState.PIPELINE_STATE_FAILED)
    assert "The failed tasks are: [task]" in now().error.message
    (task,) = now().job_detail.task_details
    (custom,) = timetable.custom_jobs()
    assert (task.state.name, task.executor_detail.container_detail.main_job) == ("FAILED", custom.name)
    assert "a" not in custom.labels and "vertex-ai-pipelines-run-billing-id" in custom.labels
    # The custom job may go first.
    timetable.client.delete_custom_job(name=custom.name, timeout=WAIT_S).result(timeout=WAIT_S)
    assert now().state is PipelineState.PIPELINE_STATE_FAILED
    query = {"parent": PARENT, "filter": 'labels.a="b" AND state!="PIPELINE_STATE_SUCCEEDED"'}
    assert [each.name for each in pipelines.list_pipeline_jobs(request=query, timeout=WAIT_S)] == [made.name]
    pipelines.delete_pipeline_job(name=made.name, timeout=WAIT_S).result(timeout=WAIT_S)
    assert found(pipelines) == []


def test_a_cancelled_pipeline_job_ends_as_cancelled(timetable: Timetable, pipelines: PipelineServiceClient) -> None:
    timetable.launcher.script = lambda group: None
    job = PipelineJob.from_json(json.dumps(pipeline()))
    made = pipelines.create_pipeline_job(parent=PARENT, pipeline_job=job, timeout=WAIT_S)
    assert made.name.rpartition("/")[2].startswith("print-slots-")
    until(lambda: len(timetable.launcher.made) > 0)
    pipelines.cancel_pipeline_job(name=made.name, timeout=WAIT_S)
    state = PipelineState.PIPELINE_STATE_CANCELLED
    until(lambda: pipelines.get_pipeline_job(name=made.name, timeout=WAIT_S).state is state)


def test_a_spec_is_read_as_strictly_as_the_proto_has_it() -> None:
    task = spec()["root"]["dag"]["tasks"]["task"]
    cases: list[tuple[dict[str, Any], dict[str, str], str]] = [
        ({"colour": "red"}, {"who": "me"}, """does not serve the field "colour" at 'pipeline_job"""),
        ({"schemaVersion": "2.0.0"}, {"who": "me"}, "schema version"),
        ({"root": {"dag": {"tasks": {"one": task, "two": task}}}}, {"who": "me"}, "pipelines of 2 tasks"),
        ({"root": {"dag": {"tasks": {}}}}, {}, "No task runs a container"),
        ({"components": {}}, {"who": "me"}, "No task runs a container"),
        ({}, {}, "'who' is missing"),
        ({}, {"who": "me", "what": "this"}, "'what' of the runtime_config.parameter_values is not defined"),
        ({"deploymentSpec": {"executors": {"exec": {"container": {"image": 3}}}}}, {"who": "me"}, "(string), 3"),
        ({"pipelineInfo": {"name": "No Name"}}, {"who": "me"}, "Invalid pipeline name"),
    ]
    for changes, values, text in cases:
        with pytest.raises(VertexApiError) as caught:
            pipeline_specs.read(spec(**changes), values)
        assert text in caught.value.message
    cached = {**task, "cachingOptions": {"enableCache": True}}
    root = {**spec()["root"], "dag": {"tasks": {"task": cached}}}
    with pytest.raises(VertexApiError, match="caches of tasks"):
        pipeline_specs.read(spec(root=root), {"who": "me"})


KEYS = ["root", "dag", "tasks", "a"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=100)
@given(st.sampled_from(sorted(spec())), JSON)
def test_no_spec_makes_the_reader_crash(name: str, value: Any) -> None:
    try:
        pipeline_specs.read(spec(**{name: value}), {"who": "me"})
    except VertexApiError as error:
        assert error.code in (400, 405)


def test_the_slots_of_a_year_lie_on_the_expression_in_its_zone(
    timetable: Timetable, schedules: ScheduleServiceClient
) -> None:
    weekly = schedule(cron="CRON_TZ=America/New_York 30 7 * * 1")
    schedules.create_schedule(parent=PARENT, schedule=weekly, timeout=WAIT_S)
    timetable.advance(370 * DAY_S)
    zone = ZoneInfo("America/New_York")
    times = [datetime.fromisoformat(args(each)[0].replace("Z", "+00:00")) for each in timetable.custom_jobs()]
    assert len(times) >= 52 and {each.astimezone(zone).strftime("%H:%M:%S") for each in times} == {"07:30:00"}
    assert len({each.astimezone(timezone.utc).hour for each in times}) == 2
