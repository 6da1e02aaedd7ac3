"""Lists of jobs through Google's client, and the filters that lists of jobs and of log entries share."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from google.cloud.aiplatform_v1.types import JobState
from hypothesis import given, settings
from hypothesis import strategies as st
from served import PARENT, WAIT_S, body

from sdk.emulator.vertex import listing
from sdk.emulator.vertex.errors import VertexApiError


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


@settings(max_examples=120, deadline=None)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [*"()=:<>\"'-.*", " ", "AND", "OR", "NOT", "state", "labels", "a", '"x y"', "!=", "\\", "2026-01-01T0:0"]
        ),
        max_size=25,
    ).map("".join)
)
def test_no_filter_is_a_crash(text) -> None:
    for read in (listing.parse, partial(listing.read_filter, kind="CustomJob")):
        try:
            found = read(text)
        except VertexApiError as error:
            assert error.code == 400
        else:
            assert listing.matches_filter(found, lambda each: True) in (True, False)


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
