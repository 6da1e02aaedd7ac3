"""Access tokens of a machine's service account, as a training image without Google's libraries gets them."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from support import FakeClock, serving

from sdk.errors import AccessError, StoreError
from sdk.storage.gcs import errors
from sdk.storage.gcs.auth import MachineToken, TokenError


def test_a_token_is_asked_for_once_and_again_some_minutes_before_its_end() -> None:
    asked: list[str] = []

    def ask(url: str) -> dict[str, object]:
        asked.append(url)
        return {"access_token": f"token {len(asked)}", "expires_in": 3600}

    clock = FakeClock()
    token = MachineToken({"GCE_METADATA_HOST": "here:1"}, clock, ask)
    assert [token.token(), token.token()] == ["token 1", "token 1"]
    clock.time += 3600 - 241
    assert token.token() == "token 1"
    clock.time += 2
    assert token.token() == "token 2"
    assert asked == ["http://here:1/computeMetadata/v1/instance/service-accounts/default/token"] * 2


@pytest.mark.parametrize("answer", [{}, {"access_token": "x", "expires_in": "soon"}, [], None])
def test_an_answer_that_is_no_token_is_named(answer) -> None:
    with pytest.raises(TokenError, match="did not return a token"):
        MachineToken({}, FakeClock(), lambda url: answer).token()


@pytest.fixture
def server() -> Iterator[dict]:
    about: dict = {"status": 200, "flavors": []}

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        about["flavors"].append(request.headers["Metadata-Flavor"])
        return about["status"], b'{"access_token": "secret", "expires_in": 3599, "token_type": "Bearer"}'

    with serving(answer) as about["host"]:
        yield about


def test_the_metadata_server_is_asked_as_it_wants_to_be_and_no_proxy_is_used(server, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert MachineToken({"GCE_METADATA_HOST": server["host"]}).token() == "secret"
    assert server["flavors"] == ["Google"]


@pytest.mark.parametrize(
    ("status", "kind", "retry"), [(404, AccessError, False), (403, AccessError, False), (503, StoreError, True)]
)
def test_a_missing_service_account_is_reported_and_a_failing_server_is_asked_again(server, status, kind, retry) -> None:
    server["status"] = status
    with pytest.raises(TokenError) as error:
        MachineToken({"GCE_METADATA_HOST": server["host"]}).token()
    failure = errors.failure_of(error.value, "b")
    assert failure is not None
    assert (failure.kind, failure.retry) == (kind, retry)
    assert str(status) in failure.text


def test_a_missing_server_is_worth_another_try() -> None:
    with pytest.raises(TokenError) as error:
        MachineToken({"GCE_METADATA_HOST": "127.0.0.1:1"}).token()
    assert error.value.again
