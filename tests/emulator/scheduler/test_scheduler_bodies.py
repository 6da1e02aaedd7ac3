"""Bodies of scheduled jobs: whatever is sent, an answer and never a crash; and what Google reads is read the same."""

from __future__ import annotations

import json

from google.cloud.scheduler_v1.types import Job
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from support import any_json

from sdk.emulator.messages import MESSAGES, to_response
from sdk.emulator.scheduler import bodies, executions
from sdk.emulator.scheduler.executions import Execution
from sdk.emulator.scheduler.post import refusal
from sdk.emulator.vertex.errors import VertexApiError

NAMES = st.sampled_from(sorted(MESSAGES["Job"]))
JSON = any_json(st.floats(allow_nan=False), st.text(), keys=st.text() | NAMES)
DURATION = st.sampled_from(["0s", "5s", "3.5s", "900s", "86400s"])
TARGET = st.fixed_dictionaries(
    {"uri": st.sampled_from(["http://localhost/x", "https://us-central1-aiplatform.googleapis.com/v1/x"])},
    optional={
        "httpMethod": st.sampled_from(["POST", "PUT", "GET", 1, 2]),
        "headers": st.dictionaries(st.sampled_from(["Content-Type", "X-A", "Host"]), st.sampled_from(["a", "b/c"])),
        "body": st.binary(max_size=9).map(lambda data: json.loads(json_format.MessageToJson(_bytes(data)))["body"]),
        "oauthToken": st.just({"serviceAccountEmail": "a@acme.iam.gserviceaccount.com"}),
    },
)
DURATIONS = dict.fromkeys(("maxRetryDuration", "minBackoffDuration", "maxBackoffDuration"), DURATION)
COUNTS = {"retryCount": st.integers(0, 5), "maxDoublings": st.integers(0, 2**31 - 1)}
RETRIES = st.fixed_dictionaries({}, optional={**COUNTS, **DURATIONS})
VALID = st.fixed_dictionaries(
    {"httpTarget": TARGET, "schedule": st.sampled_from(["* * * * *", "0 3 * * 1", "*/7 0-5 1,15 * *"])},
    optional={
        "description": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        "timeZone": st.sampled_from(["utc", "UTC", "Europe/Berlin"]),
        "attemptDeadline": st.sampled_from(["15s", "1800s"]),
        "retryConfig": RETRIES,
    },
)


def _bytes(data: bytes):
    return Job.pb(Job(http_target={"body": data or b"\0"})).http_target


def read(job) -> dict:
    return bodies.parse(json.dumps(job).encode())


@settings(max_examples=80, deadline=None)
@given(JSON | st.fixed_dictionaries({"httpTarget": JSON, "retryConfig": JSON, "schedule": JSON}), st.text())
def test_no_body_is_a_crash(value, mask: str) -> None:
    try:
        job = read(value)
        if not bodies.problems(job, "acme"):
            bodies.with_defaults(job)
        bodies.merged(job, job, mask)
    except VertexApiError as error:
        assert error.code in (400, 403, 405)


@settings(max_examples=60, deadline=None)
@given(VALID)
def test_a_body_that_google_can_read_is_read_the_same_and_shown_with_its_defaults(job: dict) -> None:
    theirs = Job.pb(Job())
    json_format.ParseDict(job, theirs)
    read_back = Job.pb(Job())
    json_format.ParseDict(to_response("Job", read(job), enum_numbers=False), read_back)
    assert read_back == theirs
    if bodies.problems(read(job), "acme"):
        assert theirs.http_target.body and "POST" not in str(job["httpTarget"].get("httpMethod"))
        return
    shown = bodies.with_defaults(read(job))
    assert bodies.with_defaults(shown) == shown
    assert bodies.problems(shown, "acme") == []


@settings(max_examples=60, deadline=None)
@given(VALID, st.integers(0, 4_000_000_000), st.integers(0, 10_000), st.integers(0, 20))
def test_the_next_attempt_lies_ahead_and_a_slot_follows_every_slot(job, slot, lasted_s, retries) -> None:
    job = bodies.with_defaults(read({**job, "httpTarget": {"uri": "http://localhost/"}}))
    execution = Execution(slot=slot, at=slot, first=slot, retries=retries)
    retry = executions.retried(job, execution, slot, slot + lasted_s)
    assert retry is None or (retry.at > slot + lasted_s and retry.retries == retries + 1 and retry.slot == slot)
    assert executions.following_slot(job, execution, slot + lasted_s) > slot
    assert Execution.from_dict(json.loads(json.dumps(execution.to_dict()))) == execution


@settings(max_examples=100, deadline=None)
@given(st.text() | st.from_regex(r"https?://[^/]*(googleapis\.com|localhost)[^/]*/.*"))
def test_only_this_machine_and_the_services_of_the_emulator_are_ever_asked(uri: str) -> None:
    if not refusal(uri):
        host = uri.partition("//")[2].partition("/")[0].rpartition("@")[2]
        is_here = host.startswith(("localhost", "127.0.0.1", "[::1]"))
        assert is_here or host.partition(":")[0].endswith(".googleapis.com")
