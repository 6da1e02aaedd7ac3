"""Who gets the token of an emulator: nobody who has not shown to know it, whatever listens on the port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from support import LIMIT_S

from sdk.errors import InputError
from sdk.process.redirect.proxy import Redirect
from sdk.storage import emulator_proof
from sdk.storage.emulator import checked_address
from sdk.storage.emulator_proof import Challenge, ProofError
from sdk.testing.gcs import GcsServer

TOKEN = "0123456789abcdef" * 2
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + b"0" * 64


class Impostor:
    """Listens on a port and keeps the bytes that arrive; `answer` returns the reply to the bytes so far."""

    def __init__(self, answer: Callable[[bytes], bytes], address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._answer, self.heard = answer, b""
        self._listener = socket.create_server(address)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while piece := connection.recv(65536):
                self.heard += piece
                connection.sendall(self._answer(piece))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def impostor() -> Iterator[Callable[..., Impostor]]:
    made: list[Impostor] = []

    def make(*args: object) -> Impostor:
        made.append(Impostor(*args))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


ANSWERS = {
    "a proof that is none": OK,
    "a page": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    "a refusal": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"\xff\x00garbage\r\n\r\n",
    "another place": b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    "a header without an end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_server_that_cannot_prove_itself_gets_no_token(impostor, monkeypatch, answer: bytes) -> None:
    there = impostor(lambda _: answer)
    url = f"http://127.0.0.1:{there.port}/{TOKEN}"
    monkeypatch.setenv("PODLIFT_EMULATOR", url)
    why = r"(it responded with status \d{3}\.|it did not answer as a server of HTTP)"
    said = f"The emulator that PODLIFT_EMULATOR names (is something else: {why}|has a different token)"
    with pytest.raises(InputError, match=said):
        checked_address()
    # A process that has begun to ask, and goes on.
    with emulator_proof.session(url) as session, pytest.raises(requests.ConnectionError):
        session.get(f"{url}/storage/v1/b", timeout=LIMIT_S)
    assert b"/_proof/" in there.heard and TOKEN.encode() not in there.heard


@pytest.mark.process
def test_a_process_in_the_place_of_an_emulator_gets_no_token_of_its_clients(tmp_path, impostor) -> None:
    with GcsServer(tmp_path) as server:
        session = emulator_proof.session(server.url)
        assert session.get(f"{server.url}/storage/v1/b?project=p", timeout=LIMIT_S).status_code == 200
        token = urlsplit(server.url).path.strip("/").encode()
        server.kill()
        there = impostor(lambda _: OK, ("127.0.0.1", server.port))
        with pytest.raises(requests.ConnectionError):
            session.get(f"{server.url}/storage/v1/b?project=p", timeout=LIMIT_S)
        assert b"/_proof/" in there.heard and token not in there.heard
        there.close()


def test_a_proof_that_is_passed_on_from_the_emulator_is_none(gcs, impostor: Callable[..., Impostor]) -> None:
    def passed_on(request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", gcs.port), LIMIT_S) as connection:
            connection.sendall(request)
            answer = b""
            while not Challenge.is_complete(answer):
                answer += connection.recv(65536)
            return answer

    there = impostor(passed_on, ("127.0.0.2", 0))
    token = urlsplit(gcs.url).path.strip("/")
    with (
        socket.create_connection(("127.0.0.2", there.port), LIMIT_S) as connection,
        pytest.raises(ProofError, match="has a different token"),
    ):
        emulator_proof.prove(connection, token)
    with socket.create_connection(("127.0.0.1", gcs.port), LIMIT_S) as connection:
        emulator_proof.prove(connection, token)


def test_the_way_of_tensorflow_sends_no_token_to_a_server_that_cannot_prove_itself(tmp_path, impostor) -> None:
    there = impostor(lambda _: OK)
    url = f"http://127.0.0.1:{there.port}/{TOKEN}"
    with Redirect(url, tmp_path / "redirect", {}) as redirect, requests.Session() as session:
        session.trust_env = False
        session.proxies = {"https": redirect.environment["https_proxy"]}
        session.verify = redirect.environment["REQUESTS_CA_BUNDLE"]
        with pytest.raises(requests.ConnectionError):
            session.get("https://storage.googleapis.com/storage/v1/b/x", timeout=LIMIT_S)
    assert b"/_proof/" in there.heard and TOKEN.encode() not in there.heard


@given(answer=st.one_of(st.binary(max_size=300), st.sampled_from(sorted(ANSWERS)).map(ANSWERS.__getitem__)))
def test_whatever_is_answered_is_a_proof_or_an_error(answer: bytes) -> None:
    challenge = Challenge(TOKEN, "127.0.0.1")
    challenge.is_complete(answer)
    with pytest.raises(ProofError):
        challenge.check(answer)
