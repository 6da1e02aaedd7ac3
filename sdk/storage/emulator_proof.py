"""The proof of podlift's emulator: on each connection, it shows that it knows the token before a client sends it there.

Once an emulator has ended, any user of the machine can listen on its port. The proof is bound to the address of the connection:
a listener on another one cannot pass on the answer of the emulator. It needs the standard library, and requests for `session`.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import requests

PATH = "/_proof/"
NONCE = re.compile(r"[0-9a-f]{32}")
TOKEN = re.compile(r"[0-9a-f]{32}")
_ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) .*?\r\n\r\n(?:([0-9a-f]{64})\Z)?", re.DOTALL)
_MOST = 1_000
_LIMIT_S = 8.0  # for the whole answer
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})", re.IGNORECASE)
_LENGTH = 64


class ProofError(ConnectionError):
    """The listener on the port cannot prove that it knows the token. It received no part of it."""


def proof(token: str, nonce: str, host: str) -> str:
    """Return the answer that proves knowledge of the token, on a connection to this address."""
    return hmac.digest(f"proof {token}".encode(), f"{nonce} {host}".encode(), "sha256").hex()


def token_of(url: str) -> str:
    """Return the token in the URL of an emulator, "" if it is another one's."""
    path = urlsplit(url).path.strip("/")
    return path if TOKEN.fullmatch(path) else ""


class Challenge:
    """A question to the server of a connection, and the check of its answer."""

    def __init__(self, token: str, host: str) -> None:
        nonce = secrets.token_hex(16)
        self._expected = proof(token, nonce, host)
        self.request = f"GET {PATH}{nonce} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

    @staticmethod
    def is_complete(answer: bytes) -> bool:
        """Return whether the rest of an answer cannot matter."""
        head, end, body = answer.partition(b"\r\n\r\n")
        length = _CONTENT_LENGTH.search(head)
        right = head.startswith(b"HTTP/1.1 200") and length is not None and int(length[1]) == _LENGTH
        return len(answer) > _MOST or (bool(end) and (not right or len(body) >= _LENGTH))

    def check(self, answer: bytes) -> None:
        """Raise ProofError unless the answer is right."""
        match = _ANSWER.match(answer)
        if match is None or match[2] is None:
            text = f"it responded with status {match[1].decode()}" if match else "it did not answer as a server of HTTP"
            raise ProofError(f"is something else: {text}")
        if not hmac.compare_digest(match[2].decode(), self._expected):
            raise ProofError(
                "has a different token, another user's program is in its place, "
                "or it is reached through a tunnel by another address: use 127.0.0.1 at both ends"
            )


def prove(connection: socket.socket, token: str) -> None:
    """Ask the server of a new connection for the proof; ProofError without it. The connection can then be used."""
    challenge = Challenge(token, str(connection.getpeername()[0]))
    patience_s, until = connection.gettimeout(), time.monotonic() + _LIMIT_S
    if patience_s is not None:
        until = min(until, time.monotonic() + patience_s)
    connection.sendall(challenge.request)
    answer = b""
    while not challenge.is_complete(answer):
        connection.settimeout(max(0.001, until - time.monotonic()))
        if not (piece := connection.recv(_MOST)):
            break
        answer += piece
    connection.settimeout(patience_s)
    challenge.check(answer)


def session(url: str, **options: Any) -> requests.Session:
    """Return a session for an emulator that demands the proof on each connection, with options of requests' adapter."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool

    token = token_of(url)

    class ProvenConnection(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            if self.sock is not None:
                prove(self.sock, token)

    class ProvenPool(HTTPConnectionPool):
        ConnectionCls = ProvenConnection

    class ProvenAdapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, **kwargs)  # type: ignore[no-untyped-call,unused-ignore]
            pools = {**self.poolmanager.pool_classes_by_scheme, "http": ProvenPool}
            self.poolmanager.pool_classes_by_scheme = pools

    client = requests.Session()
    # Ignore the proxies and the .netrc of this machine.
    client.trust_env = False
    # Another emulator has no token.
    client.mount("http://", ProvenAdapter(**options) if token else HTTPAdapter(**options))
    return client
