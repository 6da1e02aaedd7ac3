"""Google's own client, held to a time limit and to rules for what is sent twice: here a server answers as a script says."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sdk import InputError
from sdk.backends.vertex import client, logs
from sdk.backends.vertex.client import JobClient, OutcomeUnknownError, VertexRejectedError, to_custom_job
from sdk.backends.vertex.create_job import JobCreation, JobRequest
from sdk.errors import MissingError, StoreError
from sdk.storage import emulator
from sdk.storage.posix_store import PosixStore

TOKEN = "0123456789abcdef" * 2
NAME = "projects/p/locations/us-central1/customJobs/7"
JOB = {"name": NAME, "displayName": "d", "state": 3, "labels": {"podlift-run": "d-aaaaaa"}}
POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "1",
    "containerSpec": {"imageUri": "i", "env": [{"name": "A", "value": "b"}]},
}
BODY = {"displayName": "d", "labels": {"podlift-run": "d-aaaaaa"}, "jobSpec": {"workerPoolSpecs": [POOL]}}


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    monotonic = now

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Server(ThreadingHTTPServer):
    """Gives the answers of a script, one after the other, the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.let_go = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == f"/{TOKEN}/_faults":
            # Asked once by each process, to learn whether an emulator is there.
            self._say(200, {"faults": []})
            return
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        self.server.asked.append((self.command, self.path.removeprefix(f"/{TOKEN}"), body))
        status, said = self.server.script.pop(0) if len(self.server.script) > 1 else self.server.script[0]
        if status == 0:
            self.server.let_go.wait(60)
            self.close_connection = True
            return
        self._say(status, said)

    def _say(self, status: int, said: Any) -> None:
        answer = said if status == 200 else {"error": {"code": status, "message": said}}
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("PODLIFT_EMULATOR", f"http://127.0.0.1:{found.server_port}/{TOKEN}")
        yield found
        found.let_go.set()
        found.shutdown()


@pytest.fixture
def jobs() -> JobClient:
    return JobClient("p", clock=Clock())


def test_a_job_is_created_with_googles_own_types(server: Server, jobs: JobClient) -> None:
    server.script = [(200, JOB)]
    made = jobs.create("us-central1", to_custom_job(BODY))
    assert (made.name, made.state, made.labels) == (NAME, "JOB_STATE_RUNNING", {"podlift-run": "d-aaaaaa"})
    (method, path, body), *more = server.asked
    assert more == []
    assert (method, path.partition("?")[0]) == ("POST", "/v1/projects/p/locations/us-central1/customJobs")
    assert body["jobSpec"]["workerPoolSpecs"][0]["replicaCount"] == "1"


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_write_is_sent_once_and_may_have_been_carried_out(server: Server, jobs: JobClient, status: int) -> None:
    server.script = [(status, "try again")]
    with pytest.raises(OutcomeUnknownError, match=str(status)):
        jobs.create("us-central1", to_custom_job(BODY))
    assert len(server.asked) == 1


FOREIGN = [b"", b"<html><title>Welcome to the hotel</title></html>", b"{}", b"[]", b"null", b'{"name": "7"}', b"{\xff}"]


@pytest.mark.parametrize("body", FOREIGN)
def test_a_good_status_with_a_foreign_body_leaves_open_whether_there_is_a_job(
    server: Server, jobs: JobClient, body: bytes
) -> None:
    server.script = [(200, body)]
    with pytest.raises(OutcomeUnknownError, match=r"response.*check the network and its proxies"):
        jobs.create("us-central1", to_custom_job(BODY))
    assert len(server.asked) == 1


@pytest.mark.parametrize("body", FOREIGN)
def test_a_foreign_body_is_no_job_and_is_asked_for_again(server: Server, jobs: JobClient, body: bytes) -> None:
    server.script = [(200, body), (200, JOB)]
    assert jobs.get(NAME).id == "7"


def test_after_a_foreign_answer_the_job_is_found_and_no_second_one_is_made(
    server: Server, jobs: JobClient, tmp_path: Path
) -> None:
    mine = {**JOB, "labels": {"podlift-run": "d-aaaaaa", "podlift-job": "1"}}
    server.script = [(200, b"<html>"), (200, {"customJobs": [mine]})]
    asked = JobRequest(run_id="d-aaaaaa", number=1, regions=["us-central1"], redacted_body={}, job=to_custom_job(BODY))
    made = JobCreation(asked, PosixStore(str(tmp_path / "run")), jobs, Clock()).ensure()
    assert (made.name, made.unsure) == (NAME, True)
    assert [method for method, *_ in server.asked] == ["POST", "GET"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429])
def test_what_was_refused_was_not_done(server: Server, jobs: JobClient, status: int) -> None:
    server.script = [(status, "The words of the service.")]
    with pytest.raises(VertexRejectedError) as caught:
        jobs.create("us-central1", to_custom_job(BODY))
    assert caught.value.status == status
    # Without credentials Google's own library speaks in the place of a 401.
    assert status == 401 or "The words of the service." in str(caught.value)
    assert len(server.asked) == 1


def test_a_silent_server_is_not_waited_for_for_ever(
    server: Server, jobs: JobClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_WRITE_S", 0.3)
    server.script = [(0, None)]
    with pytest.raises(OutcomeUnknownError, match="Timeout"):
        jobs.create("us-central1", to_custom_job(BODY))
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_read_is_sent_again_with_waits(server: Server, jobs: JobClient, status: int) -> None:
    server.script = [(status, "busy"), (status, "busy"), (200, JOB)]
    assert jobs.get(NAME).state == "JOB_STATE_RUNNING"
    assert len(server.asked) == 3
    # Each wait is of random length, up to 0.5 s and 1 s.
    assert 0 < jobs._clock.now() <= 1.5


def test_a_read_that_never_succeeds_ends(server: Server, jobs: JobClient) -> None:
    server.script = [(503, "down")]
    with pytest.raises(OutcomeUnknownError, match="down"):
        jobs.get(NAME)
    assert 20 < jobs._clock.now() <= 45


def test_a_job_that_is_gone_is_missing(server: Server, jobs: JobClient) -> None:
    server.script = [(404, "not found")]
    with pytest.raises(MissingError, match="customJobs/7"):
        jobs.get(NAME)
    assert len(server.asked) == 1


def test_an_unknown_state_and_unknown_fields_are_no_error(server: Server, jobs: JobClient) -> None:
    server.script = [(200, {**JOB, "state": 99, "somethingNew": {"a": 1}})]
    assert jobs.get(NAME).state == "JOB_STATE_99"


def test_an_error_and_times_are_told(server: Server, jobs: JobClient) -> None:
    error = {"code": 8, "message": "Resources are insufficient in region: us-central1."}
    server.script = [(200, {**JOB, "state": "JOB_STATE_FAILED", "error": error, "endTime": "2026-01-01T00:00:01Z"})]
    found = jobs.get(NAME)
    assert (found.code, found.message, found.over) == (8, error["message"], True)
    assert found.ended == 1767225601.0
    assert found.started is None


def test_every_page_of_a_list_is_read_with_the_runs_label(server: Server, jobs: JobClient) -> None:
    other = {**JOB, "name": NAME[:-1] + "8"}
    server.script = [(200, {"customJobs": [JOB], "nextPageToken": "t"}), (200, {"customJobs": [other]})]
    assert [job.id for job in jobs.list("us-central1", {"podlift-run": "d-aaaaaa"})] == ["7", "8"]
    assert "labels.podlift-run%3D%22d-aaaaaa%22" in server.asked[0][1]
    assert "pageToken=t" in server.asked[1][1]


@pytest.mark.parametrize("status", [400, 404])
def test_cancelling_what_has_ended_or_is_gone_does_nothing(server: Server, jobs: JobClient, status: int) -> None:
    server.script = [(status, "it is over")]
    jobs.cancel(NAME)
    assert server.asked[0][1].partition("?")[0] == f"/v1/{NAME}:cancel"


def test_cancelling_is_sent_again_since_twice_is_once(server: Server, jobs: JobClient) -> None:
    server.script = [(503, "busy"), (200, {})]
    jobs.cancel(NAME)
    assert len(server.asked) == 2


def test_a_server_that_is_not_there_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_EMULATOR", f"http://127.0.0.1:9/{TOKEN}")
    # As in a process that has found it before.
    monkeypatch.setattr(emulator, "_check_skipped", True)
    with pytest.raises(OutcomeUnknownError, match="cannot be reached") as caught:
        JobClient("p", clock=Clock()).create("us-central1", to_custom_job(BODY))
    assert TOKEN not in str(caught.value)


def test_a_body_that_google_does_not_know_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InputError, match="no field named"):
        to_custom_job({**BODY, "jobSpeck": {}})


def test_a_request_for_log_lines_is_sent_again_with_waits(server: Server) -> None:
    server.script = [(503, "busy"), (429, "busy"), (200, {"entries": []})]
    clock = Clock()
    assert logs.query({"filter": ""}, clock) == {"entries": []}
    assert len(server.asked) == 3
    assert 0 < clock.now() <= 6.0


def test_a_request_for_log_lines_ends_in_time_and_is_not_sent_again_if_it_was_rejected(server: Server) -> None:
    server.script = [(503, "busy")]
    clock = Clock()
    with pytest.raises(StoreError, match="503"):
        logs.query({"filter": ""}, clock)
    assert 50 < clock.now() <= 60
    server.asked.clear()
    server.script = [(400, "wrong")]
    with pytest.raises(StoreError, match="400"):
        logs.query({"filter": ""}, clock)
    assert len(server.asked) == 1
