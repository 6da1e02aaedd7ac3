"""Credentials of an account and of a machine, and encryption, as in the cloud: the servers stand on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support import REPO, FakeClock, serving

from sdk.errors import AccessError, StoreError
from sdk.process.redirect.proxy import Redirect
from sdk.storage.gcs import errors
from sdk.storage.gcs.auth import MachineToken, TokenError
from sdk.testing.gcs import GcsServer

PROGRAM = """
from sdk.errors import AccessError
from sdk.storage.registry import open_store
store = open_store("gs://bucket/run")
try:
    put = store.put_new("x", [b"1", bytes(300_000)])
    assert bytes(store.get("x", generation=put.generation)) == b"1" + bytes(300_000)
    assert list(store.list("")) == [store.stat("x")] == [put]
    store.delete("x", generation=put.generation)
    print("done")
except AccessError as error:
    print(error)
"""


class Tokens:
    """The answers of a server of access tokens, and the flavors that its requests name."""

    def __init__(self) -> None:
        self.status, self.host, self.flavors = 200, "", list[str]()

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        self.flavors.append(request.headers["Metadata-Flavor"])
        token = {"access_token": "hunter2", "expires_in": 3600, "token_type": "Bearer"}
        refusal = {"error": "invalid_grant", "error_description": "Revoked."}
        return self.status, json.dumps(token if self.status == 200 else refusal).encode()


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    found = Tokens()
    with serving(found.answer) as found.host:
        yield found


@pytest.fixture
def said(podlift_gcs: GcsServer, tokens: Tokens, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Return the output of a program that reaches the emulator as Google's own address, with the key of a service account."""
    podlift_gcs.client().create_bucket("bucket")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account",
        "project_id": "p",
        "private_key": key.private_bytes(*form).decode(),
        "client_email": "job@p.iam.gserviceaccount.com",
        "token_uri": f"http://{tokens.host}/token",
    }
    file = tmp_path / "account.json"
    file.write_text(json.dumps(account))
    own = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}

    def run() -> str:
        env = {**redirect.environment, "GOOGLE_APPLICATION_CREDENTIALS": str(file), "NO_GCE_CHECK": "true"}
        for name in ("STORAGE_EMULATOR_HOST", "PODLIFT_EMULATOR"):
            env.pop(name, None)
        env["PYTHONPATH"] = str(REPO)
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        return done.stdout.strip()

    with Redirect(podlift_gcs.url, tmp_path / "redirect", own) as redirect:
        yield run


def test_a_service_account_is_let_in_by_one_token(podlift_gcs: GcsServer, tokens: Tokens, said) -> None:
    assert said() == "done"
    assert len(tokens.flavors) == 1
    calls = ["buckets.insert", *(f"objects.{name}" for name in ("insert", "download", "list", "get", "delete"))]
    assert podlift_gcs.requests().operations == dict.fromkeys(calls, 1)


def test_32_an_account_that_was_revoked_is_told_at_once(tokens: Tokens, said) -> None:
    tokens.status = 400
    sentence = said()
    assert "Cannot write gs://bucket/run/x: the credentials cannot be refreshed" in sentence
    assert "Revoked" in sentence
    assert sentence.endswith("Next: gcloud auth application-default login.")
    assert len(tokens.flavors) == 1


def test_32_an_expired_token_is_renewed_and_a_refused_request_is_sent_again(podlift_gcs, tokens: Tokens, said) -> None:
    podlift_gcs.faults({"kind": "status_before", "status": 401, "operation": "objects.insert", "nth": 1})
    assert said() == "done"
    assert len(tokens.flavors) == 2


def test_a_machines_token_is_asked_for_once_and_again_some_minutes_before_its_end() -> None:
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


def test_the_metadata_server_is_asked_as_it_wants_to_be_and_no_proxy_is_used(tokens: Tokens, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert MachineToken({"GCE_METADATA_HOST": tokens.host}).token() == "hunter2"
    assert tokens.flavors == ["Google"]


@pytest.mark.parametrize(
    ("status", "kind", "retry"),
    [(404, AccessError, False), (403, AccessError, False), (503, StoreError, True), (None, StoreError, True)],
)
def test_a_missing_service_account_is_reported_and_a_failing_server_is_asked_again(tokens, status, kind, retry) -> None:
    tokens.status = status
    with pytest.raises(TokenError) as error:
        MachineToken({"GCE_METADATA_HOST": tokens.host if status else "127.0.0.1:1"}).token()
    failure = errors.failure_of(error.value, "b")
    assert failure is not None
    assert (failure.kind, failure.retry) == (kind, retry)
    assert str(status or "cannot be reached") in failure.text
