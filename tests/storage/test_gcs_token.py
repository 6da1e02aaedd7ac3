"""Access tokens of a machine's service account, as a training image without Google's libraries gets them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sdk.errors import AccessError, StoreError
from sdk.storage.gcs import errors
from sdk.storage.gcs.auth import MachineToken, TokenError


class Hands:
    """A clock whose hands the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_token_is_asked_for_once_and_again_some_minutes_before_its_end() -> None:
    asked: list[str] = []

    def ask(url: str) -> dict[str, object]:
        asked.append(url)
        return {"access_token": f"token {len(asked)}", "expires_in": 3600}

    clock = Hands()
    token = MachineToken({"GCE_METADATA_HOST": "here:1"}, clock, ask)
    assert [token.token(), token.token()] == ["token 1", "token 1"]
    clock.now_s += 3600 - 241
    assert token.token() == "token 1"
    clock.now_s += 2
    assert token.token() == "token 2"
    assert asked == ["http://here:1/computeMetadata/v1/instance/service-accounts/default/token"] * 2


@pytest.mark.parametrize("answer", [{}, {"access_token": "x", "expires_in": "soon"}, [], None])
def test_what_is_no_token_is_said_to_be_none(answer) -> None:
    with pytest.raises(TokenError, match="did not return a token"):
        MachineToken({}, Hands(), lambda url: answer).token()


@pytest.fixture
def server() -> Iterator[dict]:
    about: dict = {"status": 200, "flavors": []}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            about["flavors"].append(self.headers["Metadata-Flavor"])
            body = json.dumps({"access_token": "secret", "expires_in": 3599, "token_type": "Bearer"}).encode()
            self.send_response(about["status"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    about["host"] = f"127.0.0.1:{httpd.server_port}"
    yield about
    httpd.shutdown()
    httpd.server_close()


def test_the_metadata_server_is_asked_as_it_wants_to_be_and_no_proxy_is_used(server, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert MachineToken({"GCE_METADATA_HOST": server["host"]}).token() == "secret"
    assert server["flavors"] == ["Google"]


@pytest.mark.parametrize(
    ("status", "kind", "retry"), [(404, AccessError, False), (403, AccessError, False), (503, StoreError, True)]
)
def test_a_machine_without_a_service_account_is_told_and_a_server_that_fails_is_asked_again(
    server, status, kind, retry
) -> None:
    server["status"] = status
    with pytest.raises(TokenError) as error:
        MachineToken({"GCE_METADATA_HOST": server["host"]}).token()
    failure = errors.failure_of(error.value, "b")
    assert failure is not None
    assert (failure.kind, failure.retry) == (kind, retry)
    assert str(status) in failure.text


def test_nobody_there_is_worth_another_try() -> None:
    with pytest.raises(TokenError) as error:
        MachineToken({"GCE_METADATA_HOST": "127.0.0.1:1"}).token()
    assert error.value.again
