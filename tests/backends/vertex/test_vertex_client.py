"""The job service by REST, with time limits and rules for repeated requests: here a server answers as a script says."""

import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
from google.auth.credentials import Credentials, CredentialsWithQuotaProject
from google.auth.exceptions import RefreshError, TransportError
from google.cloud.aiplatform_v1 import CustomJob, JobServiceClient
from support import FakeClock

from sdk.backends.vertex import client
from sdk.backends.vertex.client import JobClient, OutcomeUnknownError, VertexRejectedError
from sdk.backends.vertex.job import logs
from sdk.backends.vertex.job.create_job import CreatedJob, JobCreation, JobRequest, LocatedRequest
from sdk.errors import AccessError, MissingError, StoreError, StoreUnavailableError
from sdk.storage import emulator_proof
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


class Server(ThreadingHTTPServer):
    """Gives the answers of a script in turn, the last one again and again: (status, body or message, headers)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[tuple[int, Any] | tuple[int, Any, dict[str, str]]] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.authorizations: set[str | None] = set()
        self.connections = 0
        self.let_go = threading.Event()

    def handle_error(self, *_: object) -> None:
        """A client may leave before the end of an answer."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.authorizations.add(self.headers.get("Authorization"))
        if self.path.startswith(emulator_proof.PATH):
            # Asked on each connection, to learn whether it is the emulator.
            nonce = self.path.removeprefix(emulator_proof.PATH)
            self._say(200, emulator_proof.proof(TOKEN, nonce, "127.0.0.1").encode())
            return
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        self.server.asked.append((self.command, self.path.removeprefix(f"/{TOKEN}"), body))
        status, said, *more = self.server.script.pop(0) if len(self.server.script) > 1 else self.server.script[0]
        if status == 0:
            self.server.let_go.wait(60)
            self.close_connection = True
            return
        answer = {"error": {"code": status, "message": said}} if isinstance(said, str) else said
        self._say(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode(), *more)

    def _say(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        about = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("PODLIFT_EMULATOR", f"http://127.0.0.1:{found.server_port}/{TOKEN}")
        yield found
        found.let_go.set()
        found.shutdown()


@pytest.fixture
def jobs() -> JobClient:
    return JobClient("p", clock=FakeClock(0.0))


FOREIGN = {
    "a page": b"<html><title>Welcome to the hotel</title></html>",
    "no job": b"{}",
    "half a job": json.dumps(JOB).encode()[:-9],
    "odd labels": json.dumps({**JOB, "labels": ["a"]}).encode(),
    "a depth": b"[" * 100_000,
}
NETWORK = r"response.*check the network and its proxies"
UNSURE = {
    **{name: ((200, body), NETWORK) for name, body in FOREIGN.items()},
    **{f"status {status}": ((status, "try again"), str(status)) for status in (500, 503)},
    # Followed, the write would be sent twice.
    **{f"redirect {status}": ((status, b"<html>", {"Location": "/login"}), NETWORK) for status in (302, 308)},
    "an address": ((500, f"nothing at /{TOKEN}/v1/x"), "nothing at /TOKEN/v1/x"),
    "breaks off": ((200, json.dumps(JOB).encode(), {"Content-Length": "100000", "Connection": "close"}), None),
}


@pytest.mark.parametrize("name", UNSURE)
def test_a_write_without_a_sure_answer_is_sent_once_and_may_have_been_carried_out(server, jobs, name) -> None:
    answer, said = UNSURE[name]
    server.script = [answer, (200, JOB)]
    with pytest.raises(OutcomeUnknownError, match=said):
        jobs.create("us-central1", BODY)
    assert len(server.asked) == 1


def created(jobs: JobClient, folder: Path, clock: FakeClock) -> CreatedJob:
    request = LocatedRequest(location=0, region="us-central1", redacted_body={}, body=BODY)
    asked = JobRequest(run_id="d-aaaaaa", number=1, requests=[request])
    return JobCreation(asked, PosixStore(str(folder / "run")), jobs, clock, lambda key: 0.0).ensure()


def test_a_busy_service_is_asked_again_when_it_wants_to_be_but_not_in_an_hour(server, jobs, tmp_path) -> None:
    busy = (429, "Quota exceeded for quota metric 'Jobs' and limit 'Jobs per minute'")
    server.script = [(*busy, {"Retry-After": "30"}), (*busy, {"Retry-After": "3600"}), (200, JOB)]
    clock = FakeClock(0.0)
    assert created(jobs, tmp_path, clock).name == NAME
    assert clock.now() == 30 + 45


@pytest.mark.parametrize("status", [403, 503])
def test_after_a_lost_response_an_unreadable_list_leaves_the_outcome_unknown(server, jobs, tmp_path, status) -> None:
    server.script = [(500, "lost"), (status, WORDS)]
    unknown, step = "It is unknown whether the run d-aaaaaa was started: ", "Next: podlift status d-aaaaaa"
    with pytest.raises(OutcomeUnknownError, match=rf"^{unknown}.*{WORDS}.*find it by its label\. {step}\.$"):
        created(jobs, tmp_path, FakeClock(0.0))
    assert [method for method, *_ in server.asked].count("POST") == 1


WORDS = "The words of the service."
ABOUT = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "CONSUMER_INVALID", "domain": "d"}]
REASONED = {"error": {"code": 403, "message": WORDS, "details": ABOUT}}


@pytest.mark.parametrize(
    ("status", "answer", "text"),
    [
        (400, f"nothing at /{TOKEN}/v1/x", "nothing at /TOKEN/v1/x"),
        (403, WORDS, WORDS),
        (429, WORDS, WORDS),
        (403, REASONED, f"{WORDS} (CONSUMER_INVALID)"),
        (403, [REASONED], f"{WORDS} (CONSUMER_INVALID)"),
    ],
)
def test_a_refused_request_had_no_effect_and_is_quoted_with_googles_reason(server, jobs, status, answer, text) -> None:
    server.script = [(status, answer)]
    with pytest.raises(VertexRejectedError) as caught:
        jobs.create("us-central1", BODY)
    assert (caught.value.status, str(caught.value)) == (status, text)
    assert len(server.asked) == 1


def test_a_silent_server_is_not_waited_for_for_ever(server, jobs, monkeypatch) -> None:
    monkeypatch.setattr(client, "_WRITE_S", 0.3)
    monkeypatch.setattr(client, "_READ_S", 0.2)
    server.script = [(0, None)]
    with pytest.raises(OutcomeUnknownError, match=r"did not answer within 0\.3 s"):
        jobs.create("us-central1", BODY)
    assert len(server.asked) == 1
    # The clock does not run while a request waits: one try only.
    monkeypatch.setattr(client, "_RETRY_S", 0.0)
    with pytest.raises(OutcomeUnknownError, match=r"did not answer within 0\.2 s"):
        jobs.get(NAME)
    assert len(server.asked) == 2


def test_a_read_is_sent_again_with_waits(server, jobs) -> None:
    server.script = [(429, "busy"), (500, "busy"), (200, JOB)]
    assert jobs.get(NAME).state == "JOB_STATE_RUNNING"
    assert len(server.asked) == 3
    # Each wait is of random length, up to 0.5 s and 1 s.
    assert 0 < jobs._clock.now() <= 1.5


def test_a_failing_read_ends_in_time_and_at_once_if_retry_after_is_too_long(server, jobs) -> None:
    for headers, least_s, most_s in (({"Retry-After": "3600"}, 0.0, 0.0), ({}, 20.0, 45.0)):
        server.script = [(503, "down for maintenance", headers)]
        with pytest.raises(OutcomeUnknownError, match="maintenance"):
            jobs.get(NAME)
        assert least_s <= jobs._clock.now() <= most_s
        assert (len(server.asked) == 1) is bool(headers)


def test_the_settings_of_a_proxy_and_passwords_in_netrc_do_not_concern_an_emulator(
    server, jobs, monkeypatch, tmp_path
) -> None:
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.script = [(200, JOB)]
    assert jobs.create("us-central1", BODY).id == "7"
    assert server.authorizations == {None}


def test_a_response_without_an_end_is_not_read_to_its_end(server, jobs, monkeypatch) -> None:
    monkeypatch.setattr(client, "_PIECES", 2)
    server.script = [(200, {**JOB, "displayName": "d" * 200_000})]
    with pytest.raises(OutcomeUnknownError, match="not valid: Unterminated string"):
        jobs.create("us-central1", BODY)


def test_an_unknown_state_and_unknown_fields_are_no_error(server, jobs) -> None:
    server.script = [
        (200, {**JOB, "state": 99, "somethingNew": {"a": 1}}),
        (200, {**JOB, "state": "JOB_STATE_HIBERNATING"}),
        (200, {"name": NAME, "error": None, "labels": None, "startTime": None}),
    ]
    for state in ("99", "HIBERNATING", "UNSPECIFIED"):
        assert jobs.get(NAME).state == f"JOB_STATE_{state}"


def test_an_error_and_times_are_told(server, jobs) -> None:
    error = {"code": 8, "message": "Resources are insufficient in region: us-central1."}
    times = {"createTime": "2026-01-01T00:00:00.123456789Z", "endTime": "2026-01-01T00:00:01Z"}
    server.script = [(200, {**JOB, "state": "JOB_STATE_FAILED", "error": error, **times})]
    found = jobs.get(NAME)
    assert (found.code, found.message, found.over, found.labels) == (8, error["message"], True, JOB["labels"])
    assert (found.created, found.ended) == (pytest.approx(1767225600.123456, abs=1e-5), 1767225601.0)
    assert found.started is None


def test_every_page_of_a_list_is_read_with_the_runs_label(server, jobs) -> None:
    other = {**JOB, "name": NAME[:-1] + "8"}
    server.script = [(200, {"customJobs": [JOB], "nextPageToken": "t"}), (200, {"customJobs": [other]})]
    assert [job.id for job in jobs.list("us-central1", {"podlift-run": "d-aaaaaa"})] == ["7", "8"]
    assert "labels.podlift-run%3D%22d-aaaaaa%22" in server.asked[0][1]
    assert "pageToken=t" in server.asked[1][1]


def test_a_missing_job_is_an_error_to_a_reader_and_nothing_to_cancel(server, jobs) -> None:
    server.script = [(404, "not found")]
    with pytest.raises(MissingError, match="customJobs/7"):
        jobs.get(NAME)
    assert len(server.asked) == 1
    for status in (404, 400):
        server.script = [(status, "it is over")]
        jobs.cancel(NAME)
    assert [path.partition("?")[0] for _, path, _ in server.asked[1:]] == [f"/v1/{NAME}:cancel"] * 2


def test_requests_share_a_connection_and_a_forked_process_opens_another(server, jobs) -> None:
    server.script = [(200, JOB)]
    for _ in range(3):
        jobs.get(NAME)
    # One more asked whether an emulator is there.
    before = server.connections
    assert before <= 2
    child = os.fork()
    if child == 0:
        os._exit(0 if jobs.get(NAME).id == "7" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert server.connections > before
    jobs.get(NAME)


def test_a_request_for_log_lines_is_repeated_for_a_time_unless_it_is_rejected(server) -> None:
    server.script = [(503, "busy"), (429, "busy"), (200, b"<html>"), (200, {"entries": []})]
    clock = FakeClock(0.0)
    assert logs.query({"filter": ""}, clock) == {"entries": []}
    assert len(server.asked) == 4
    assert 0 < clock.now() <= 14.0
    server.script = [(429, "busy", {"Retry-After": "20"}), (200, {"entries": []})]
    asked_at = clock.now()
    logs.query({"filter": ""}, clock)
    assert clock.now() - asked_at >= 20
    server.script, clock = [(503, "busy")], FakeClock(0.0)
    with pytest.raises(StoreError, match="503"):
        logs.query({"filter": ""}, clock)
    assert 50 < clock.now() <= 60
    server.asked.clear()
    server.script = [(400, f"wrong: /{TOKEN}/v2")]
    with pytest.raises(StoreError, match=r"400.*wrong: /TOKEN/v2"):
        logs.query({"filter": ""}, clock)
    assert len(server.asked) == 1
    server.script = [(200, [])]
    with pytest.raises(StoreUnavailableError, match="is not valid: it is no object"):
        logs.query({"filter": ""}, clock, within_s=0.0)


class Token(CredentialsWithQuotaProject):  # type: ignore[misc]
    """A token that Google would accept, paid for by another project; or an error in its place."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error, self._quota_project_id = error, "who-pays"
        self.token = None if error else "secret"

    def refresh(self, request: object) -> None:
        if self._error is not None:
            raise self._error


@pytest.fixture
def google(monkeypatch) -> Iterator[Callable[..., list[requests.PreparedRequest]]]:
    """Use these credentials, and return the requests that Google's servers would get; nothing leaves this machine."""
    sent: list[requests.PreparedRequest] = []

    def send(_: object, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        sent.append(request)
        response = requests.Response()
        response.status_code, response.url, response.request = 200, str(request.url), request
        listed = str(request.url).partition("?")[0].endswith("/customJobs") and request.method == "GET"
        response.raw = io.BytesIO(json.dumps({"customJobs": [JOB]} if listed else JOB).encode())
        return response

    def use(credentials: Credentials) -> list[requests.PreparedRequest]:
        monkeypatch.setattr("google.auth.default", lambda scopes: (credentials, "p"))
        return sent

    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", send)
    client._session.cache_clear()
    yield use
    client._session.cache_clear()


def said_to_google(request: requests.PreparedRequest) -> dict[str, object]:
    """The fields that decide how Google executes a request. States may come as names or as numbers."""
    parts = urlsplit(str(request.url))
    names = ["authorization", "x-goog-request-params", "x-goog-user-project"]
    names += ["content-type"] if request.method == "POST" else []
    return {
        "method": request.method,
        "to": (parts.scheme, parts.netloc, parts.path),
        "query": {name: value for name, value in parse_qsl(parts.query) if name != "$alt"},
        "headers": {name: request.headers.get(name) for name in names},
        "body": CustomJob.from_json(request.body or "{}") if request.method == "POST" else request.body,
    }


PARENT = NAME.partition("/customJobs")[0]
LISTED = {"parent": PARENT, "filter": 'labels.podlift-run="d-aaaaaa"', "page_size": client._PAGE}
# The arguments of our call, Google's name of its call, and the arguments of that.
CALLS: dict[str, tuple[list[Any], str, dict[str, Any]]] = {
    "create": (
        ["us-central1", BODY],
        "create_custom_job",
        {"parent": PARENT, "custom_job": CustomJob.from_json(json.dumps(BODY))},
    ),
    "get": ([NAME], "get_custom_job", {"name": NAME}),
    "list": (["us-central1", {"podlift-run": "d-aaaaaa"}], "list_custom_jobs", {"request": LISTED}),
    "cancel": ([NAME], "cancel_custom_job", {"name": NAME}),
}


@pytest.mark.parametrize("call", CALLS)
def test_google_gets_the_same_requests_as_from_its_own_client(google, call) -> None:
    sent, (ours, name, its) = google(Token()), CALLS[call]
    getattr(JobClient("p"), call)(*ours)
    options = {"api_endpoint": "us-central1-aiplatform.googleapis.com"}
    getattr(JobServiceClient(transport="rest", credentials=Token(), client_options=options), name)(**its)
    first, second = map(said_to_google, sent)
    assert first == second
    assert first["headers"]["authorization"] == "Bearer secret"
    assert first["headers"]["x-goog-user-project"] == "who-pays"
    assert all("gl-python/" in request.headers["x-goog-api-client"] for request in sent)


@pytest.mark.parametrize(
    ("error", "of_jobs", "of_logs", "text"),
    [
        (RefreshError, VertexRejectedError, AccessError, r"(are not accepted|cannot be read): why\. Next: gcloud auth"),
        (
            TransportError,
            OutcomeUnknownError,
            StoreUnavailableError,
            r"cannot be (reached|read): (TransportError: )?why\. Next: (check the network|try again)",
        ),
    ],
)
def test_credentials_that_cannot_be_renewed_send_nothing(google, error, of_jobs, of_logs, text) -> None:
    sent, clock = google(Token(error("why."))), FakeClock(0.0)
    with pytest.raises(of_jobs, match=text):
        JobClient("p", clock=clock).create("us-central1", BODY)
    with pytest.raises(of_logs, match=text) as caught:
        logs.query({"filter": ""}, clock)
    assert type(caught.value) is of_logs, "a network that does not respond is not a lack of access"
    assert sent == []
