"""Serves a data folder on a port of the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ...clock import SystemClock
from ...errors import InputError
from ...process.redirect import tokens
from ..door import AccessMiddleware
from .app import StorageApp
from .bodies import check_bucket_fields
from .errors import StorageApiError
from .faults import StorageFault, StorageFaults
from .names import check_bucket
from .replies import Connections
from .state import StorageState

_BACKLOG = 2048
# Clients keep connections open and meet a reset if they send at the very moment at which the server gives one up.
_KEEP_ALIVE_S = 3600


def serve(
    folder: Path,
    *,
    port: int,
    announce: Callable[[str], None],
    faults: Sequence[StorageFault] = (),
    buckets: Sequence[str] = (),
) -> None:
    """Serve until a signal ends it.

    Args:
        folder: where everything is kept; made if it is not there.
        port: 0 for any free one.
        announce: called with the URL, whose path is the token, before a connection is accepted; who connects at once waits.
        faults: what goes wrong from the beginning.
        buckets: made unless they are there, see `make_buckets`.

    Raises:
        InputError: the folder, the port or a bucket cannot be used.
    """
    with closing(bind(port)) as listener, closing(StorageState(folder, SystemClock())) as state:
        make_buckets(state, buckets)
        rules, connections = StorageFaults(), Connections()
        rules.replace(faults)
        token = tokens.load_or_create(folder)
        server = make_server(AccessMiddleware(StorageApp(state, rules, connections), token, connections), connections)
        listen(listener)
        announce(f"http://127.0.0.1:{listener.getsockname()[1]}/{token}")
        server.run(sockets=[listener])


def make_server(application: ASGIApp, connections: Connections, *, lifespan: bool = False) -> uvicorn.Server:
    """Return a server that was not started yet.

    Args:
        application: what it serves.
        connections: where it keeps those that are open.
        lifespan: whether the application wants to know when it begins and ends.
    """
    config = uvicorn.Config(
        application,
        http=connections.protocol(),
        ws="none",
        loop="asyncio",
        lifespan="on" if lifespan else "off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def bind(port: int) -> socket.socket:
    """Return a socket that has a port of the loopback interface for itself, and does not listen yet.

    Args:
        port: 0 for any free one.

    Raises:
        InputError: the port cannot be used.
    """
    # Named, or asyncio does not turn off the delay of small packets: 40 ms for each request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _unusable(port, error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Accept connections from now on.

    Raises:
        InputError: another process listens on the port.
    """
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _unusable(listener.getsockname()[1], error) from None


def _unusable(port: int, error: Exception) -> InputError:
    return InputError(f"The port cannot be used: {error}. Received: {port}. Next: --port 0 takes any free one.")


def make_buckets(state: StorageState, buckets: Sequence[str]) -> None:
    """Make the buckets that are not there yet.

    Args:
        state: where.
        buckets: NAME for one as Google makes it for whoever says nothing, in several regions; NAME@REGION for one of a region.

    Raises:
        InputError: one cannot have that name, or lie there.
    """
    there = {each.name for each in state.buckets()}
    wanted = {name: place.upper() for name, _, place in (each.partition("@") for each in buckets)}
    try:
        for name in wanted:
            check_bucket(name)
        for name in sorted(wanted.keys() - there):
            fields = {"location": wanted[name]} if wanted[name] else {}
            check_bucket_fields(fields)
            state.create_bucket(name, fields)
    except StorageApiError as error:
        raise InputError(error.message) from None
