"""The lines of jobs and of the service, as Cloud Logging lists them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Served, body

from sdk.clock import SystemClock
from sdk.emulator.vertex.entries import LogEntries
from sdk.emulator.vertex.errors import VertexApiError
from sdk.emulator.vertex.timing import EmulatorClock


def run(vertex: Served, *lines: tuple[str, str, str]):
    """A job with replicas that write these lines and succeed."""
    vertex.launcher.script = lambda group: [group.emit(*line) for line in lines]
    return vertex.finish(vertex.create(body(1)))


def asked(vertex: Served, text: str, **more) -> dict:
    answer = vertex.ask("POST", "/v2/entries:list", {"resourceNames": ["projects/acme"], "filter": text, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_lines_of_tasks_stand_between_the_lines_of_the_service(vertex) -> None:
    job = run(
        vertex,
        ("workerpool0-0", "stdout", "epoch 1"),
        ("workerpool1-0", "stderr", "a warning of TensorFlow"),
        ("workerpool0-0", "stdout", '{"severity": "warning", "message": "careful", "step": 3}'),
        ("workerpool0-0", "stdout", '{"loss": 1}'),
    )
    found = vertex.lines(job)
    tasks = [(each["resource"]["labels"]["task_name"], each["severity"]) for each in found]
    assert tasks[:5] == [("service", "INFO")] * 5
    assert tasks[5:] == [
        ("workerpool0-0", "INFO"),
        ("workerpool1-0", "ERROR"),
        ("workerpool0-0", "WARNING"),
        ("workerpool0-0", "INFO"),
        ("service", "INFO"),
        ("service", "INFO"),
    ]
    assert found[5]["textPayload"] == "epoch 1"
    assert found[7]["jsonPayload"] == {"message": "careful", "step": 3}
    assert found[8]["textPayload"] == '{"loss": 1}'
    job_id = job.name.rpartition("/")[2]
    project = job.name.split("/")[1]
    assert found[5]["resource"] == {
        "type": "ml_job",
        "labels": {"job_id": job_id, "project_id": project, "task_name": "workerpool0-0"},
    }
    assert found[5]["labels"]["ml.googleapis.com/job_id"] == job_id
    assert len({each["insertId"] for each in found}) == len(found)
    order = [(each["timestamp"], each["insertId"]) for each in found]
    assert order == sorted(order)


def test_the_filters_that_gcloud_and_podlift_send(vertex) -> None:
    job = run(vertex, *(("workerpool0-0", "stdout", f"line {number}") for number in range(6)))
    run(vertex, ("workerpool0-0", "stdout", "of another job"))
    job_id = job.name.rpartition("/")[2]
    base = f'resource.type="ml_job" AND resource.labels.job_id="{job_id}"'
    lines = asked(vertex, f'{base} AND resource.labels.task_name="workerpool0-0"')["entries"]
    assert [each["textPayload"] for each in lines] == [f"line {number}" for number in range(6)]
    at, insert_id = lines[2]["timestamp"], lines[2]["insertId"]
    later = f'{base} AND ((timestamp="{at}" AND insertId>"{insert_id}") OR timestamp>"{at}")'
    rest = asked(vertex, f'{later} AND resource.labels.task_name="workerpool0-0"')["entries"]
    assert [each["textPayload"] for each in rest] == ["line 3", "line 4", "line 5"]
    for text, count in (
        (f'{base} AND timestamp>="{at}" AND timestamp<="{at}"', 1),
        (f'labels."ml.googleapis.com/job_id"="{job_id}" AND textPayload:"LINE"', 6),
        (f'{base} AND textPayload=~"line [0-2]$"', 3),
        (f"{base} AND NOT resource.labels.task_name=service AND severity>=ERROR", 0),
        (f'{base} severity=INFO resource.labels.task_name!="service"', 6),
        (f'{base} AND resource.labels.missing="x"', 0),
        ('textPayload="of another job"', 1),
    ):
        assert len(asked(vertex, text, pageSize=1000).get("entries", [])) == count, text


def test_pages_and_order(vertex) -> None:
    job = run(vertex, *(("workerpool0-0", "stdout", str(number)) for number in range(9)))
    text = f'resource.labels.job_id="{job.name.rpartition("/")[2]}" AND resource.labels.task_name="workerpool0-0"'
    for order in ("timestamp asc", "timestamp desc"):
        found, token, pages = [], "", 0
        while pages == 0 or token:
            page = asked(vertex, text, pageSize=4, orderBy=order, pageToken=token)
            found += [int(each["textPayload"]) for each in page["entries"]]
            token, pages = page.get("nextPageToken", ""), pages + 1
        assert found == sorted(range(9), reverse=order.endswith("desc"))
        assert pages == 3


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    found = LogEntries(tmp_path_factory.mktemp("entries") / "entries.sqlite", EmulatorClock(SystemClock()))
    found.add_line("1", "2", "workerpool0-0", "stdout", "x")
    found.add_service_line("1", "2", "y")
    yield found
    found.close()


WORDS = ["timestamp", "severity", "resource.type", "labels", "insertId", "jsonPayload.message", "textPayload", *"=>:"]
WORDS += ["x", "x", "=~", "!~", '"*("', "ERROR", '"2026-01-01T00:00:00Z"', " AND ", " OR ", "(", ")", "NOT ", "9" * 30]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12).map("".join) | st.text(max_size=20))
def test_no_filter_of_entries_is_a_crash(entries, text) -> None:
    try:
        found = entries.listed({"resourceNames": ["projects/1"], "filter": text})
    except VertexApiError as error:
        assert error.code == 400
    else:
        assert len(found.get("entries", [])) <= 2
