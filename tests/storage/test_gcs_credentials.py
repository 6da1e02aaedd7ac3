"""The store with credentials and encryption, as it is in the cloud: the servers that it asks stand on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support import REPO, serving

from sdk.process.redirect.proxy import Redirect
from sdk.testing.gcs import GcsServer, podlift_gcs, podlift_gcs_server

__all__ = ["podlift_gcs", "podlift_gcs_server"]

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
    """The answers of a server of access tokens, and the number of its requests."""

    valid, asked, url = True, 0, ""

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        self.asked += 1
        token = {"access_token": "hunter2", "expires_in": 3600, "token_type": "Bearer"}
        refusal = {"error": "invalid_grant", "error_description": "Revoked."}
        return (200, json.dumps(token).encode()) if self.valid else (400, json.dumps(refusal).encode())


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    found = Tokens()
    with serving(found.answer) as address:
        found.url = f"http://{address}/token"
        yield found


@pytest.fixture
def said(podlift_gcs: GcsServer, tokens: Tokens, tmp_path: Path) -> Iterator[object]:
    """Return the output of a program that reaches the emulator as Google's own address, with the key of a service account."""
    podlift_gcs.client().create_bucket("bucket")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {
        "type": "service_account",
        "project_id": "p",
        "private_key": key.private_bytes(*form).decode(),
        "client_email": "job@p.iam.gserviceaccount.com",
        "token_uri": tokens.url,
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


def test_a_service_account_is_let_in_by_one_token(podlift_gcs: GcsServer, tokens: Tokens, said: object) -> None:
    assert said() == "done"  # type: ignore[operator]
    assert tokens.asked == 1
    operations = podlift_gcs.requests().operations
    assert {name: count for name, count in operations.items() if name.startswith("objects.")} == {
        "objects.insert": 1,
        "objects.download": 1,
        "objects.list": 1,
        "objects.get": 1,
        "objects.delete": 1,
    }


def test_32_an_account_that_was_revoked_is_told_at_once(tokens: Tokens, said: object) -> None:
    tokens.valid = False
    sentence = said()  # type: ignore[operator]
    assert "Cannot write gs://bucket/run/x: the credentials cannot be refreshed" in sentence
    assert "Revoked" in sentence
    assert sentence.endswith("Next: gcloud auth application-default login.")
    assert tokens.asked == 1


def test_32_an_expired_token_is_renewed_and_a_refused_request_is_sent_again(
    podlift_gcs: GcsServer, tokens: Tokens, said: object
) -> None:
    podlift_gcs.faults({"kind": "status_before", "status": 401, "operation": "objects.insert", "nth": 1})
    assert said() == "done"  # type: ignore[operator]
    assert tokens.asked == 2
