"""Lists of jobs through Google's client, lines as Cloud Logging lists them, and the filters that both lists share."""

from __future__ import annotations

from datetime import timedelta

import pytest
from google.cloud.aiplatform_v1.types import JobState
from hypothesis import given, settings
from hypothesis import strategies as st
from served import PARENT, WAIT_S, Served, body

from sdk.clock import SystemClock
from sdk.emulator.vertex import listing
from sdk.emulator.vertex.entries import LogEntries
from sdk.emulator.vertex.errors import VertexApiError
from sdk.emulator.vertex.timing import EmulatorClock


def names(vertex, text: str = "", **more) -> list[str]:
    request = {"parent": PARENT, "filter": text, **more}
    return [job.display_name for job in vertex.client.list_custom_jobs(request=request, timeout=WAIT_S)]


def made(vertex, *jobs: str, **labels: str) -> list:
    return [vertex.create({**body(), "display_name": name, "labels": {"n": name, **labels}}) for name in jobs]


def test_jobs_are_listed_newest_first_in_pages(vertex) -> None:
    made(vertex, *(f"job-{number}" for number in range(7)))
    expected = [f"job-{number}" for number in reversed(range(7))]
    assert names(vertex) == expected
    for size in (1, 3, 7, 100):
        assert names(vertex, page_size=size) == expected
    pager = vertex.client.list_custom_jobs(request={"parent": PARENT, "page_size": 3}, timeout=WAIT_S)
    assert [len(page.custom_jobs) for page in pager.pages] == [3, 3, 1]
    other = PARENT.replace("us-central1", "us-east1")
    assert list(vertex.client.list_custom_jobs(parent=other, timeout=WAIT_S)) == []


def test_filters(vertex) -> None:
    a, b, c = made(vertex, "digits-a", "digits-b", "other", **{"podlift-run": "r1"})
    vertex.finish(a)
    for job in (b, c):
        vertex.until(job, "JOB_STATE_RUNNING")
    between = (b.create_time + timedelta(microseconds=1)).isoformat().replace("+00:00", "Z")
    for text, expected in (
        ('display_name="digits-a"', ["digits-a"]),
        ('display_name!="digits-a"', ["other", "digits-b"]),
        ('display_name:"digits-*"', ["digits-b", "digits-a"]),
        ('display_name:"digits"', []),
        ('state="JOB_STATE_SUCCEEDED"', ["digits-a"]),
        ('labels.podlift-run="r1" AND display_name:"digits*"', ["digits-b", "digits-a"]),
        ('labels."podlift-run":*', ["other", "digits-b", "digits-a"]),
        (f'create_time>"{between}"', ["other"]),
        (f"create_time<={between}", ["digits-b", "digits-a"]),
        ('state="JOB_STATE_SUCCEEDED" OR labels.n="other"', ["other", "digits-a"]),
        ('display_name="x" OR display_name:"d*" AND NOT (labels.n="digits-b")', ["digits-a"]),
        ('state=4 AND"display_name"="digits-a"', ["digits-a"]),
        ('NOT"labels"."n"=other', ["digits-b", "digits-a"]),
    ):
        assert names(vertex, text) == expected, text


def test_a_read_mask_leaves_the_rest_out(vertex) -> None:
    made(vertex, "a")
    request = {"parent": PARENT, "read_mask": {"paths": ["name", "state"]}}
    (found,) = vertex.client.list_custom_jobs(request=request, timeout=WAIT_S)
    assert found.name and found.state != JobState.JOB_STATE_UNSPECIFIED
    assert not found.display_name and not found.job_spec.worker_pool_specs


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    found = LogEntries(tmp_path_factory.mktemp("entries") / "entries.sqlite", EmulatorClock(SystemClock()))
    found.add_line("1", "2", "workerpool0-0", "stdout", "x")
    found.add_service_line("1", "2", "y")
    yield found
    found.close()


WORDS = ["timestamp", "severity", "resource.type", "labels", "insertId", "jsonPayload.message", "textPayload", "state"]
WORDS += [*"()=:<>\"'-.*", "a", "x", "x", '"x y"', "=~", "!~", "!=", "\\", '"*("', "ERROR", "9" * 30]
WORDS += ["2026-01-01T0:0", '"2026-01-01T00:00:00Z"', " ", " AND ", " OR ", "AND", "OR", "NOT", "NOT "]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25).map("".join) | st.text(max_size=60))
def test_no_filter_of_jobs_or_lines_is_a_crash(entries, text) -> None:
    for read, matches in (
        (lambda: listing.matches_filter(listing.parse(text), lambda each: True), (True, False)),
        (lambda: listing.matches_filter(listing.read_filter(text, "CustomJob"), lambda each: True), (True, False)),
        (lambda: len(entries.listed({"resourceNames": ["projects/1"], "filter": text}).get("entries", [])), (0, 1, 2)),
    ):
        try:
            assert read() in matches
        except VertexApiError as error:
            assert error.code == 400


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_filter_selects_the_same_as_its_tree(data) -> None:
    """OR binds closer than AND, and NOT closest."""

    def draw(depth: int) -> tuple[str, bool]:
        word = data.draw(st.sampled_from(["leaf", "AND", "OR", "NOT"] if depth else ["leaf"]))
        if word == "leaf":
            value = data.draw(st.booleans())
            return f"a={'yes' if value else 'no'}", value
        if word == "NOT":
            text, value = draw(depth - 1)
            return f"NOT ({text})", not value
        parts = [draw(depth - 1) for _ in range(data.draw(st.integers(2, 3)))]
        joined = f" {word} ".join(f"({text})" if word == "OR" else text for text, _ in parts)
        return joined, (all if word == "AND" else any)(value for _, value in parts)

    text, value = draw(3)
    assert listing.matches_filter(listing.parse(text), lambda each: each.value == "yes") is value


def run(vertex: Served, *lines: tuple[str, str, str]):
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
    tasks = [f"{each['resource']['labels']['task_name']} {each['severity']}" for each in found]
    assert tasks[:5] == ["service INFO"] * 5
    written = ["workerpool0-0 INFO", "workerpool1-0 ERROR", "workerpool0-0 WARNING", "workerpool0-0 INFO"]
    assert tasks[5:] == [*written, "service INFO", "service INFO"]
    assert found[5]["textPayload"] == "epoch 1"
    assert found[7]["jsonPayload"] == {"message": "careful", "step": 3}
    assert found[8]["textPayload"] == '{"loss": 1}'
    _, project, *_, job_id = job.name.split("/")
    labels = {"job_id": job_id, "project_id": project, "task_name": "workerpool0-0"}
    assert found[5]["resource"] == {"type": "ml_job", "labels": labels}
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
