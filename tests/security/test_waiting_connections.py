"""Many connections wait for their request: another user's keep no one else out, and the user's own burst is served."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import other_user
import pytest
from support import LIMIT_S, needs

needs("starlette", "uvicorn")
from sdk.emulator.access import AccessMiddleware  # noqa: E402
from sdk.emulator.connections import Connections  # noqa: E402
from sdk.emulator.server import bind, listen, make_server  # noqa: E402

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says whose a connection is"),
]
TOKEN = "0" * 32
HEAD = f"GET /{TOKEN}/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
BURST = 200


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    async def application(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    connections = Connections(head_s=LIMIT_S)  # on a busy machine, the clients wait longer than a head may take
    server = make_server(AccessMiddleware(application, TOKEN, connections), connections)
    with closing(bind(0)) as listener:
        listen(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)


def is_served(client: socket.socket) -> bool:
    try:
        client.sendall(HEAD)
        return client.recv(1000).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def test_a_burst_of_the_owner_is_served(address) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(address, LIMIT_S)) for _ in range(BURST)]
        assert sum(map(is_served, clients)) == BURST


@other_user.NEEDS_ROOT
def test_the_owners_connections_outlast_all_that_another_user_opens(address) -> None:
    ready = os.pipe()

    def flood() -> None:
        with ExitStack() as opened:
            for _ in range(300):
                opened.enter_context(socket.create_connection(address, LIMIT_S))
            os.write(ready[1], b"x")

    with ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(address, LIMIT_S)) for _ in range(10)]
        with other_user.keeps_doing(lambda: [flood() for _ in range(1000)]):
            os.read(ready[0], 1)
            assert all(map(is_served, clients))
            with socket.create_connection(address, LIMIT_S) as new:
                assert is_served(new)
    for each in ready:
        os.close(each)
